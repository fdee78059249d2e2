"""Features that are not there: what may have been meant comes before the command that makes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vlpipe.cache_store.errors import NotCachedError
from vlpipe.cache_store.layout import store_path

World = Any
Maker = Callable[..., World]
DINO = "hf:facebook/dinov2-small"


def told(made: World, **sources: str) -> str:
    with pytest.raises(NotCachedError) as caught:
        made.plan("identity", sources=sources)
    return str(caught.value)


def test_a_typo_in_the_spec_names_the_store_that_is_there(world: Maker) -> None:
    made = world()
    made.store(DINO, "image", np.ones((40, 6)), "cls")
    message = told(made, image="hf:facebok/dinov2-smal#cls")
    assert re.search(rf"did you mean '{DINO}', which is there\?.* vlpipe extract ", message)
    assert "did you mean" not in told(made, image="open_clip:ViT-B-32#pooled")


def test_a_store_of_another_name_than_its_encoder_and_a_damaged_one_go_by_their_own(world: Maker) -> None:
    made = world()
    made.store(DINO, "image", np.ones((40, 6)), "cls")
    path = store_path(made.cache, made.manifest.digest, DINO, "image")
    path.rename(path.with_name("my-dino.image.zarr"))
    assert "did you mean 'my-dino'" in told(made, image="mydino")
    (path.with_name("my-dino.image.zarr") / "zarr.json").write_text("{")
    assert "did you mean 'my-dino'" in told(made, image="mydino")


def test_a_typo_in_the_output_names_the_outputs_that_are_there(world: Maker) -> None:
    made = world()
    message = told(made, image="enc:a#poled")
    assert re.search(r"did you mean 'enc:a#pooled'\? .*if the encoder has an output 'poled' for images", message)


def test_an_output_of_one_side_asked_of_the_other_names_those_of_the_other(world: Maker) -> None:
    """`--encoder enc:a#tokens` where texts have pooled rows alone."""
    made = world()
    made.store("enc:a", "image", np.ones((40, 6)), "tokens")
    message = told(made, image="enc:a#tokens", text="enc:a#tokens")
    assert "'enc:a#tokens' for the texts" in message
    assert "outputs there are pooled (for one role: --source ROLE=enc:a#pooled)" in message
    assert "if the encoder has an output 'tokens' for texts, make it with: vlpipe extract" in message


def test_an_encoder_that_has_the_other_side_is_no_typo(world: Maker) -> None:
    made = world()
    made.store("enc:b", "image", np.ones((40, 6)))
    message = told(made, image="enc:b", text="enc:b")
    assert "did you mean" not in message
    assert "make them with: vlpipe extract" in message
    assert "if the encoder has an output 'pooled' for texts" in told(made, image="enc:b", text="enc:b#pooled")
