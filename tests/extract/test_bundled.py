from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vlpipe.extract.contracts import ImageItem, Item, Prepared, TextItem
from vlpipe.extract.encoders.bundled import FOLDER, Bundled, BundledConfig
from vlpipe.extract.small_clip import WordTokenizer
from vlpipe.foundation.config import read_toml
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.manifests.datasets.mad import VALUES

WORDS = [value for values in VALUES.values() for value in values]


@pytest.fixture(scope="module")
def encoder() -> Bundled:
    return Bundled("mad-clip", BundledConfig(device="cpu", init_seed=0))


def picture(seed: int, size: tuple[int, int] = (28, 28)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8))


def batch(encoder: Bundled, items: Sequence[Item]) -> Prepared:
    return encoder.collate([encoder.prepare(item) for item in items])


def saved(encoder: Bundled, path: Path) -> Path:
    tensors = {f"{side}.{n}": t for side, tower in encoder.towers.items() for n, t in tower.state_dict().items()}
    save_file({**tensors, "objective.log_scale": torch.tensor(3.0)}, path)
    return path


def test_the_sizes_are_those_of_the_trial() -> None:
    encoder = Bundled("mad-clip", BundledConfig(init_seed=0))
    sizes = {side: sum(p.numel() for p in tower.parameters()) for side, tower in encoder.towers.items()}
    assert sizes == {"image": 317_072, "text": 204_416}


def test_the_vocabulary_is_the_data_sets(encoder: Bundled) -> None:
    assert read_toml(FOLDER / "mad-clip.toml")["words"] == WORDS
    assert len(encoder.tokenizer) == 28


def test_tokens_by_hand() -> None:
    tokenizer = WordTokenizer(["a", "b"], "-", 5)
    assert tokenizer.encode("b-a")[0].tolist() == [2, 1, 0, 3, 3]
    for text, tokens, cut in (
        ("a", [2, 0, 3, 3, 3], False),
        ("a-b-a", [2, 0, 1, 0, 3], False),
        ("a-b-a-b", [2, 0, 1, 0, 3], True),
    ):
        found, was_cut = tokenizer.encode(text)
        assert (found.tolist(), was_cut) == (tokens, cut)


def test_a_text_of_six_words_fits_and_of_seven_is_cut(encoder: Bundled) -> None:
    six = "7-thinning-swelling-fracture-large-red"
    assert batch(encoder, [TextItem("a", six), TextItem("b", six + "-red")]).cut == (False, True)


@pytest.mark.parametrize(
    ("text", "word"), [("red-dog", "dog"), ("", ""), ("red--7", ""), ("Red", "Red"), ("red 7", "red 7")]
)
def test_an_unknown_word_is_named(encoder: Bundled, text: str, word: str) -> None:
    with pytest.raises(VlpipeError, match=f"the word '{word}' is outside the vocabulary"):
        encoder.prepare(TextItem("t", text))


def test_outputs_have_the_shapes_that_they_say(encoder: Bundled) -> None:
    images = batch(encoder, [ImageItem("a", picture(0)), ImageItem("b", picture(1))])
    texts = batch(encoder, [TextItem("a", "red-7"), TextItem("b", "large")])
    assert encoder.outputs("image")["pooled"].shape == encoder.outputs("text")["pooled"].shape == (18,)
    for side, prepared in (("image", images), ("text", texts)):
        specs = encoder.outputs(side)  # type: ignore[arg-type]
        rows = encoder.encode(prepared, tuple(specs))
        assert {name: tuple(row.shape) for name, row in rows.items()} == {
            n: (2, *s.shape) for n, s in specs.items()
        }
        assert all(row.dtype == torch.float32 for row in rows.values())
    assert encoder.outputs("image")["tokens"].shape == (49, 64)


def test_encode_is_the_tower(encoder: Bundled) -> None:
    images = batch(encoder, [ImageItem("a", picture(0))])
    texts = batch(encoder, [TextItem("a", "red-7")])
    with torch.no_grad():
        assert torch.equal(
            encoder.encode(images, ("pooled",))["pooled"], encoder.tower("image")(images.tensors).cpu()
        )
        assert torch.equal(
            encoder.encode(texts, ("pooled",))["pooled"], encoder.tower("text")(texts.tensors).cpu()
        )


def test_rows_do_not_depend_on_their_batch(encoder: Bundled) -> None:
    texts: list[Item] = [
        TextItem(str(i), text) for i, text in enumerate(["red", "7-large-blue", "3-thinning-gray-swelling"])
    ]
    images: list[Item] = [ImageItem(str(i), picture(i)) for i in range(3)]
    for items in (texts, images):
        together = encoder.encode(batch(encoder, items), ("pooled",))["pooled"]
        for row, item in zip(together, items, strict=True):
            alone = encoder.encode(batch(encoder, [item]), ("pooled",))["pooled"][0]
            torch.testing.assert_close(alone, row, atol=1e-5, rtol=1e-5)


def test_what_follows_the_first_end_never_matters(encoder: Bundled) -> None:
    tokens = encoder.prepare(TextItem("a", "red-7")).tensors["tokens"]
    other = tokens.clone()
    other[4:] = torch.tensor([0, 5, 9, 26])
    rows = encoder.encode(Prepared({"tokens": torch.stack([tokens, other])}), ("pooled",))["pooled"]
    torch.testing.assert_close(rows[0], rows[1], atol=1e-6, rtol=0)


def test_the_order_of_words_reaches_the_vector(encoder: Bundled) -> None:
    rows = encoder.encode(batch(encoder, [TextItem("a", "red-7"), TextItem("b", "7-red")]), ("pooled",))["pooled"]
    assert not torch.allclose(rows[0], rows[1])


def test_pixels_keep_their_values_and_other_sizes_are_resized(encoder: Bundled) -> None:
    exact = encoder.prepare(ImageItem("a", picture(0))).tensors["pixels"]
    assert (exact.permute(1, 2, 0).numpy() == np.asarray(picture(0))).all()
    flat = encoder.prepare(ImageItem("a", Image.new("RGB", (50, 90), (9, 8, 7)))).tensors["pixels"]
    assert flat.shape == (3, 28, 28)
    assert [int(channel.unique().item()) for channel in flat] == [9, 8, 7]
    expected = picture(3, (56, 56)).resize((28, 28), Image.Resampling.BILINEAR)
    resized = encoder.prepare(ImageItem("a", picture(3, (56, 56)))).tensors["pixels"]
    assert (resized.permute(1, 2, 0).numpy() == np.asarray(expected)).all()


def test_extraction_is_in_evaluation_mode_and_without_gradients(encoder: Bundled) -> None:
    encoder.tower("image").train()
    rows = encoder.encode(batch(encoder, [ImageItem("a", picture(0))]), ("pooled",))["pooled"]
    assert not encoder.tower("image").training
    assert not rows.requires_grad


def test_a_checkpoint_is_loaded_and_changes_the_identity(encoder: Bundled, tmp_path: Path) -> None:
    other = Bundled("mad-clip", BundledConfig(init_seed=1))
    loaded = Bundled(f"mad-clip@{saved(other, tmp_path / 'w.safetensors')}", BundledConfig())
    assert loaded.constants == {"logit_scale": pytest.approx(math.exp(3.0))}
    for side in loaded.sides():
        assert loaded.identity(side) == other.identity(side)
        differing = {k for k, v in loaded.identity(side).items() if encoder.identity(side)[k] != v}
        assert differing == {"weights"}
    items = [ImageItem("a", picture(0))]
    assert torch.equal(
        loaded.encode(batch(loaded, items), ("pooled",))["pooled"],
        other.encode(batch(other, items), ("pooled",))["pooled"],
    )


def test_identity_names_no_path_and_each_side_its_own_weights(encoder: Bundled) -> None:
    image, text = encoder.identity("image"), encoder.identity("text")
    assert image["weights"] != text["weights"]
    assert "bilinear" in image["preprocessing"]
    assert {"weights", "precision", "kernels", "code"} <= image.keys() & text.keys()
    assert not any("/" in value.replace(" / ", " ") for value in (*image.values(), *text.values()))


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mad-clip'"):
        Bundled("mad-clipp", BundledConfig())
    with pytest.raises(VlpipeError, match="cannot be read"):
        Bundled(f"mad-clip@{tmp_path / 'none.safetensors'}", BundledConfig())
    save_file({"image.x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(VlpipeError, match="are not of this architecture"):
        Bundled(f"mad-clip@{tmp_path / 'x.safetensors'}", BundledConfig())


def test_the_shipped_model_is_small_whole_and_has_its_card() -> None:
    assert Bundled.models() == ["mad-clip"]
    weights = FOLDER / "mad-clip.safetensors"
    assert weights.stat().st_size <= 4 * 1024 * 1024
    assert set(Bundled("mad-clip", BundledConfig()).constants) == {"logit_scale"}
    assert all(torch.isfinite(tensor).all() for tensor in load_file(weights).values())
    assert (FOLDER / "mad-clip.md").is_file()
