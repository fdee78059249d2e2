"""A folder of pictures with one JSON or JSON lines file of captions, whatever its keys are called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.folders import is_shown
from vlpipe.manifests.layouts import Layout
from vlpipe.manifests.readers import JSON_LINES, read_json_lines, unique_keys
from vlpipe.manifests.tables import TextRows, image_rows

EXPECTED = (
    "expected images/ and one .json or .jsonl file beside it: a list of records like "
    '{"image": "a.jpg", "captions": ["...", ...]}, or one object {"a.jpg": ["...", ...]}'
)
ENDINGS = (".json", *JSON_LINES)
Entry = tuple[str, dict[str, Any]]  # where a record stands, and the record


class FolderJsonConfig(Config):
    """What the files and keys are called."""

    file: str | None = None  # default: the one .json or .jsonl file under the root
    images: str = "images"  # the pictures' folder under the root
    records: str | None = None  # the key of the list of records, where the JSON is an object that has it
    image: str = "image"  # keys of a record
    captions: str = "captions"  # a text, or a list of texts
    id: str | None = None  # default: the picture's name
    split: str = "split"
    drop_blank: bool = False  # leave out captions that are missing, null or blank, which are errors otherwise


class FolderJson:
    """Image ids are file names as they stand in the file; texts are `IMAGE#0`, `IMAGE#1`, ... in its order.

    An image may stand in several records, one a caption. A JSON file is held in memory whole; JSON lines are not,
    but cost some hundred bytes an image. Numbers are the digits that stand there.
    """

    Config = FolderJsonConfig
    source: ClassVar[str] = "a folder of pictures with a JSON file of captions"
    licence: ClassVar[str] = "unknown"

    def __init__(self, config: FolderJsonConfig, root: Path | None, folder: Path) -> None:
        root = Layout("folder_json", EXPECTED.removeprefix("expected ")).root(root)
        self.photos = root / config.images
        if not self.photos.is_dir():
            raise VlpipeError(f"'{self.photos}' is no folder; {EXPECTED}; or say --set 'images=\"FOLDER\"'")
        self.file = JsonFile(root / config.file if config.file is not None else _only_file(root), config.records)
        self.drop_blank = config.drop_blank
        shared = {"image_id": config.id or config.image, "split": config.split}
        self.image_keys = {"path": config.image, **shared}
        self.text_keys = {"text": config.captions, **shared}
        needed = {"image": config.image, "captions": config.captions, "id": config.id}
        self.file.check_keys({setting: key for setting, key in needed.items() if key is not None})

    def image_root(self) -> Path:
        """The pictures' folder."""
        return self.photos

    def images(self) -> Iterator[Row]:
        """One row a picture, where it stands first. Raises `VlpipeError` where it has another split later."""
        return image_rows(Renamed(self.file, self.image_keys), repeats=True)

    def texts(self) -> Iterator[Row]:
        """One row a caption. Raises `VlpipeError` where one is absent, unless such are left out."""
        return iter(TextRows(Renamed(self.file, self.text_keys), self.drop_blank, "--set drop_blank=true"))


class JsonFile:
    """Records of a JSON file (a list, an object of captions by image, an object with a list) or of JSON lines."""

    def __init__(self, path: Path, records: str | None) -> None:
        self.path = path
        self.loaded = None if path.suffix.lower() in JSON_LINES else _loaded(path, records)

    def entries(self) -> Iterator[Entry]:
        """Where each record stands, and the record. Raises `VlpipeError` for what is no record."""
        if self.loaded is None:
            yield from ((f"'{self.path}' line {number}", record) for number, record in read_json_lines(self.path))
            return
        for number, record in enumerate(self.loaded, start=1):
            where = f"'{self.path}' record {number}"
            if not isinstance(record, dict):
                raise VlpipeError(f"{where} is {str(record)[:40]}; {EXPECTED}")
            yield where, record

    def check_keys(self, keys: Mapping[str, str]) -> None:
        """Raise `VlpipeError` where there is no record, or the first lacks the key of a setting."""
        where, first = next(self.entries(), ("", {}))
        if not where:
            raise VlpipeError(f"'{self.path}' has no records; {EXPECTED}")
        for setting, key in keys.items():
            if key not in first:
                raise VlpipeError(
                    f"{where} has no key '{key}', but {', '.join(first)}; name the right one with "
                    f"--set '{setting}=\"KEY\"'"
                )


@dataclass(frozen=True)
class Renamed:
    """A file's records under the manifest's column names."""

    file: JsonFile
    keys: Mapping[str, str]

    def records(self) -> Iterator[Entry]:
        """Where each record stands, and its values."""
        for where, record in self.file.entries():
            yield where, {name: record.get(key) for name, key in self.keys.items()}


def _only_file(root: Path) -> Path:
    files = (path for path in root.iterdir() if is_shown(path.name) and path.is_file())
    found = sorted(path for path in files if path.suffix.lower() in ENDINGS)
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:3])
        what = (
            f"{len(found)} JSON files ({names}); name one with --set 'file=\"NAME\"'" if found else "no JSON file"
        )
        raise VlpipeError(f"'{root}' holds {what}; {EXPECTED}")
    return found[0]


def _loaded(path: Path, records: str | None) -> list[Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        found = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=unique_keys)
    except OSError as error:
        raise VlpipeError(f"'{path}' cannot be read: {error.strerror}; {EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        raise VlpipeError(f"'{path}' is not JSON: {error}") from None
    if records is not None:
        found = found.get(records) if isinstance(found, dict) else None
    elif isinstance(found, dict) and all(isinstance(value, str | list) for value in found.values()):
        return [{"image": name, "captions": captions} for name, captions in found.items()]
    if not isinstance(found, list):
        raise VlpipeError(
            f"'{path}' holds no list of records; {EXPECTED}; --set 'records=\"KEY\"' names a list's key"
        )
    return found
