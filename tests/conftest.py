"""What all tests share: which of them run, and where the repository lies."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long campaigns to `-m soak`, and what needs a GPU to machines that have one."""
    if not config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("soak")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; the test is skipped where there is none."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("needs the real data of ../shared")
    return folder


@pytest.fixture(scope="session")
def real_models() -> Path:
    """Two real pretrained models as local folders; the test is skipped where they were not made."""
    folder = ROOT / "build" / "real-models"
    if not (folder / "dinov2-small").is_dir():
        pytest.skip("needs the real models that make test writes where ../shared is")
    return folder
