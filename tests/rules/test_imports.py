"""The ways imports may point, held on the syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# From the command line down; a folder imports from itself and from what stands below it.
ORDER = ["backbones", "evaluate", "heads", "derive", "extract", "manifests", "cache_store", "foundation"]
APART = {"heads": {"extract", "derive"}}  # they meet in the cache
# A third-party library has one home.
HOMES = {
    "zarr": ("cache_store/",),
    "crc32c": ("cache_store/", "pipeline.py"),
    "open_clip": ("extract/encoders/open_clip.py", "extract/clip_source.py", "manifests/prompts.py"),
    "transformers": ("extract/encoders/hf.py", "derive/language.py"),
    "textblob": ("manifests/brill.py",),
    "huggingface_hub": ("extract/hub.py",),
    "scipy": ("manifests/",),
    "timm": ("extract/encoders/timm.py", "manifests/imagenet.py"),
    "matplotlib": ("evaluate/",),
    "skimage": ("manifests/",),
    "mlxtend": ("manifests/",),
    "dask": ("extract/", "cache_store/"),
    "distributed": ("extract/", "cache_store/"),
    "click": ("pipeline.py", "/commands.py"),
    "rich": ("foundation/", "/commands.py", "evaluate/tables.py"),
}
LIGHT = {"click", "vlpipe.foundation.errors", "vlpipe.pipeline"}  # all that a commands.py imports at the top


def sources(root: Path) -> Iterator[Path]:
    yield root / "pipeline.py"
    for folder in ORDER:
        yield from sorted((root / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError(f"line {node.lineno}: relative import; write vlpipe.…")
            yield node.module or ""


def violations(path: str, code: str) -> list[str]:
    here = path.split("/", 1)[0]
    found = []
    for name in imported(ast.parse(code)):
        top, *rest = name.split(".")
        if top == "vlpipe" and rest and here in ORDER and rest[0] != here:
            below = ORDER[ORDER.index(here) + 1 :]
            if rest[0] not in below or rest[0] in APART.get(here, ()):
                found.append(f"{path} imports {name}")
        if top in ORDER or top == "pipeline":
            found.append(f"{path} imports bare {name}")
        homes = HOMES.get(top)
        if homes and not any(path.startswith(home) or path.endswith(home) for home in homes):
            found.append(f"{path} imports {name}, whose home is {' or '.join(homes)}")
    return found


def test_imports_point_down_and_libraries_stay_at_home(repository: Path) -> None:
    found = []
    for path in sources(repository):
        found += violations(path.relative_to(repository).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("heads/loop.py", "from vlpipe.extract.run import extract"),
        ("extract/run.py", "import vlpipe.heads.loop"),
        ("cache_store/reader.py", "from vlpipe.manifests.manifest import Manifest"),
        ("heads/loop.py", "def f():\n    import zarr"),
        ("heads/loop.py", "from heads.data import Joined"),
        ("evaluate/figures.py", "import click"),
    ],
)
def test_the_rule_sees_a_breach(path: str, code: str) -> None:
    assert len(violations(path, code)) == 1


def test_commands_import_nothing_heavy_at_the_top(repository: Path) -> None:
    heavy = []
    for path in repository.glob("*/commands.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        top = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {name for node in top for name in imported(ast.Module([node], []))}
        heavy += [
            f"{path.parent.name}: {n}" for n in names - LIGHT if n.split(".")[0] not in sys.stdlib_module_names
        ]
    assert heavy == []
