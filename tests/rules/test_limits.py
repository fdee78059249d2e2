"""Two sizes that are limits, and a docstring for everything public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 300
FUNCTION_LINES = 50
CODE = [
    "foundation",
    "cache_store",
    "manifests",
    "extract",
    "derive",
    "heads",
    "evaluate",
    "backbones",
    "benchmarks",
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(root: Path, *more: str) -> Iterator[Path]:
    yield root / "pipeline.py"
    for folder in (*CODE, *more):
        yield from sorted((root / folder).rglob("*.py"))


def length(node: Function) -> int:
    """Lines of a function without its docstring."""
    doc = ast.get_docstring(node, clean=False)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return lines - (doc.count("\n") + 1 if doc else 0)


def test_no_file_is_longer_than_the_limit(repository: Path) -> None:
    sizes = {str(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files(repository, "tests")}
    assert {name: lines for name, lines in sizes.items() if lines > FILE_LINES} == {}


def test_no_function_is_longer_than_the_limit(repository: Path) -> None:
    long = [
        f"{path}:{node.name} {length(node)}"
        for path in files(repository, "tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Function) and length(node) > FUNCTION_LINES
    ]
    assert long == []


def test_everything_public_has_a_docstring(repository: Path) -> None:
    bare = []
    for path in files(repository):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not ast.get_docstring(tree) and path.stat().st_size:
            bare.append(str(path))
        for owner in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))]:
            for node in owner.body:
                public = isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
                if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                    bare.append(f"{path.name}:{node.name}")  # type: ignore[union-attr]
    assert bare == []


def test_vague_names_stay_out(repository: Path) -> None:
    vague = {"utils", "helpers", "misc", "manager", "common"}
    assert [path for path in files(repository) if vague & set(path.stem.split("_"))] == []
