"""POPE: yes-no questions about objects in 500 photos of COCO val2014.

Li et al., "Evaluating Object Hallucination in Large Vision-Language Models", EMNLP 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from vlpipe.manifests.captioned import Captioned, Photo, PhotoConfig, photo_folder, present
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.layouts import Layout

Sampling = Literal["random", "popular", "adversarial"]
SAMPLINGS: tuple[Sampling, ...] = ("random", "popular", "adversarial")
ANSWERS = ("yes", "no")
LAYOUT = Layout(
    "POPE",
    "coco_pope_random.json, coco_pope_popular.json and coco_pope_adversarial.json (a JSON object a line with "
    "question_id, image, text, label), in output/coco/ or not, with COCO's val2014/ or --set images='\"DIR\"'",
    "https://github.com/AoiDragon/POPE (photos: https://cocodataset.org/#download)",
)


class PopeConfig(PhotoConfig):
    """Which of the three samplings of objects that are not there."""

    samplings: list[Sampling] = Field(default_factory=lambda: list(SAMPLINGS), min_length=1)


class Pope(Captioned):
    """500 photos, 3,000 questions a sampling, all of split test; the file of random that the publisher had until
    2023, which LLaVA's scores are of, has 2,910.

    A question is a text of role prompt that belongs to its photo, with the attributes `answer` (yes or no) and
    `sampling`, and the object that it asks for as `object` where it has the published form "Is there a(n) OBJECT
    in the image?". Ids: file names, and `random/0`, ... by the publisher's question_id.
    """

    Config = PopeConfig
    source: ClassVar[str] = LAYOUT.source
    licence: ClassVar[str] = "questions: MIT; photos: their owners' terms (Flickr)"

    def __init__(self, config: PopeConfig, root: Path | None, folder: Path) -> None:
        root = LAYOUT.root(root)
        self.samplings = list(dict.fromkeys(config.samplings))
        names = {name: f"coco_pope_{name}.json" for name in self.samplings}
        files = {name: LAYOUT.need(root, f"output/coco/{file}", file) for name, file in names.items()}
        self.questions = [question for name, path in files.items() for question in _questions(name, path)]
        self.folder = photo_folder(LAYOUT, root, ("val2014",), config)
        photos = [Photo(name, name, "test") for name in dict.fromkeys(name for name, *_ in self.questions)]
        self.photos = present(photos, self.folder, LAYOUT, config.absent)

    def texts(self) -> Iterator[Row]:
        """One row a question, file by file."""
        photos = {photo.id: photo for photo in self.photos}
        for name, text_id, text, about in self.questions:
            if name in photos:
                yield photos[name].text(text_id, text, "prompt", **about)

    def published(self) -> Mapping[str, Mapping[str, int]]:
        """The counts above."""
        return {"images": {"test": 500}, "texts": {"test": 3000 * len(self.samplings)}}


def _questions(sampling: str, path: Path) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """File name, text id, question and attributes of each line."""
    for number, record in LAYOUT.json_lines(path):
        where = f"'{path}' line {number}"
        key, name, text, label = (
            LAYOUT.part(record, part, str, where) for part in ("question_id", "image", "text", "label")
        )
        if label not in ANSWERS:
            raise LAYOUT.refuse(f"{where} has label '{label}', yes or no was looked for")
        about = {"answer": label, "sampling": sampling}
        asked = text.removeprefix("Is there a ").removeprefix("Is there an ")
        if asked != text and asked.endswith(" in the image?"):
            about["object"] = asked.removesuffix(" in the image?")
        yield name, f"{sampling}/{key}", text, about
