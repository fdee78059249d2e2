"""Words, their places and their parts of speech."""

from __future__ import annotations

import sys

import pytest

from vlpipe.derive.tagging import tag
from vlpipe.derive.wording import article, reworded
from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.brill import brill


@pytest.mark.parametrize(
    ("caption", "tags"),
    [
        ("A dog leaps into the water .", "DT NN VBZ IN DT NN ."),  # Brill: leaps/NNS
        ("Black dog running .", "JJ NN VBG ."),  # Brill: Black/NNP
        ("A man in black is skiing .", "DT NN IN JJ VBZ VBG ."),
        ("Three men hike up a canyon .", "CD NNS VBP IN DT NN ."),
        ("a red t-shirt", "DT JJ NN"),
        ("a dog sits on the back of a truck", "DT NN VBZ IN DT NN IN DT NN"),
        ("The girl skis down a hill .", "DT NN VBZ RB DT NN ."),
        ("A hat and glasses .", "DT NN CC NNS ."),
    ],
)
def test_captions_are_tagged(caption: str, tags: str) -> None:
    assert [token.tag for token in tag(caption)] == tags.split()


@pytest.mark.parametrize(
    "caption",
    [
        'Two dogs,one red;"big" (3.5 m) 10:30 & 50% of 2nd place…',
        "It's the men's cafe\u0301, na\u00efve caf\u00e9\u2019s \U0001f415 \u72ac",
        "a/b _x_ \tline\nbreak #1 -- co-op -dash dash-",
        "'",
    ],
)
def test_every_character_but_blanks_is_in_one_token(caption: str) -> None:
    tokens = tag(caption)
    assert all(caption[token.start : token.end] == token.text for token in tokens)
    assert "".join(token.text for token in tokens) == "".join(caption.split())
    assert [token.start for token in tokens] == sorted(token.start for token in tokens)


def test_nothing_gives_no_tokens() -> None:
    assert tag("") == tag("  \n") == ()


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textblob", None)
    brill.cache_clear()
    tag.cache_clear()
    try:
        with pytest.raises(VlpipeError, match=r"pip install 'vlpipe\[derive\]'"):
            tag("a dog")
    finally:
        brill.cache_clear()


SOUNDS = {"an": "hour umbrella SUV ugly unidentified x-ray", "a": "unicycle European one dog used uniform"}


@pytest.mark.parametrize(("right", "word"), [(a, word) for a, words in SOUNDS.items() for word in words.split()])
def test_articles_follow_the_sound(right: str, word: str) -> None:
    assert article(word) == right


def test_only_articles_beside_a_change_are_touched() -> None:
    caption = "A orange ball , a hour and an dog"
    tokens = tag(caption)
    assert reworded(caption, tokens, {1: ""}) == "A ball , a hour and an dog"
    assert reworded(caption, tokens, {2: "apple"}) == "A orange apple , a hour and an dog"
    assert reworded(caption, tokens, {8: "owl"}) == "A orange ball , a hour and an owl"
    assert reworded(caption, tokens, {1: "old"}) == "An old ball , a hour and an dog"
    assert reworded(caption, tokens, {1: "old"}, articles=False) == "A old ball , a hour and an dog"


def test_capital_and_spacing_are_kept() -> None:
    caption = "Red cars, big ones,  stop."
    assert reworded(caption, tag(caption), {0: ""}) == "Cars, big ones,  stop."
    assert reworded(caption, tag(caption), {3: "", 4: ""}) == "Red cars,,  stop."
