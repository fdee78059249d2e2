"""Tables from outside, record by record: CSV and TSV, JSON lines, Parquet.

Values are kept to the letter. A number of JSON is the text that stands in the file (2020, never 2020.0), an
integer of Parquet its digits; the words nan, null, None and NA are texts like others.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from vlpipe.foundation.errors import VlpipeError

Record = tuple[int, dict[str, Any]]  # number of the line (Parquet: of the row), from 1; values by column
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".jsonlines", ".ndjson")
READ_ROWS = 16_384
csv.field_size_limit(1 << 26)  # characters of one field: JSON lines have no limit either


def read_records(path: Path) -> Iterator[Record]:
    """All records in the order of the file, in flat memory.

    Raises `VlpipeError` that names file and line: not there, not UTF-8, not the format that its name says.
    """
    if not path.is_file():
        raise VlpipeError(f"table '{path}' does not exist; give a .csv, .tsv, .jsonl or .parquet file")
    readers: dict[str, Callable[[Path], Iterator[Record]]] = {
        **dict.fromkeys(DELIMITERS, _read_csv),
        **dict.fromkeys(JSON_LINES, read_json_lines),
        ".parquet": _read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise VlpipeError(f"table '{path}' ends in '{path.suffix}'; expected one of: {', '.join(readers)}")
    return reader(path)


def read_columns(path: Path) -> list[str]:
    """Column names; of JSON lines, all keys that any record has. Raises `VlpipeError` for a table without rows."""
    names: dict[str, None] = {}
    for _, record in read_records(path):
        names.update(dict.fromkeys(record))
        if path.suffix.lower() not in JSON_LINES:
            break
    if not names:
        raise VlpipeError(f"table '{path}' has no rows; nothing was written")
    return list(names)


def _lines(path: Path) -> Iterator[str]:
    """Decoded here, not by the text layer, which cannot say in which line it failed."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise VlpipeError(
                    f"'{path}' line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
                    "save the table as UTF-8"
                ) from None


def _read_csv(path: Path) -> Iterator[Record]:
    reader = csv.reader(_lines(path), delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if not header:
                header = _header(path, cells)
                continue
            if not cells and len(header) > 1:  # an empty line
                continue
            cells = cells or [""]
            if len(cells) != len(header):
                raise VlpipeError(
                    f"'{path}' line {start} has {len(cells)} fields, the header {len(header)}; "
                    "put texts that hold a delimiter or a line break in double quotes"
                )
            yield start, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise VlpipeError(
            f"'{path}' line {line}: {error}; expected lines that end in LF or CRLF, and texts in double quotes "
            "where they hold a delimiter, a line break or a double quote, which is written twice"
        ) from None


def _header(path: Path, cells: list[str]) -> list[str]:
    twice = [name for name in cells if cells.count(name) > 1]
    if twice or not cells:
        what = f"names column '{twice[0]}' twice" if twice else "is empty"
        raise VlpipeError(f"'{path}' line 1 {what}; expected the column names")
    return cells


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of which every key stands once. Raises `ValueError` where one stands twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key '{twice}' stands twice in one object")
    return record


def read_json_lines(path: Path) -> Iterator[Record]:
    """One JSON object a line, whatever the file's ending; raises as `read_records` does."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str, parse_constant=refuse, object_pairs_hook=unique_keys
    )
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise VlpipeError(f"'{path}' line {number}: {error}; expected one JSON object a line") from None
        if not isinstance(record, dict):
            raise VlpipeError(f"'{path}' line {number} is {line.strip()[:40]}; expected one JSON object a line")
        yield number, record


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(READ_ROWS):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise VlpipeError(f"'{path}' is not a Parquet table that can be read: {error}") from None
