"""What the packaging promises, compared with the disk."""

from __future__ import annotations

import tomllib
from pathlib import Path


def settings(root: Path) -> dict[str, list[str]]:
    with (root / "pyproject.toml").open("rb") as file:
        found: dict[str, list[str]] = tomllib.load(file)["tool"]["setuptools"]
    return found


def test_every_package_on_disk_is_in_the_list(repository: Path) -> None:
    apart = {"tests", "build", "benchmarks", "dist"}
    on_disk = {
        ".".join(("vlpipe", *path.parent.relative_to(repository).parts))
        for path in repository.rglob("__init__.py")
        if not path.relative_to(repository).parts[0].startswith(".")
        and path.relative_to(repository).parts[0] not in apart
    }
    assert on_disk | {"vlpipe"} == set(settings(repository)["packages"])


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    package_roots = {name.split(".")[1] for name in settings(repository)["packages"] if "." in name}
    bare = {p.parent for root in package_roots for p in (repository / root).rglob("*.py")}
    assert [folder for folder in bare if not (folder / "__init__.py").exists()] == []


def test_the_root_holds_one_module(repository: Path) -> None:
    assert [path.name for path in repository.glob("*.py")] == ["pipeline.py"]


def test_package_data_patterns_match_files(repository: Path) -> None:
    data: dict[str, list[str]] = settings(repository)["package-data"]  # type: ignore[assignment]
    for package, patterns in data.items():
        folder = repository.joinpath(*package.split(".")[1:])
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"
