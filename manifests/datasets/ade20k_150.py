"""ADE20K-150: the scene parsing benchmark's 150 classes of stuff and things.

Zhou, Zhao, Puig, Fidler, Barriuso and Torralba, "Scene Parsing through ADE20K Dataset", CVPR 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vlpipe.manifests.classes import ClassConfig, Classes
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.folders import pictures_in
from vlpipe.manifests.label_maps import class_regions
from vlpipe.manifests.layouts import Layout

NAMES = "objectInfo150.txt"
SCENES = "sceneCategories.txt"
SPLITS = {"train": "training", "val": "validation"}
IGNORED = (0,)  # other objects: not evaluated
LAYOUT = Layout(
    "ADE20K-150",
    "ADEChallengeData2016/ with images/training/*.jpg, images/validation/*.jpg, annotations/ with the same "
    f"names as .png, and {NAMES}",
    "http://sceneparsing.csail.mit.edu",
)


class Ade20k150Config(ClassConfig):
    """Prompts and superclasses of the 150 classes."""


class Ade20k150:
    """20,210 pictures train, 2,000 val as published; the test pictures have no published maps and are no rows.

    A picture has no label of its own; its regions have: one a class, the mask of all its pixels. Labels are the
    publisher's names with their synonyms (`building, edifice`); prompts take the first. The scene, where
    sceneCategories.txt is there, is the attribute `scene`. Ids are file names without ending.
    """

    Config = Ade20k150Config
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "images: non-commercial research and education; annotations: BSD 3-Clause"

    def __init__(self, config: Ade20k150Config, root: Path | None, folder: Path) -> None:
        self.root = LAYOUT.need(LAYOUT.root(root), f"ADEChallengeData2016/{NAMES}", NAMES).parent
        self.labels = _labels(self.root / NAMES)
        for kind in ("images", "annotations"):
            for name in SPLITS.values():
                LAYOUT.need(self.root, f"{kind}/{name}")
        self.scenes = _scenes(self.root / SCENES)
        words = {label: label.split(",")[0].strip() for label in self.labels.values()}
        self.classes = Classes.configured(config, words)

    def image_root(self) -> Path:
        """The folder of the challenge."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, by file name."""
        for split, name in SPLITS.items():
            for file in pictures_in(self.root / "images" / name):
                image_id = Path(file).stem
                row: Row = {"image_id": image_id, "path": f"images/{name}/{file}", "split": split}
                scene = self.scenes.get(image_id)
                yield row if scene is None else {**row, "attributes": {"scene": scene}}

    def texts(self) -> Iterator[Row]:
        """The classes' prompts."""
        return self.classes.prompts()

    def regions(self) -> Iterator[Row]:
        """One row a class and picture."""
        for name in SPLITS.values():
            for file in pictures_in(self.root / "images" / name):
                drawn = self.root / "annotations" / name / Path(file).with_suffix(".png")
                picture = self.root / "images" / name / file
                yield from class_regions(drawn, picture, Path(file).stem, self.labels, IGNORED)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """Pictures by split."""
        return {"images": {"train": 20_210, "val": 2_000}}


def _labels(path: Path) -> dict[int, str]:
    """Name by class number: a table with tabs, whose header names the columns Idx and Name."""
    header, *rows = ([cell.strip() for cell in line.split("\t")] for line in LAYOUT.entries(path))
    if not {"Idx", "Name"} <= set(header):
        raise LAYOUT.refuse(f"'{path}' has the columns {', '.join(header)}; Idx and Name were looked for")
    index, name = header.index("Idx"), header.index("Name")
    labels = {}
    for row in rows:
        if len(row) != len(header) or not row[index].isdecimal() or not row[name] or int(row[index]) in labels:
            raise LAYOUT.refuse(
                f"'{path}' has the line '{' '.join(row)[:40]}'; a number, once, and a name go there"
            )
        labels[int(row[index])] = row[name]
    if not labels:
        raise LAYOUT.refuse(f"'{path}' names no class")
    return labels


def _scenes(path: Path) -> dict[str, str]:
    """Scene by image id: lines `ADE_train_00000001 airport_terminal`."""
    if not path.is_file():
        return {}
    pairs = (line.split(maxsplit=1) for line in LAYOUT.entries(path))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
