"""The sample store, as a module that tests use."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def beside(name: str) -> Any:
    """A module of this folder."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample() -> Any:
    module = beside("sample_store")
    module.SCRIPT = HERE / "sample_store.py"
    return module


@pytest.fixture(scope="session")
def damage() -> Any:
    return beside("damage")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "m" / "tiny.image.zarr"


@pytest.fixture(scope="session")
def written_once(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("written") / "full.zarr"
    sample.fill(sample.open_writer(path), status=sample.statuses(failed=[9], cut=[20]))
    return path


@pytest.fixture
def full(written_once: Path, store: Path) -> Path:
    """The whole sample, with row 9 failed and row 20 cut."""
    shutil.copytree(written_once, store)
    return store


Contents = dict[str, bytes]


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], Contents]:
    """All files of a store by name, but for when it was made."""

    def read(store: Path) -> Contents:
        found = {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}
        root = found["zarr.json"].decode()
        own = json.loads(root)
        del own["attributes"]["vlpipe"]["created"], own["attributes"]["vlpipe"]["checksum"]
        return {**found, "zarr.json": json.dumps(own).encode()}

    return read
