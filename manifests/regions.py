"""What a region is: boxes, or a mask as run lengths, in pixels of the upright original.

Boxes are `x0, y0, x1, y1` with x to the right and y down from the top left corner; the boxes of one region are
one target, their union. Run lengths are COCO's uncompressed ones: column after column from the left, the first
run is outside of the mask (0 long where the first pixel is inside), then inside and outside in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.errors import VlpipeError

CORNERS = 4
MASK = ("height", "width", "counts")


def run_lengths(mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The column `mask` of a region, from (height, width) booleans. Raises `VlpipeError` for another shape."""
    if mask.ndim != 2 or not mask.size:
        raise VlpipeError(f"a mask of shape {mask.shape}; expected (height, width), neither of them 0")
    flat = mask.astype(bool).ravel(order="F")
    turns = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(turns, prepend=0, append=mask.size).tolist()
    return {"height": mask.shape[0], "width": mask.shape[1], "counts": [0, *counts] if flat[0] else counts}


def mask_pixels(mask: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """The column `mask` of a region as (height, width) booleans, True inside."""
    counts = np.asarray(mask["counts"])
    inside = np.arange(len(counts)) % 2 == 1
    pixels = np.repeat(inside, counts).reshape((mask["height"], mask["width"]), order="F")
    return np.asarray(pixels, dtype=bool)


def checked_region(row: Mapping[str, Any]) -> None:
    """Raise `VlpipeError` for a region of neither image nor text, or of not exactly one of boxes and mask."""
    if row.get("text_id") is None and row.get("image_id") is None:
        raise VlpipeError("columns 'text_id' and 'image_id' are both missing; a region belongs to one, or to both")
    if (row.get("boxes") is None) == (row.get("mask") is None):
        what = "both missing" if row.get("boxes") is None else "both given"
        raise VlpipeError(f"columns 'boxes' and 'mask' are {what}; a region has one of them")


def checked_boxes(value: Any) -> list[list[float]] | None:
    """Boxes as floats. Raises `VlpipeError` for what is no list of boxes, and for a box with swapped corners."""
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise VlpipeError(f"column 'boxes' is {value!r}; expected a list of boxes [x0, y0, x1, y1], at least one")
    return [_box(box) for box in value]


def _box(box: Any) -> list[float]:
    if (
        not isinstance(box, Sequence)
        or len(box) != CORNERS
        or not all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in box)
    ):
        raise VlpipeError(f"column 'boxes' holds {box!r}; expected four finite numbers [x0, y0, x1, y1]")
    x0, y0, x1, y1 = box
    if x1 < x0 or y1 < y0:
        raise VlpipeError(
            f"column 'boxes' holds {list(box)}, which ends before it begins; expected [x0, y0, x1, y1] in pixels, "
            "not [x, y, width, height]"
        )
    return [float(x) for x in box]


def checked_mask(value: Any) -> dict[str, Any] | None:
    """A mask to the letter. Raises `VlpipeError` for another form, and for runs that do not fill the picture."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != set(MASK):
        raise VlpipeError(f"column 'mask' is {str(value)[:60]}; expected a table of {', '.join(MASK)}")
    height, width, counts = (value[name] for name in MASK)
    numbers = [height, width, *counts] if isinstance(counts, Sequence) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise VlpipeError("column 'mask' holds something else than whole numbers from 0; expected run lengths")
    if height * width == 0 or sum(counts) != height * width:
        raise VlpipeError(
            f"column 'mask': runs of {sum(counts)} pixels for {height} x {width}; they must fill the picture"
        )
    return {"height": height, "width": width, "counts": list(counts)}
