"""The same photos through the extraction loops of thingsvision and clip-retrieval, with a given model.

Both pin versions that do not go together with vlpipe's (numpy < 2 and others), so they are installed without what
they ask for, in a folder of their own; what they import beside of what is used here is replaced by nothing:

    pip install --no-deps --target PEERS thingsvision clip-retrieval torchtyping typeguard numba llvmlite
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from torch import Tensor, nn

ABSENT = (
    "tensorflow", "flask", "flask_restful", "flask_cors", "faiss", "autofaiss", "prometheus_client", "wandb",
    "img2dataset", "sentence_transformers", "multilingual_clip", "embedding_reader", "clip", "keras",
    "keras_cv_attention_models", "all_clip", "fire", "open_flamingo",
)  # fmt: skip
Transform = Callable[[Any], Tensor]  # of a Pillow picture


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds empty modules for what the loops here do not use."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """For those names only."""
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """One that has whatever is asked of it."""
        module: ModuleType = MagicMock(name=spec.name, __path__=[], __spec__=spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def found(folder: Path) -> None:
    """Have both importable from the folder that they are installed in."""
    sys.path.append(str(folder))
    np.AxisError = np.exceptions.AxisError  # type: ignore[attr-defined]  # where NumPy 1 had it
    sys.meta_path.insert(0, _Absent())


def imported() -> None:
    """Import both, which takes seconds."""
    import thingsvision.utils.data  # noqa: F401


class _Model(nn.Module):
    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.encode = encode
        self.out = nn.Identity()

    def forward(self, pixels: Tensor) -> Any:
        """Rows (pictures, width), at a module that can be named."""
        return self.out(self.encode(pixels))


def thingsvision(photos: Path, out: Path, transform: Transform, encode: Any, batch: int, workers: int) -> int:
    """`extract_features` over its own data set and loader, which work in the calling thread, to an .npy file."""
    from thingsvision import get_extractor_from_model
    from thingsvision.utils.data import DataLoader, ImageDataset
    from thingsvision.utils.storing import save_features

    extractor = get_extractor_from_model(_Model(encode), device="cpu", backend="pt")
    data = ImageDataset(root=str(photos), out_path=str(out), backend="pt", transforms=transform)
    loader = DataLoader(dataset=data, batch_size=batch, backend="pt")
    features = extractor.extract_features(batches=loader, module_name="out", flatten_acts=False)
    save_features(features, out_path=str(out), file_format="npy")
    return len(features)


def clip_retrieval(photos: Path, out: Path, transform: Transform, encode: Any, batch: int, workers: int) -> int:
    """Its reader with `workers` processes, mapper, runner and writer; float16, as it writes."""
    from clip_retrieval.clip_inference import mapper
    from clip_retrieval.clip_inference.reader import FilesReader
    from clip_retrieval.clip_inference.runner import Runner
    from clip_retrieval.clip_inference.writer import NumpyWriter

    model = MagicMock()
    model.encode_image = encode
    mapper.load_clip = lambda **_: (model, None, None)
    told: list[int] = []
    logger = MagicMock(side_effect=lambda stats: told.append(stats["sample_count"]))
    Runner(
        lambda sampler: FilesReader(sampler, transform, None, str(photos), batch, workers, enable_text=False),
        lambda: mapper.ClipMapper(True, False, False, False, "model", False, ""),
        lambda part: NumpyWriter(part, str(out), False, True, False, 1),
        lambda part: logger,
        1,
    )(0)
    return sum(told)


PEERS = {"thingsvision": thingsvision, "clip-retrieval": clip_retrieval}
