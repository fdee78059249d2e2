"""Views: what is made of a caption, what is made instead, and what is asked of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vlpipe.derive.prompts import listed, sentence
from vlpipe.derive.settings import ViewsConfig
from vlpipe.derive.views import Views
from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.manifests.manifest import Manifest

Make = Callable[[Sequence[Sequence[str]]], Manifest]
LONG = "A small brown dog runs through the grass with two red balls ."


class Scripted:
    """A model whose answers are a function of prompt and seed."""

    identity = "scripted"

    def __init__(self, answer: Callable[[str, int | None], str]) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def complete(self, prompts: Sequence[str], seed: int | None, max_tokens: int) -> list[str]:
        self.prompts += prompts
        return [self.answer(prompt, seed) for prompt in prompts]


class Near:
    """Everything is near its caption but what says "far"."""

    identity = "near"

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [0.1 if "far" in view else 0.9 for view, _ in pairs]


def rows(manifest: Manifest, model: Any = None, nearness: Any = None, **settings: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in views(model, nearness, **settings).rows(manifest)]


def views(model: Any = None, nearness: Any = None, **settings: Any) -> Views:
    return Views(resolve(ViewsConfig, settings), model, nearness)


def test_a_core_view_leaves_out_attributes_and_counts(manifest_of: Make) -> None:
    (row,) = rows(manifest_of([[LONG]]))
    assert row["text"] == "A dog runs through the grass with balls ."
    assert (row["text_id"], row["role"], row["source_text_id"]) == ("i0#0@core", "view:core", "i0#0")
    assert (row["image_id"], row["split"]) == ("i0", "train")
    assert json.loads(row["attributes"]["removed"]) == ["small", "brown", "two", "red"]


def test_a_core_view_that_would_be_too_short_leaves_out_less(manifest_of: Make) -> None:
    made = views()
    found = {
        row["text_id"]: row["text"] for row in made.rows(manifest_of([["A big red ball rolls .", "A red ball ."]]))
    }
    assert list(found) == ["i0#0@core"]  # the other caption has three words, and no part of it has five
    assert found["i0#0@core"] == "A big red ball rolls ."
    assert made.told["core: left out"] == 1
    assert made.told["core: turned down by length"] == 4 + 5


def test_only_captions_have_views(manifest_of: Make, tmp_path: Any) -> None:
    from vlpipe.derive.growing import grow

    manifest = manifest_of([[LONG]])
    maker = views()
    grown = grow(
        manifest, tmp_path / "grown", maker.rows(manifest), name=None, suffix="views", settings={}, overwrite=False
    )
    assert [row["source_text_id"] for row in rows(grown)] == ["i0#0"]


def test_deletion_makes_every_set_also_of_captions_without_the_kind(manifest_of: Make) -> None:
    manifest = manifest_of([[LONG, "Dogs run ."]])
    found = rows(manifest, views=["deletion"], shares=[0.3, 1.0], delete=["counts", "attributes"])
    roles = [
        "view:delete-counts-30",
        "view:delete-counts-100",
        "view:delete-attributes-30",
        "view:delete-attributes-100",
    ]
    assert [row["role"] for row in found] == roles * 2
    assert all(row["text"] == "Dogs run ." for row in found[4:])
    assert found[1]["text"] == "A small brown dog runs through the grass with red balls ."
    assert found[3]["text"] == "A dog runs through the grass with two balls ."
    assert found[1]["attributes"] == {
        "removed": '["two"]', "cleaned": "[]", "removed_tokens": "1", "kind_tokens": "1"
    }  # fmt: skip
    assert found[2]["attributes"]["removed_tokens"] == "1"
    assert len({row["text_id"] for row in found}) == 8


def test_views_depend_on_the_captions_id_and_the_seed_alone(manifest_of: Make) -> None:
    every = {row["text_id"]: row for row in rows(manifest_of([[LONG] * 6, [LONG]]), views=["deletion", "core"])}
    few = {row["text_id"]: row for row in rows(manifest_of([[LONG] * 3]), views=["core", "deletion"])}
    assert few == {name: every[name] for name in few}
    other = rows(manifest_of([[LONG] * 3]), views=["deletion"], seed=1)
    assert any(row["text"] != few[row["text_id"]]["text"] for row in other)


def test_a_paraphrase_is_resampled_and_then_a_core_view_stands_in(manifest_of: Make) -> None:
    good = "A dog is running in the grass"

    def answer(prompt: str, seed: int | None) -> str:
        if "cat" in prompt:
            return ["too short", "a cat far away from all things", "Boston has a cat on grass"][seed or 0]
        return good if seed == 1 else "far, far away is a dog"

    model = Scripted(answer)
    manifest = manifest_of([[LONG, "A small brown cat sits on the wet grass ."]])
    made = views(model, Near(), views=["paraphrase"])
    first, second = made.rows(manifest)
    assert (first["text"], first["attributes"]) == (good, {"try": "1"})
    assert second["attributes"]["instead"] == "core"
    assert second["role"] == "view:paraphrase"
    assert second["text"] != "A small brown cat sits on the wet grass ."
    told = {name.removeprefix("paraphrase: "): count for name, count in made.told.items()}
    assert (told["turned down by cosine"], told["turned down by length"], told["turned down by name"]) == (2, 1, 1)
    assert (told["made"], told["core instead"], told["left out"]) == (2, 1, 0)
    assert len(model.prompts) == 2 + 2 + 1


def test_back_translation_goes_through_german(manifest_of: Make) -> None:
    model = Scripted(lambda prompt, seed: "Ein Hund" if "into German" in prompt else "A dog runs over green grass")
    (row,) = rows(manifest_of([[LONG]]), model, Near(), views=["back_translation"])
    assert row["text"] == "A dog runs over green grass"
    assert LONG in model.prompts[0]
    assert "Ein Hund" in model.prompts[1]
    assert LONG not in model.prompts[1]


def test_seeds_ask_for_other_answers(manifest_of: Make) -> None:
    seeds: list[int | None] = []
    model = Scripted(lambda prompt, seed: seeds.append(seed) or "short")
    for seed in (0, 1):
        rows(manifest_of([[LONG]]), model, Near(), views=["paraphrase"], seed=seed)
    assert seeds == [0, 1, 2, 3, 4, 5]


def test_spans_of_a_model_are_taken_to_the_letter_or_not_at_all(manifest_of: Make) -> None:
    model = Scripted(lambda prompt, seed: "- red\n- tiny\n2. small" if "quality" in prompt else "NONE")
    made = views(model, views=["deletion"], spans="model", shares=[1.0], delete=["attributes", "counts"])
    colours, counts = made.rows(manifest_of([[LONG]]))
    assert colours["text"] == "A brown dog runs through the grass with two balls ."
    assert counts["text"] == LONG
    assert made.told["attributes: spans that are not in the caption"] == 1


@pytest.mark.parametrize(
    ("settings", "model", "kind", "words"),
    [
        ({"views": ["paraphrase"]}, None, UsageError, "view 'paraphrase': needs --model"),
        ({"views": ["deletion"], "spans": "model"}, None, UsageError, "spans = 'model': needs --model"),
        ({"views": ["back_translation"]}, "some", UsageError, "needs --encoder SPEC"),
        ({"views": ["core", "core"]}, None, UsageError, "a value stands twice"),
        ({"views": ["kern"]}, None, UsageError, "views.0"),
        ({"shares": [0.333]}, None, UsageError, "whole per cents"),
        ({"shares": [0.0]}, None, UsageError, "whole per cents"),
        ({"share": [0.1]}, None, UnknownNameError, "did you mean 'shares'"),
    ],
)
def test_what_cannot_be_made_is_said_first(settings: Any, model: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        views(model, **settings)


def test_real_core_views_keep_to_the_rules(manifest_of: Make, real_captions: list[str]) -> None:
    found = rows(manifest_of([[caption] for caption in real_captions]))
    assert len(found) > 190
    assert sum(row["text"] != real_captions[int(row["image_id"][1:])] for row in found) > 130
    for row in found:
        source = real_captions[int(row["image_id"][1:])].lower()
        assert len(row["text"].replace(",", " ").replace(" .", "").split()) >= 5
        assert all(word in source or word in ("a", "an") for word in row["text"].lower().split())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('\n "A dog runs ."\nIt is brown.', "A dog runs ."),
        ("In other words: a dog runs", "a dog runs"),
        ("A sign says: stop", "A sign says: stop"),
        ("\n \n", ""),
    ],
)
def test_the_first_sentence_of_an_answer_is_taken(answer: str, text: str) -> None:
    assert sentence(answer) == text


def test_lists_are_read_line_by_line() -> None:
    assert listed('1. red\n- "big",\n\n* two dogs\nNone\n') == ["red", "big", "two dogs"]
    assert listed("NONE") == []
