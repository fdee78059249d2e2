"""Deletion takes out the stated share of a kind's tokens, and nothing else that carries meaning."""

from __future__ import annotations

import numpy as np
import pytest

from vlpipe.derive.deletion import delete, pick
from vlpipe.derive.spans import KINDS, Kind, Span, core_spans, find_spans, locate
from vlpipe.derive.tagging import tag

MARKS = {",", "and", "or", "but"}


def said(caption: str, spans: list[Span]) -> list[str]:
    return [span.text(caption, tag(caption)) for span in spans]


@pytest.mark.parametrize(
    ("caption", "kind", "spans"),
    [
        ("Two small brown dogs run .", "attributes", ["small", "brown"]),
        ("Two small brown dogs run .", "counts", ["Two"]),
        ("A dark blue car is very dirty .", "attributes", ["dark blue", "is very dirty"]),
        ("A curly haired dog eats a hot dog", "attributes", ["curly haired"]),
        ("A man is holding a ball in front of a house .", "relations", ["is holding", "in front of"]),
        ("A smiling man stands next to a wall .", "relations", ["next to"]),
        ("A group of people and a few cows", "counts", ["A group of", "a few"]),
        ("Dogs bark loudly .", "relations", []),
        ("two of them, one in red", "counts", []),
    ],
)
def test_spans_of_a_kind(caption: str, kind: Kind, spans: list[str]) -> None:
    assert said(caption, find_spans(caption, kind)) == spans


@pytest.mark.parametrize(
    ("caption", "kind", "left"),
    [
        ("A black and white dog runs .", "attributes", "A dog runs ."),
        ("A man in black is jumping .", "attributes", "A man is jumping ."),
        ("A big , red ball", "attributes", "A ball"),
        ("An orange ball", "attributes", "An ball"),  # nothing is written anew (C.5)
        ("Two dogs, one big.", "counts", "Dogs, one big."),
        ("A dog is wet and happy .", "attributes", "A dog ."),
        ("A man holds a ball on a roof", "relations", "A man a ball a roof"),
        ("Face down in shallow , reflective water .", "attributes", "Face down in water ."),
        ("A dog snaps at a red and black object .", "attributes", "A dog snaps at a object ."),
        ("A dog snaps at red and black objects .", "attributes", "A dog snaps at objects ."),
        ("A woman in red , a man", "attributes", "A woman , a man"),
        ("A man in red and a woman in blue", "attributes", "A man and a woman"),
        ("Red", "attributes", "Red"),  # a text cannot be empty
        ("A dog", "counts", "A dog"),
    ],
)
def test_all_of_a_kind_deleted(caption: str, kind: Kind, left: str) -> None:
    spans = find_spans(caption, kind)
    assert delete(caption, spans, spans).text == left


def test_a_core_view_mends_its_articles_and_keeps_predicates() -> None:
    caption = "An orange ball is red ."
    spans = core_spans(caption)
    assert said(caption, spans) == ["orange"]
    assert delete(caption, spans, spans, articles=True).text == "A ball is red ."


def test_the_share_is_reached_by_the_fewest_spans_of_one_draw() -> None:
    spans = [Span(at, at + 1 + at % 3) for at in range(0, 40, 4)]
    total = sum(map(len, spans))
    order = [spans[at] for at in np.random.default_rng([3, 7]).permutation(len(spans))]
    for share in (0.1, 0.3, 0.5, 0.7, 1.0):
        count = next(n for n in range(len(spans) + 1) if sum(map(len, order[:n])) >= share * total - 1e-9)
        assert pick(spans, share, [3, 7]) == sorted(order[:count])
    assert set(pick(spans, 0.3, [3, 7])) <= set(pick(spans, 0.7, [3, 7]))
    assert pick(spans, 0.3, [3, 7]) != pick(spans, 0.3, [4, 7])
    assert pick([], 0.5, [0]) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_real_captions_lose_the_stated_share_and_nothing_else(
    real_captions: list[str], kind: Kind, share: float
) -> None:
    changed = 0
    for number, caption in enumerate(real_captions):
        spans = find_spans(caption, kind)
        chosen = pick(spans, share, [number])
        deleted = delete(caption, spans, chosen)
        if not chosen:
            assert (deleted.text, deleted.removed, deleted.cleaned) == (caption, (), ())
            continue
        changed += 1
        total = sum(map(len, spans))
        assert deleted.removed_tokens >= share * total - 1e-9
        assert deleted.removed_tokens - max(map(len, chosen)) < share * total
        assert all(text in caption for text in deleted.removed)
        assert all(word.lower() in MARKS or word_is_preposition(caption, word) for word in deleted.cleaned)
        gone = [word for text in deleted.removed for word in words(text)] + list(map(str.lower, deleted.cleaned))
        assert sorted(words(deleted.text) + gone) == sorted(words(caption))
        assert in_order(words(deleted.text), words(caption))
        assert "  " not in deleted.text
    assert changed > {"attributes": 100, "relations": 180, "counts": 40}[kind]


def words(text: str) -> list[str]:
    return [token.text.lower() for token in tag(text)]


def in_order(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def word_is_preposition(caption: str, word: str) -> bool:
    return any(token.text == word and token.tag in ("IN", "TO") for token in tag(caption))


def test_phrases_of_a_model_count_to_the_letter_only() -> None:
    caption = "A red dog and a red cat , reddish ."
    spans, refused = locate(caption, ["red", "red", "Red", "red", "big", "ed", "", "red cat", "dog and"])
    assert said(caption, spans) == ["red", "dog and", "red"]
    assert refused == ["Red", "red", "big", "ed", "", "red cat"]
