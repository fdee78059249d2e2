from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pytest
from skimage.measure import euler_number, label

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.digits import shipped_digits
from vlpipe.manifests.morphology import COLOURS, Stroke, coloured, render, stroke, swell

Grey = npt.NDArray[np.uint8]
PLAIN = {
    "thickthinning": "nothickthinning",
    "swelling": "noswelling",
    "fracture": "nofracture",
    "scaling": "large",
}


@pytest.fixture(scope="module")
def digits() -> list[Stroke]:
    return [stroke(picture) for picture in shipped_digits()["train"].pictures[:60]]


def drawn(digit: Stroke, seed: int = 0, **changed: str) -> Grey:
    return render(digit, **{**PLAIN, **changed}, rng=np.random.default_rng(seed))


def ink(picture: Grey) -> float:
    return float(picture.sum()) / 255


def shape(mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Connected pieces, and pieces less holes."""
    pieces = label(mask, connectivity=2).max()  # type: ignore[no-untyped-call]
    return int(pieces), int(euler_number(mask, connectivity=2))  # type: ignore[no-untyped-call]


def pieces(picture: Grey) -> int:
    return shape(picture > 127)[0]


def extent(picture: Grey) -> int:
    rows, columns = np.nonzero(picture > 127)
    return int(max(np.ptp(rows), np.ptp(columns))) + 1


def test_a_bar_drawn_by_hand_has_its_width_and_place() -> None:
    picture = np.zeros((28, 28), np.uint8)
    picture[4:24, 12:15] = 255  # 3 wide: half a stroke is 1.5, pulled to sqrt(1.5 x 1.07) = 1.27
    bar = stroke(picture)
    assert bar.radius == pytest.approx(1.27, abs=0.07)  # the skeleton's ends are nearer to an edge than 1.5
    half = 1.5 + bar.radius - bar.radius**2 / 1.07  # each edge moves by the change of the mean
    middle = drawn(bar)[14].astype(float) / 255
    assert middle.sum() == pytest.approx(2 * half * 1.1, abs=0.02)
    assert (middle * (np.arange(28) + 0.5)).sum() / middle.sum() == pytest.approx(14 - 0.5 * 1.1, abs=0.2)


def test_thickening_and_thinning_move_each_edge_by_as_much_as_they_say() -> None:
    picture = np.zeros((28, 28), np.uint8)
    picture[4:24, 12:16] = 255
    bar = stroke(picture)
    widths = {
        name: drawn(bar, thickthinning=name)[14].sum() / 255 / 1.1
        for name in ("thinning", "nothickthinning", "thickening")
    }
    assert widths["thickening"] - widths["nothickthinning"] == pytest.approx(1.4, abs=0.02)
    assert widths["nothickthinning"] - widths["thinning"] == pytest.approx(1.4, abs=0.02)


def test_thickening_widens_and_thinning_narrows_every_digit(digits: list[Stroke]) -> None:
    for digit in digits:
        thin, plain, thick = (
            drawn(digit, thickthinning=name) for name in ("thinning", "nothickthinning", "thickening")
        )
        assert ink(thin) < 0.85 * ink(plain)
        assert ink(thick) > 1.25 * ink(plain)
        assert (thick.astype(int) >= plain).all()
        assert (thin.astype(int) <= plain).all()


def test_thinning_keeps_pieces_and_holes(digits: list[Stroke]) -> None:
    from vlpipe.manifests.morphology import WIDTH_STEP, _moved

    for digit in digits:
        assert shape(_moved(digit.field, digit.spine, -WIDTH_STEP) > 0) == shape(digit.field > 0)


def test_natural_widths_come_closer(digits: list[Stroke]) -> None:
    pulled = np.log([digit.radius for digit in digits])
    natural = 2 * pulled - np.log(1.07)
    assert pulled.std() == pytest.approx(natural.std() / 2)
    assert natural.std() == pytest.approx(0.28, abs=0.05)
    assert natural.mean() == pytest.approx(np.log(1.07), abs=0.06)


def test_swelling_adds_ink_in_one_disc_only(digits: list[Stroke]) -> None:
    grown = []
    for digit in digits:
        plain, swollen = drawn(digit), drawn(digit, swelling="swelling")
        changed = np.argwhere(plain != swollen)
        grown.append(ink(swollen) / ink(plain))
        assert np.ptp(changed, axis=0).max() <= 2 * 7 * (digit.radius / 1.07) ** 0.3 * 1.1 + 2
    assert np.mean(grown) > 1.15
    assert min(grown) > 1


def test_swelling_by_hand_magnifies_the_centre_and_leaves_the_rim() -> None:
    coverage = np.zeros((112, 112), np.float32)
    coverage[:, 55:58] = 1
    swollen = swell(coverage, (56, 56), 5.0)
    assert swollen[56].sum() > 4 * coverage[56].sum()  # r = 1 comes to r = 20 (1 / 20)^(1/3), about 7
    assert (swollen[:36] == coverage[:36]).all()
    assert (swollen[:, :36] == coverage[:, :36]).all()


def test_fracture_breaks_most_digits(digits: list[Stroke]) -> None:
    broken, removed = 0, []
    for digit in digits:
        plain, fractured = drawn(digit), drawn(digit, fracture="fracture")
        assert (fractured <= plain).all()  # it only takes ink away
        removed.append(ink(plain) - ink(fractured))
        more_pieces = pieces(fractured) > pieces(plain)
        fewer_holes = shape(fractured > 127)[1] > shape(plain > 127)[1]
        broken += more_pieces or fewer_holes
    assert broken / len(digits) > 0.9
    assert min(removed) > 1


def test_scaling_changes_the_extent_by_as_much_as_it_says(digits: list[Stroke]) -> None:
    ratios = [extent(drawn(digit, scaling="small")) / extent(drawn(digit)) for digit in digits]
    assert np.mean(ratios) == pytest.approx(0.75 / 1.1, abs=0.02)
    area = [ink(drawn(digit, scaling="small")) / ink(drawn(digit)) for digit in digits]
    assert np.mean(area) == pytest.approx((0.75 / 1.1) ** 2, rel=0.02)


def test_colours_are_exact(digits: list[Stroke]) -> None:
    grey = drawn(digits[0])
    seen = {}
    for name in COLOURS:
        picture = coloured(grey, name)
        lit = [bool(picture[..., channel].any()) for channel in range(3)]
        for channel in range(3):
            assert (picture[..., channel] == (grey if lit[channel] else 0)).all()
        seen[name] = lit
    assert seen == {
        "gray": [True, True, True],
        "red": [True, False, False],
        "green": [False, True, False],
        "blue": [False, False, True],
        "cyan": [False, True, True],
        "magenta": [True, False, True],
        "yellow": [True, True, False],
    }


def test_places_depend_on_the_seed_only(digits: list[Stroke]) -> None:
    changed = {"swelling": "swelling", "fracture": "fracture"}
    assert (drawn(digits[0], 3, **changed) == drawn(digits[0], 3, **changed)).all()
    assert (drawn(digits[0], 3, **changed) != drawn(digits[0], 4, **changed)).any()


def test_tiny_and_empty_pictures() -> None:
    dot = np.zeros((28, 28), np.uint8)
    dot[14, 14] = 255
    for values in (PLAIN, {**PLAIN, "swelling": "swelling", "fracture": "fracture", "thickthinning": "thinning"}):
        assert render(stroke(dot), **values, rng=np.random.default_rng(0)).any()
    with pytest.raises(VlpipeError, match="no ink"):
        stroke(np.zeros((28, 28), np.uint8))


def test_without_scikit_image_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vlpipe.manifests.morphology")
    monkeypatch.setitem(sys.modules, "skimage.morphology", None)
    with pytest.raises(VlpipeError, match=r"pip install 'vlpipe\[demo\]'"):
        import vlpipe.manifests.morphology  # noqa: F401
