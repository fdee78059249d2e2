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


@pytest.mark.parametrize("kind", SHELF.names())
@pytest.mark.parametrize(("role", "each"), [("image", 1), ("text", 3)])
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


@pytest.mark.parametrize("kind", SHELF.names())
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
