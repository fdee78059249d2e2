"""Pictures with captions in tar shards (webdataset's layout), as img2dataset packs CC3M, CC12M or LAION."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.folders import PICTURES, is_shown
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.readers import unique_keys
from vlpipe.manifests.shards import Member, Sample, samples

ENDINGS = frozenset(ending.removeprefix(".") for ending in PICTURES)
JSON = "json."
SPLIT = re.compile(r"(?<![a-z])(train|training|val|valid|validation|test)(?![a-z])")
SPLITS = {"training": "train", "valid": "val", "validation": "val"}


class WebdatasetConfig(Config):
    """What a sample's captions are."""

    shards: str = "**/*.tar"  # which files under the root
    captions: list[str] = Field(default=["txt"], min_length=1)  # endings, or keys of the JSON: json.caption
    split: str | None = None  # of all shards; default: the word in a shard's name
    drop_blank: bool = False  # leave out captions that are missing, null or blank, which are errors otherwise


class Webdataset:
    """`00000.tar`, ... with `KEY.jpg` (or another picture), `KEY.txt` and `KEY.json`; nothing is unpacked.

    An image's id is `SHARD/KEY`, where the shard's path has no `.tar`; its texts are `ID#0`, `ID#1`, ... in the
    order of the setting `captions`, each with its field as an attribute. A JSON value may be a text, a number (its
    digits), or a list of them; a .txt file's last line end is no part of its text. Samples without a picture are
    left out; so are hidden and other files. Memory does not grow with the shards.
    """

    Config: ClassVar[type[WebdatasetConfig]] = WebdatasetConfig
    source: ClassVar[str] = "https://github.com/rom1504/img2dataset"
    licence: ClassVar[str] = "images: their owners' terms"
    title: ClassVar[str] = "a folder of webdataset's shards"
    expected: ClassVar[str] = "tar shards (00000.tar) with KEY.jpg, KEY.txt and KEY.json"
    fallback: ClassVar[str | None] = None  # split of a shard whose name has no word for one

    def __init__(self, config: WebdatasetConfig, root: Path | None, folder: Path) -> None:
        self.config = config
        self.layout = Layout(self.title, self.expected, self.source)
        self.root = self.layout.root(root)
        self.shards = sorted(
            path for path in self.root.glob(config.shards) if is_shown(path.name) and path.is_file()
        )
        if not self.shards:
            raise self.layout.refuse(f"'{root}' has no files '{config.shards}'")

    def image_root(self) -> Path:
        """The folder of the shards."""
        return self.root

    def images(self) -> Iterator[Row]:
        """One row a picture, shard by shard; the path says where in the shard it lies."""
        for image_id, split, sample in self._pictures():
            yield {"image_id": image_id, "path": _picture(sample).path(self.root), "split": split}

    def texts(self) -> Iterator[Row]:
        """One row a caption. Raises `VlpipeError` for one that is missing, unless such are left out."""
        for image_id, split, sample in self._pictures():
            for number, (field, text) in enumerate(self.captions(sample)):
                if isinstance(text, str) and text.strip():
                    row = {
                        "text_id": f"{image_id}#{number}",
                        "text": text,
                        "image_id": image_id,
                        "role": "caption",
                    }
                    yield row | {"split": split, "attributes": {"field": field}}
                elif text is not None and not isinstance(text, str):
                    raise VlpipeError(
                        f"sample '{image_id}': {field} is {text!r}; expected a text or a list of texts"
                    )
                elif not self.config.drop_blank:
                    raise VlpipeError(
                        f"sample '{image_id}' has no {field}, or a blank one; name the captions with --set "
                        "'captions=[\"json.caption\"]', or leave such out with --set drop_blank=true"
                    )

    def captions(self, sample: Sample) -> Iterator[tuple[str, Any]]:
        """Field and value of each caption; None for a field that the sample does not have."""
        record = self.record(sample) if any(field.startswith(JSON) for field in self.config.captions) else None
        for field in self.config.captions:
            if field.startswith(JSON):
                value = _found(record, field.removeprefix(JSON))
                yield from ((field, each) for each in (value or [None] if isinstance(value, list) else [value]))
            else:
                member = sample.members.get(field)
                yield field, None if member is None else _text(sample, member)

    def record(self, sample: Sample) -> Any:
        """The sample's JSON, None where it has none. Raises `VlpipeError` for a broken one."""
        member = sample.members.get("json")
        return None if member is None else _json(sample, member)

    def _pictures(self) -> Iterator[tuple[str, str | None, Sample]]:
        for shard in self.shards:
            name = shard.relative_to(self.root).with_suffix("").as_posix()
            word = SPLIT.search(name.lower())
            split = self.config.split or (SPLITS.get(word[1], word[1]) if word else self.fallback)
            for sample in samples(shard):
                if not ENDINGS.isdisjoint(sample.members):
                    yield f"{name}/{sample.key}", split, sample


def _picture(sample: Sample) -> Member:
    endings = [ending for ending in sample.members if ending in ENDINGS]
    if len(endings) > 1:
        raise VlpipeError(
            f"sample '{sample.key}' in '{sample.members[endings[0]].shard}' has two pictures, "
            f".{endings[0]} and .{endings[1]}; expected one"
        )
    return sample.members[endings[0]]


def _text(sample: Sample, member: Member) -> str:
    try:
        return member.read().decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise VlpipeError(
            f"sample '{sample.key}' in '{member.shard}' is not UTF-8 ({error}); pack it again"
        ) from None


def _json(sample: Sample, member: Member) -> Any:
    try:
        text = _text(sample, member)
        return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise VlpipeError(f"sample '{sample.key}' in '{member.shard}': its JSON is broken ({error})") from None


def _found(record: Any, key: str) -> Any:
    """A value under a key, or under keys joined by dots."""
    if isinstance(record, dict) and key in record:
        return record[key]
    first, dot, rest = key.partition(".")
    return _found(record.get(first), rest) if dot and isinstance(record, dict) else None
