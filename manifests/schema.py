"""The columns of a manifest's tables, and what a row must hold to be let in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.manifests.regions import CORNERS, checked_boxes, checked_mask, checked_region

ROLES = ("caption", "hard_negative", "prompt", "phrase")
NAMED_ROLES = ("perturbed", "view")  # written `view:NAME`
ATTRIBUTES = pa.map_(pa.string(), pa.string())
BOXES = pa.list_(pa.list_(pa.float64(), CORNERS))
MASK = pa.struct([("height", pa.int64()), ("width", pa.int64()), ("counts", pa.list_(pa.int64()))])
Kind = Literal["image", "text", "region"]
Values = list[Any]


@dataclass(frozen=True)
class Table:
    """One Parquet file of a manifest. A column that is not nullable must be given in every row.

    An optional table without rows has no file, and no part in the manifest's digest.
    """

    kind: Kind
    schema: pa.Schema
    optional: bool = False

    @property
    def name(self) -> str:
        """'images', 'texts' or 'regions'."""
        return f"{self.kind}s"

    @property
    def file(self) -> str:
        """The file's name in the manifest's folder."""
        return f"{self.name}.parquet"

    @property
    def step(self) -> int:
        """Rows of a row group, and of one step of a pass: fewer where a row may be a mask of thousands of runs."""
        return 256 if self.kind == "region" else 16_384

    @property
    def id(self) -> str:
        """The column that names a row, once."""
        return f"{self.kind}_id"

    @cached_property
    def required(self) -> dict[str, bool]:
        """Column names, in order, and whether every row must give the column."""
        return {field.name: not field.nullable for field in self.schema}

    def check_columns(self, names: Mapping[str, Any] | tuple[str, ...]) -> None:
        """Raise `UnknownNameError`, with the nearest name, for a column that the table does not have."""
        for name in names:
            if name not in self.required:
                raise UnknownNameError(f"column of {self.file}", str(name), self.required)


def _string(name: str, *, required: bool = False) -> pa.Field:
    return pa.field(name, pa.string(), nullable=not required)


IMAGES = Table(
    "image",
    pa.schema(
        [
            _string("image_id", required=True),
            _string("path", required=True),
            _string("split"),
            _string("label"),
            pa.field("attributes", ATTRIBUTES),
        ]
    ),
)
TEXTS = Table(
    "text",
    pa.schema(
        [
            _string("text_id", required=True),
            _string("text", required=True),
            _string("image_id"),
            _string("role", required=True),
            _string("source_text_id"),
            _string("group_id"),
            _string("split"),
            pa.field("attributes", ATTRIBUTES),
        ]
    ),
)
REGIONS = Table(
    "region",
    pa.schema(
        [
            _string("region_id", required=True),
            _string("image_id"),
            _string("text_id"),
            _string("label"),
            pa.field("boxes", BOXES),
            pa.field("mask", MASK),
            pa.field("attributes", ATTRIBUTES),
        ]
    ),
    optional=True,
)
TABLES: Mapping[Kind, Table] = {"image": IMAGES, "text": TEXTS, "region": REGIONS}


def check_role(role: str) -> None:
    """Raise `UnknownNameError` for a role outside the grammar: a plain one, or `perturbed:NAME`, `view:NAME`."""
    kind, colon, name = role.partition(":")
    if role in ROLES or (kind in NAMED_ROLES and colon and name.strip()):
        return
    raise UnknownNameError("text role", role, [*ROLES, *(f"{kind}:NAME" for kind in NAMED_ROLES)])


def row_values(table: Table, row: Mapping[str, Any], number: int) -> Values:
    """A row's values in column order, to the letter; `number` counts rows from 1, for the messages.

    Raises `VlpipeError` that names table, row and column: unknown or missing column, a value that is not
    text, is blank, or holds half of a surrogate pair, an unknown role, a region without a place.
    """
    try:
        if not row.keys() <= table.required.keys():
            table.check_columns(row)
        values = [_value(name, row.get(name), required) for name, required in table.required.items()]
        if "role" in row:
            check_role(row["role"])
        if table is REGIONS:
            checked_region(row)
    except VlpipeError as error:
        named = row.get(table.id)
        name = f" ({table.id} {named!r})" if isinstance(named, str) else ""
        raise VlpipeError(f"{table.name} row {number}{name}: {error}") from None
    return values


def _value(column: str, value: Any, required: bool) -> Any:
    if column in CHECKS:
        return CHECKS[column](value)
    if value is None:
        if required:
            raise VlpipeError(f"column '{column}' is missing; every row needs it")
        return None
    _check_text(column, value)
    if not value or value.isspace():
        raise VlpipeError(f"column '{column}' is blank; " + ("give text" if required else "leave it null"))
    return value


def _check_text(column: str, value: Any) -> None:
    if not isinstance(value, str):
        raise VlpipeError(
            f"column '{column}' is {value!r} ({type(value).__name__}); expected text: write numbers as the "
            "text that is meant"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise VlpipeError(
            f"column '{column}' holds half of a surrogate pair (\\u{ord(value[error.start]):x} at character "
            f"{error.start}), which no UTF-8 file can hold; decode the source again or remove it"
        ) from None


def _attributes(value: Any) -> list[tuple[str, str]]:
    """Sorted, so that the order in which they were written down is no part of the manifest's identity."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise VlpipeError(f"column 'attributes' is {value!r}; expected a table of texts by name")
    for key, item in value.items():
        _check_text("attributes", key)
        _check_text(f"attributes.{key}", item)
    return sorted(value.items())


CHECKS: Mapping[str, Callable[[Any], Any]] = {  # columns that are no text
    "attributes": _attributes,
    "boxes": checked_boxes,
    "mask": checked_mask,
}
