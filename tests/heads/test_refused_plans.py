"""Rows that no head can be made of are refused before a run's folder is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.layout import Status
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import SHELF, Shapes

World = Any
Maker = Callable[..., World]


def kinds_that_read(role: str) -> list[str]:
    """Heads that read a role of their own encoder's rows; some stand on a run, or read tables of concepts."""
    found = []
    for kind in SHELF.names():
        roles = SHELF.load(kind).roles
        if role in roles and not any(each.stands or each.table for each in roles.values()):
            found.append(kind)
    return found


CASES = [(kind, role, each) for role, each in (("image", 1), ("text", 3)) for kind in kinds_that_read(role)]


def test_every_plain_head_is_among_the_cases() -> None:
    assert {("ridge", "text", 3), ("sae", "image", 1), ("jam", "image", 1), ("tpc", "text", 3)} <= set(CASES)


@pytest.mark.parametrize("kind", sorted(set(SHELF.names()) - set(kinds_that_read("image"))))
def test_a_head_that_stands_on_another_says_so(world: Maker, kind: str) -> None:
    made = world()
    with pytest.raises(VlpipeError):
        made.trained(kind)
    assert not made.runs.exists()


@pytest.mark.parametrize(("kind", "role", "each"), CASES)
def test_rows_that_are_no_vectors_are_refused(world: Maker, kind: str, role: str, each: int) -> None:
    made = world()
    made.store("enc:t", role, np.ones((40 * each, 4, 6)), "tokens")
    with pytest.raises(
        VlpipeError, match=rf"role '{role}' has rows of shape \(4, 6\).*\(width,\).*--source {role}="
    ):
        made.trained(kind, sources={role: "enc:t#tokens"})
    assert not made.runs.exists()


@pytest.mark.parametrize("shape", [(), (4, 6), (1, 6)])
def test_a_width_is_that_of_a_vector(shape: tuple[int, ...]) -> None:
    assert Shapes({"image": (6,)}).width("image") == 6
    with pytest.raises(VlpipeError, match="one vector a row"):
        Shapes({"image": shape}).width("image")


@pytest.mark.parametrize("kind", kinds_that_read("image"))
def test_no_usable_image_at_all_is_an_error_of_every_head(world: Maker, kind: str) -> None:
    made = world()
    made.store("enc:f", "image", np.ones((40, 6)), status=[Status.FAILED] * 40)
    with pytest.raises(
        VlpipeError, match=r"none of 40 images .*image: 0 usable, 40 failed, 0 absent.*--retry-failed"
    ):
        made.trained(kind, sources={"image": "enc:f"})
    assert not made.runs.exists()


def test_no_image_to_train_on_leaves_no_folder(world: Maker) -> None:
    made = world(splits=("test", None))
    with pytest.raises(VlpipeError, match="no images to train on"):
        made.trained("ridge")
    assert not made.runs.exists()
