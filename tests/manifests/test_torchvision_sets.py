"""torchvision's own layouts on miniatures: files where there are files, PNGs where not, and no pickles."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.torchvision_sets import MEMBERS, OWN


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "red").save(root / name, format="PNG")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def dtd(root: Path) -> None:
    for split, name in (("train", "striped/s_1.jpg"), ("val", "banded/b_1.jpg"), ("test", "striped/s_2.jpg")):
        put(root, f"dtd/dtd/images/{name}")
        write(root / f"dtd/dtd/labels/{split}1.txt", f"{name}\n")
        write(root / f"dtd/dtd/labels/{split}2.txt", "striped/s_1.jpg\n")
    (root / "dtd/dtd/imdb").mkdir()


def food101(root: Path) -> None:
    lists = {"train": '{"apple_pie": ["apple_pie/2", "apple_pie/10"]}', "test": '{"apple_pie": ["apple_pie/3"]}'}
    put(root, *(f"food-101/images/apple_pie/{n}.jpg" for n in (2, 3, 10)))
    for split, text in lists.items():
        write(root / f"food-101/meta/{split}.json", text)


def pets(root: Path) -> None:
    put(root, *(f"oxford-iiit-pet/images/{name}.jpg" for name in ("Abyssinian_1", "great_pyrenees_2")))
    write(root / "oxford-iiit-pet/annotations/trainval.txt", "great_pyrenees_2 2 2 1\nAbyssinian_1 1 1 1\n")
    write(root / "oxford-iiit-pet/annotations/test.txt", "Abyssinian_1 1 1 1\n")


def aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b/data"
    write(data / "variants.txt", "707-320\nF-16A/B\n")
    write(data / "families.txt", "Boeing 707\nF-16\n")
    for n, split in enumerate(("train", "val", "test")):
        put(data, f"images/{n}.jpg")
        write(data / f"images_variant_{split}.txt", f"{n} F-16A/B\n")
        write(data / f"images_family_{split}.txt", f"{n} F-16\n")


def eurosat(root: Path) -> None:
    put(root, "eurosat/2750/River/River_1.jpg", "eurosat/2750/AnnualCrop/AnnualCrop_1.jpg")


def cars(root: Path) -> None:
    home = root / "stanford_cars"
    put(home, "cars_train/00001.jpg", "cars_test/00001.jpg")
    kind = [("fname", object), ("class", object)]
    (home / "devkit").mkdir()
    for path, number in ((home / "devkit/cars_train_annos.mat", 2), (home / "cars_test_annos_withlabels.mat", 1)):
        rows = np.array([("00001.jpg", number)] * 2, dtype=kind)  # squeezed away where it is one
        rows[1] = ("00002.jpg", 1)
        scipy.io.savemat(path, {"annotations": rows})
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], dtype=object)
    scipy.io.savemat(home / "devkit/cars_meta.mat", {"class_names": names})
    put(home, "cars_train/00002.jpg", "cars_test/00002.jpg")


def made(name: str, root: Path, out: Path, **settings: object) -> Manifest:
    manifest = build(f"torchvision:{name}", root, out, {"templates": ["a {}"], **settings})
    manifest.verify()
    rows = manifest.table("image").to_pylist()
    assert all((manifest.image_root / row["path"]).is_file() for row in rows)
    assert manifest.name == f"torchvision:{name}"
    return manifest


def rows(manifest: Manifest) -> list[tuple[str, str | None, str]]:
    return [(row["image_id"], row["split"], row["label"]) for row in manifest.table("image").to_pylist()]


FILES: list[tuple[str, Callable[[Path], None], list[tuple[str, str | None, str]], list[str]]] = [
    (
        "DTD",
        dtd,
        [
            ("dtd/dtd/images/striped/s_1.jpg", "train", "striped"),
            ("dtd/dtd/images/banded/b_1.jpg", "val", "banded"),
            ("dtd/dtd/images/striped/s_2.jpg", "test", "striped"),
        ],
        ["a striped", "a banded"],
    ),
    (
        "Food101",
        food101,
        [
            ("food-101/images/apple_pie/10.jpg", "train", "apple_pie"),
            ("food-101/images/apple_pie/2.jpg", "train", "apple_pie"),
            ("food-101/images/apple_pie/3.jpg", "test", "apple_pie"),
        ],
        ["a apple pie"],
    ),
    (
        "FGVCAircraft",
        aircraft,
        [
            (f"fgvc-aircraft-2013b/data/images/{n}.jpg", s, "F-16A/B")
            for n, s in enumerate(("train", "val", "test"))
        ],
        ["a 707-320", "a F-16A/B"],
    ),
    (
        "EuroSAT",
        eurosat,
        [
            ("eurosat/2750/AnnualCrop/AnnualCrop_1.jpg", None, "AnnualCrop"),
            ("eurosat/2750/River/River_1.jpg", None, "River"),
        ],
        ["a AnnualCrop", "a River"],
    ),
    (
        "StanfordCars",
        cars,
        [
            ("stanford_cars/cars_train/00001.jpg", "train", "Acura RL Sedan 2012"),
            ("stanford_cars/cars_train/00002.jpg", "train", "AM General Hummer SUV 2000"),
            ("stanford_cars/cars_test/00001.jpg", "test", "AM General Hummer SUV 2000"),
            ("stanford_cars/cars_test/00002.jpg", "test", "AM General Hummer SUV 2000"),
        ],
        ["a AM General Hummer SUV 2000", "a Acura RL Sedan 2012"],
    ),
]


@pytest.mark.parametrize(("name", "publish", "expected", "prompts"), FILES, ids=[entry[0] for entry in FILES])
def test_sets_of_files(
    tmp_path: Path,
    name: str,
    publish: Callable[[Path], None],
    expected: list[tuple[str, str | None, str]],
    prompts: list[str],
) -> None:
    publish(tmp_path / "set")
    manifest = made(name, tmp_path / "set", tmp_path / "m")
    assert rows(manifest) == expected
    assert manifest.table("text")["text"].to_pylist() == prompts
    assert manifest.image_root == tmp_path / "set"


def test_labels_are_those_of_the_whole_set_in_every_split(tmp_path: Path) -> None:
    """DTD's number of a class depends on the classes of its split's list; the name does not."""
    dtd(tmp_path / "set")
    found = {row[1]: row[2] for row in rows(made("DTD", tmp_path / "set", tmp_path / "m"))}
    assert found == {"train": "striped", "val": "banded", "test": "striped"}


def test_pets_of_the_test_list_keep_their_names(tmp_path: Path) -> None:
    pets(tmp_path / "set")
    with pytest.raises(VlpipeError, match=r"same image_id 'oxford-iiit-pet/images/Abyssinian_1\.jpg'"):
        made("OxfordIIITPet", tmp_path / "set", tmp_path / "m")  # one photo in two lists
    found = rows(made("OxfordIIITPet", tmp_path / "set", tmp_path / "m", splits=["train"]))
    assert found == [
        ("oxford-iiit-pet/images/Abyssinian_1.jpg", "train", "Abyssinian"),
        ("oxford-iiit-pet/images/great_pyrenees_2.jpg", "train", "Great Pyrenees"),
    ]


def test_options_of_the_library(tmp_path: Path) -> None:
    aircraft(tmp_path / "set")
    found = rows(made("FGVCAircraft", tmp_path / "set", tmp_path / "m", options={"annotation_level": "family"}))
    assert {label for _, _, label in found} == {"F-16"}
    with pytest.raises(UsageError, match="gives 'download', which vlpipe sets itself"):
        made("FGVCAircraft", tmp_path / "set", tmp_path / "m2", options={"download": True})
    with pytest.raises(UsageError, match=r"does not take these options: .*colour"):
        made("FGVCAircraft", tmp_path / "set", tmp_path / "m2", options={"colour": 1})
    with pytest.raises(UnknownNameError, match="no split of torchvision:FGVCAircraft is named 'dev'"):
        made("FGVCAircraft", tmp_path / "set", tmp_path / "m2", splits=["dev"])


def test_sets_without_files_are_written_as_png(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    raw = tmp_path / "set/FashionMNIST/raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 2), ("t10k", 1)):
        part = pictures[:2] if prefix == "train" else pictures[2:]
        header = struct.pack(">iiii", 2051, count, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + part.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + bytes([9, 0][:count]))
    manifest = made("FashionMNIST", tmp_path / "set", tmp_path / "m")
    assert rows(manifest) == [
        ("train/000000", "train", "Ankle boot"),
        ("train/000001", "train", "T-shirt/top"),
        ("test/000000", "test", "Ankle boot"),
    ]
    assert manifest.image_root == tmp_path / "m"
    for row, picture in zip(manifest.table("image").to_pylist(), pictures, strict=True):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "m" / row["path"])), picture)
    assert manifest.count("text") == 10


def test_stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    # it compares checksums of the published files, which a miniature cannot have
    monkeypatch.setattr(datasets.STL10, "_check_integrity", lambda self: True)
    home = tmp_path / "set/stl10_binary"
    home.mkdir(parents=True)
    picture = np.random.default_rng(0).integers(0, 256, (1, 3, 96, 96), dtype=np.uint8)
    for split in ("train", "test"):
        (home / f"{split}_X.bin").write_bytes(picture.tobytes())
        (home / f"{split}_y.bin").write_bytes(bytes([2]))
    (home / "class_names.txt").write_text("airplane\nbird\n")
    manifest = made("STL10", tmp_path / "set", tmp_path / "m")
    assert rows(manifest) == [("train/000000", "train", "bird"), ("test/000000", "test", "bird")]
    path = tmp_path / "m" / manifest.table("image")["path"][0].as_py()
    assert np.array_equal(np.asarray(Image.open(path)), picture[0].transpose(2, 1, 0))


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    home = tmp_path / "set/gtsrb"
    put(home, "GTSRB/Training/00000/1.ppm", "GTSRB/Training/00001/1.ppm", "GTSRB/Final_Test/Images/9.ppm")
    write(home / "GT-final_test.csv", "Filename;Width;ClassId\n9.ppm;4;42\n")
    manifest = made("GTSRB", tmp_path / "set", tmp_path / "m")
    assert [label for _, _, label in rows(manifest)] == ["0", "1", "42"]
    assert manifest.count("text") == 43


def test_flowers_of_matlab_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda self: True)
    home = tmp_path / "set/flowers-102"
    put(home, *(f"jpg/image_{n:05d}.jpg" for n in (1, 2, 3, 4)))
    scipy.io.savemat(home / "imagelabels.mat", {"labels": np.array([[77, 1, 1, 3]])})
    scipy.io.savemat(home / "setid.mat", {"trnid": [[2, 1]], "valid": [[3]], "tstid": [[4]]})
    found = rows(made("Flowers102", tmp_path / "set", tmp_path / "m", splits=["train"]))
    assert [image_id for image_id, _, _ in found] == [f"flowers-102/jpg/image_0000{n}.jpg" for n in (1, 2)]
    assert [label for _, _, label in found] == ["passion flower", "pink primrose"]


def test_what_is_missing_or_is_a_pickle(tmp_path: Path) -> None:
    with pytest.raises(
        VlpipeError, match=r"does not find its files under .*download=True\) lays out; published at"
    ):
        build("torchvision:DTD", tmp_path, tmp_path / "m")
    with pytest.raises(VlpipeError, match="torchvision:DTD needs --root DIR"):
        build("torchvision:DTD", None, tmp_path / "m")
    for name in ("CIFAR10", "CIFAR100"):
        with pytest.raises(
            UsageError, match=rf"build the data set {name.lower()} \(the binary version: .* a pickle"
        ):
            build(f"torchvision:{name}", tmp_path, tmp_path / "m")
    with pytest.raises(UnknownNameError, match="is named 'Food-101'; did you mean 'Food101'"):
        build("torchvision:Food-101", tmp_path, tmp_path / "m")
    with pytest.raises(UsageError, match="needs a name, torchvision:NAME; known: Country211, DTD"):
        build("torchvision", tmp_path, tmp_path / "m")
    with pytest.raises(UsageError, match="data set 'mad' is one set; name it without ':x'"):
        build("mad:x", tmp_path, tmp_path / "m")
    with pytest.raises(UsageError, match="cannot be imported"):
        build("no.such:Thing", tmp_path, tmp_path / "m")


def test_the_table_of_sets_is_the_librarys() -> None:
    from torchvision import datasets

    assert {name for name in (*MEMBERS, *OWN) if not hasattr(datasets, name)} == set()
