"""Every rule of the filter turns down what it should (TPC, appendix B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from vlpipe.derive.filters import Filter, Nearness, length_fits, new_names, words
from vlpipe.derive.memory import Memory
from vlpipe.extract.contracts import TextItem
from vlpipe.foundation.errors import UsageError

CAPTION = "A boy in a Nash shirt plays near Seattle ."


class Fixed:
    """A nearness that is written down."""

    def __init__(self, cosines: dict[str, float]) -> None:
        self.known = cosines

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [self.known[view] for view, _ in pairs]


@pytest.mark.parametrize(("count", "fits"), [(0, False), (4, False), (5, True), (30, True), (31, False)])
def test_length_counts_words_from_5_to_30(count: int, fits: bool) -> None:
    text = " , ".join(["dog"] * count) + " ."
    assert words(text) == count
    assert length_fits(text, 5, 30) is fits


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("A child plays near seattle .", []),
        ("The boy wears a NASH shirt in Seattle .", []),
        ("A boy plays near Boston .", ["Boston"]),
        ("Boston is where a boy plays .", ["Boston"]),
        ("Playing near Seattle , a boy in a shirt .", []),
        ("Nash's boy plays . Children watch .", []),
        ("A boy plays . Then Michael watches .", ["Michael"]),
    ],
)
def test_names_must_be_in_the_caption(view: str, names: list[str]) -> None:
    assert new_names(view, CAPTION) == names


def test_the_first_broken_rule_is_named() -> None:
    near = {"a boy plays in a park": 0.25, "a dog plays in a park": 0.2499}
    rules = Filter(5, 30, 0.25, Fixed(near))  # type: ignore[arg-type]
    views = ["a boy", "a boy plays near Boston today", *near]
    assert rules.faults(views, [CAPTION] * 4) == ["length", "name", "", "cosine"]
    assert Filter(5, 30, 0.25).faults([*near], [CAPTION] * 2) == ["", ""]
    assert rules.faults([], []) == []


def test_cosines_are_those_of_the_encoder_and_are_kept(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.sqlite")
    nearness = Nearness("bundled:mad-clip", {"device": "cpu"}, memory)
    pairs = [("3-red-large", "3-red"), ("7-small", "3-red"), ("3-red", "3-red")]
    vectors = {}
    for text in {text for pair in pairs for text in pair}:
        batch = nearness.encoder.collate([nearness.encoder.prepare(TextItem("", text))])
        vectors[text] = nearness.encoder.encode(batch, ("pooled",))["pooled"].numpy()[0]
    right = [
        float(np.dot(vectors[a], vectors[b]) / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))
        for a, b in pairs
    ]
    assert nearness.cosines(pairs) == pytest.approx(right, abs=1e-6)
    assert right[0] > right[1]
    again = Nearness("bundled:mad-clip", {"device": "cpu"}, memory)
    again.encoder = None  # type: ignore[assignment]
    assert again.cosines(pairs) == nearness.cosines(pairs)


def test_an_encoder_of_pictures_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vlpipe.extract.encoders.bundled import Bundled

    monkeypatch.setattr(Bundled, "sides", lambda self: ("image",))
    with pytest.raises(UsageError, match="encodes no texts"):
        Nearness("bundled:mad-clip", {}, Memory(tmp_path / "m.sqlite"))
