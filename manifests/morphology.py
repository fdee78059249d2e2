"""Seeded morphology of handwritten digits: stroke width, swelling, fracture, size, colour.

A digit is seen as a signed distance field at four times its size, so that strokes move by parts of a pixel and
keep smooth edges. Lengths are in pixels of the 28 x 28 picture unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.digits import DEMO

try:
    from scipy.ndimage import convolve, distance_transform_edt, map_coordinates
    from skimage.morphology import skeletonize
    from skimage.transform import resize
except ImportError:
    raise VlpipeError(f"morphology needs scikit-image, which is not installed; {DEMO}") from None

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

SIDE = 28
ZOOM = 4
FINE = SIDE * ZOOM
TYPICAL_RADIUS = 1.07  # half a stroke, the geometric mean over MNIST (log-sd 0.28)
WIDTH_STEP = 0.7  # thickening and thinning move each edge by this much
THINNEST = 0.55  # half the width that thinning always leaves around the skeleton
SWELL_RADIUS = 7.0
SWELL_STRENGTH = 3.0
SWELL_GROWTH = 0.3  # power of the stroke width that the radius grows with
BARS = 3
BAR_WIDTH = 2.0
SCALES = {"large": 1.1, "small": 0.75}
COLOURS = {
    "gray": (1, 1, 1),
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
    "yellow": (1, 1, 0),
}


@dataclass(frozen=True)
class Stroke:
    """A digit ready to be transformed; arrays are (112, 112).

    `field` is the distance to the edge, positive in the ink; `spine` the distance to the skeleton; `points` the
    skeleton's pixels (n, 2) in fine pixels; `joints` which of them are stroke ends or forks; `radius` the mean
    distance from the skeleton to the edge.
    """

    field: Floats
    spine: Floats
    points: npt.NDArray[np.int64]
    joints: Bools
    radius: float


def stroke(picture: npt.NDArray[np.uint8]) -> Stroke:
    """Take a grey picture (28, 28) apart, its width pulled halfway (in the logarithm) to MNIST's mean.

    Natural widths differ so much that without the pull a thick digit and a thickened one look the same.
    Raises `VlpipeError` for a picture without ink.
    """
    fine = resize(picture.astype(np.float32), (FINE, FINE), order=3, preserve_range=True)  # type: ignore[no-untyped-call]
    ink = fine > picture.max() / 2
    if not ink.any():
        raise VlpipeError("a digit's picture has no ink; expected white strokes on black")
    # To the edge between pixels, not to the next pixel's centre: without the half, widths jump at the edge.
    apart = np.where(ink, distance_transform_edt(ink) - 0.5, 0.5 - distance_transform_edt(~ink))
    field = (apart / ZOOM).astype(np.float32)
    skeleton = skeletonize(ink)  # type: ignore[no-untyped-call]
    spine = (distance_transform_edt(~skeleton) / ZOOM).astype(np.float32)
    radius = float(field[skeleton].mean())
    wanted = float(np.sqrt(radius * TYPICAL_RADIUS))
    neighbours = convolve(skeleton.astype(np.int8), np.ones((3, 3), np.int8), mode="constant") - 1
    points = np.argwhere(skeleton)
    joints = neighbours[skeleton] != 2
    return Stroke(_moved(field, spine, wanted - radius), spine, points, joints, wanted)


def _moved(field: Floats, spine: Floats, step: float) -> Floats:
    """Edges moved outwards by `step`; inwards never so far that the skeleton loses its ink."""
    if step >= 0:
        return field + np.float32(step)
    # The old edge bounds the floor: ink is never added where there was none.
    moved: Floats = np.maximum(field + np.float32(step), np.minimum(field, np.float32(THINNEST) - spine))
    return moved


def render(
    digit: Stroke, thickthinning: str, swelling: str, fracture: str, scaling: str, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """One grey picture (28, 28) of a digit with the named values; `rng` places swelling and fractures."""
    step = {"thickening": WIDTH_STEP, "thinning": -WIDTH_STEP}.get(thickthinning, 0.0)
    coverage: Floats = np.clip(_moved(digit.field, digit.spine, step) * ZOOM + 0.5, 0, 1)
    radius = max(digit.radius + step, THINNEST)
    centre = None
    if swelling == "swelling":
        centre = _swelling_centre(digit, rng)
        coverage = swell(coverage, centre, SWELL_RADIUS * (radius / TYPICAL_RADIUS) ** SWELL_GROWTH)
    if fracture == "fracture":
        coverage = fractured(coverage, digit, radius, centre, rng)
    shrink = _shrink(SCALES[scaling])
    grey: npt.NDArray[np.uint8] = np.rint(np.clip(shrink @ coverage @ shrink.T, 0, 1) * 255).astype(np.uint8)
    return grey


def coloured(grey: npt.NDArray[np.uint8], colour: str) -> npt.NDArray[np.uint8]:
    """A grey picture (28, 28) as RGB (28, 28, 3): the grey value in the colour's channels, 0 in the others."""
    return grey[..., None] * np.array(COLOURS[colour], np.uint8)


def swell(coverage: Floats, centre: tuple[int, int], radius: float) -> Floats:
    """Magnify a disc: what lies at distance r of its centre comes from r (r / radius)^(strength - 1)."""
    reach = int(np.ceil(radius * ZOOM))
    (top, bottom), (left, right) = ((max(c - reach, 0), min(c + reach + 1, FINE)) for c in centre)
    rows, columns = np.mgrid[top:bottom, left:right].astype(np.float32)
    rows, columns = rows - centre[0], columns - centre[1]
    factor = np.minimum(np.hypot(rows, columns) / (radius * ZOOM), 1) ** (SWELL_STRENGTH - 1)
    swollen = coverage.copy()
    source = np.stack([centre[0] + rows * factor, centre[1] + columns * factor])
    swollen[top:bottom, left:right] = map_coordinates(coverage, source, order=1, mode="constant")
    return swollen


def _swelling_centre(digit: Stroke, rng: np.random.Generator) -> tuple[int, int]:
    candidates = _away(digit.points, digit.points[digit.joints], 1.5)
    row, column = candidates[rng.integers(len(candidates))]
    return int(row), int(column)


def fractured(
    coverage: Floats, digit: Stroke, radius: float, swollen: tuple[int, int] | None, rng: np.random.Generator
) -> Floats:
    """Cut up to three bars across the stroke, away from its ends, its forks, a swelling and each other."""
    candidates = _away(digit.points, digit.points[digit.joints], 2.5)
    if swollen is not None:
        candidates = _away(candidates, np.array([swollen]), SWELL_RADIUS - 1.5)
    broken = coverage
    for _ in range(BARS):
        at = candidates[rng.integers(len(candidates))]
        broken = np.minimum(broken, 1 - _bar(digit, at, radius))
        candidates = _away(candidates, at[None], 4.0, otherwise_none=True)
        if not len(candidates):
            break
    return broken


def _bar(digit: Stroke, at: npt.NDArray[np.int64], radius: float) -> Floats:
    """Coverage of a bar across the stroke at one skeleton pixel, long enough to reach both edges."""
    near = digit.points[np.abs(digit.points - at).max(axis=1) <= 2 * ZOOM]
    down, right = (near - near.mean(axis=0)).T
    turn = 0.5 * np.arctan2(2 * down @ right, down @ down - right @ right)  # of the longest axis, from downwards
    rows, columns = np.ogrid[:FINE, :FINE]
    forward = (rows - at[0]) * np.cos(turn) + (columns - at[1]) * np.sin(turn)
    sideward = (columns - at[1]) * np.cos(turn) - (rows - at[0]) * np.sin(turn)
    local = float(digit.field[at[0], at[1]]) + radius - digit.radius
    depth = np.minimum(BAR_WIDTH / 2 * ZOOM - np.abs(forward), (local + 1.2) * ZOOM - np.abs(sideward))
    bar: Floats = np.clip(depth + 0.5, 0, 1).astype(np.float32)
    return bar


def _away(
    points: npt.NDArray[np.int64], others: npt.NDArray[np.int64], distance: float, otherwise_none: bool = False
) -> npt.NDArray[np.int64]:
    """The points at least `distance` from all others; when there are none, the farthest (or none at all)."""
    if not len(others):
        return points
    gaps = np.sqrt(((points[:, None] - others[None]) ** 2).sum(axis=2)).min(axis=1)
    far: npt.NDArray[np.int64] = points[gaps >= distance * ZOOM]
    return far if len(far) or otherwise_none else np.asarray(points[gaps == gaps.max()])


@lru_cache(maxsize=8)
def _shrink(scale: float) -> Floats:
    """(28, 112): each coarse pixel's mean over the fine pixels that it covers, after scaling about the centre."""
    edges = (np.arange(SIDE + 1) - SIDE / 2) / scale * ZOOM + FINE / 2
    low, high = edges[:-1, None], edges[1:, None]
    fine = np.arange(FINE)[None]
    covered = np.clip(np.minimum(high, fine + 1) - np.maximum(low, fine), 0, None)
    shares: Floats = (covered / (high - low)).astype(np.float32)
    return shares
