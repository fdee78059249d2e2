"""Which of torchvision's data sets are read, what their splits are called there, and how their files are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError

TRAIN_TEST = {"train": {"split": "train"}, "test": {"split": "test"}}
THREE = {name: {"split": name} for name in ("train", "val", "test")}
FLAG = {"train": {"train": True}, "test": {"train": False}}
ALL: Mapping[str, Mapping[str, Any]] = {"": {}}  # no published split

# By name: the constructor's arguments for each split of ours.
MEMBERS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "Country211": {"train": {"split": "train"}, "val": {"split": "valid"}, "test": {"split": "test"}},
    "DTD": THREE,
    "EuroSAT": ALL,
    "FER2013": TRAIN_TEST,
    "FGVCAircraft": THREE,
    "FashionMNIST": FLAG,
    "Flowers102": THREE,
    "Food101": TRAIN_TEST,
    "GTSRB": TRAIN_TEST,
    "Imagenette": {"train": {"split": "train"}, "val": {"split": "val"}},
    "KMNIST": FLAG,
    "MNIST": FLAG,
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    "PCAM": THREE,
    "RenderedSST2": THREE,
    "STL10": TRAIN_TEST,
    "SUN397": ALL,
    "SVHN": TRAIN_TEST,
    "StanfordCars": TRAIN_TEST,
    "USPS": FLAG,
}
OWN = {  # read by a data set of vlpipe's own: torchvision would unpickle CIFAR
    "CIFAR10": "cifar10 (the binary version: torchvision reads a pickle)",
    "CIFAR100": "cifar100 (the binary version: torchvision reads a pickle)",
    "Caltech101": "caltech101",
    "Caltech256": "image_folder",
    "ImageFolder": "image_folder",
    "ImageNet": "imagenet",
    "VOCSegmentation": "voc20",
}
NUMBERED = {
    "FER2013": 7,
    "Flowers102": 102,
    "GTSRB": 43,
    "PCAM": 2,
    "SVHN": 10,
    "USPS": 10,
}  # classes without names
FIXED = ("root", "split", "train", "download", "transform", "target_transform", "transforms", "loader")


def check_member(name: str, options: Mapping[str, Any]) -> None:
    """Raise `UnknownNameError` for a set that is not read, `UsageError` for an argument that is set from here."""
    if not name:
        raise UsageError(f"data set 'torchvision' needs a name, torchvision:NAME; known: {', '.join(MEMBERS)}")
    if name in OWN:
        raise UsageError(f"torchvision:{name} is not read through torchvision; build the data set {OWN[name]}")
    if name not in MEMBERS:
        raise UnknownNameError("data set of torchvision that is read here", name, MEMBERS)
    fixed = [key for key in options if key in FIXED]
    if fixed:
        raise UsageError(f"setting 'options' gives '{fixed[0]}', which vlpipe sets itself; expected others")


def open_member(name: str, root: Path, arguments: Mapping[str, Any], where: str) -> Any:
    """The library's own object, nothing downloaded. Raises `VlpipeError` in one line for whatever it raises."""
    from torchvision import datasets

    kind = getattr(datasets, name)
    downloads = {} if name == "FER2013" else {"download": False}
    try:
        return kind(str(root), **downloads, **arguments)
    except TypeError as error:
        raise UsageError(f"torchvision.datasets.{name} does not take these options: {error}") from None
    except (RuntimeError, ValueError, OSError, LookupError, ImportError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise VlpipeError(
            f"torchvision:{name} does not find its files under '{root}' ({said}); expected what "
            f"torchvision.datasets.{name}('{root}', download=True) lays out; published at {where}"
        ) from None


def files_of(opened: Any) -> list[tuple[Path, Any]] | None:
    """Picture files with their class numbers, sorted by path; None where the set has no picture files."""
    for name in ("samples", "_samples"):
        samples = getattr(opened, name, None)
        if samples and isinstance(samples[0][0], str | Path):
            return sorted((Path(path), label) for path, label in samples)
    for name in ("_image_files", "_images"):
        files = getattr(opened, name, None)
        if files and isinstance(files[0], str | Path):
            return sorted((Path(path), label) for path, label in zip(files, opened._labels, strict=True))
    return None


def arrays_of(opened: Any) -> Iterator[tuple[Any, Any]]:
    """Pictures (Pillow) with their class numbers, in the library's order."""
    for number in range(len(opened)):
        yield opened[number]


def class_labels(name: str, opened: Any) -> list[str]:
    """The label of each class number: the library's name of the class, of several the first, else the number."""
    names = getattr(opened, "classes", None)
    if names:
        return [str(each) if isinstance(each, str) else str(each[0]) for each in names]
    return [str(number) for number in range(NUMBERED[name])]
