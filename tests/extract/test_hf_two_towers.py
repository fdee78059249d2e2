"""CLIP and SigLIP of the transformers library: both sides, each against a direct call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor
from toys import hf_families as families
from toys.hf_families import LIMIT, save, squares
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from vlpipe.extract.contracts import ImageItem, Prepared, TextItem
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.extract.output_names import main_output
from vlpipe.foundation.errors import VlpipeError

CLOSE = {"rtol": 0, "atol": 1e-5}
LINES = ["a dog", "a", "a red rat ate.", "gore to"]


def naflex_processor() -> Any:
    return transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("towers")
    return {
        "clip": save(root / "clip", families.clip, squares(32), families.clip_tokenizer),
        "siglip": save(root / "siglip", families.siglip, squares(32), families.siglip2_tokenizer),
        "siglip-gemma": save(root / "gemma", families.siglip, squares(32), families.gemma_end_tokenizer),
        "naflex": save(root / "naflex", families.naflex, naflex_processor, families.siglip2_tokenizer),
    }


@pytest.fixture(scope="module")
def pictures(draw: Callable[..., Image.Image]) -> list[Image.Image]:
    return [draw(seed, size) for seed, size in enumerate([(90, 60), (64, 64), (30, 70)])]


def loaded(folder: Path, **settings: Any) -> Hf:
    return Hf(str(folder), HfConfig(device="cpu", **settings))


def images(encoder: Hf, pictures: list[Image.Image]) -> Prepared:
    return encoder.collate([encoder.prepare(ImageItem("x", picture)) for picture in pictures])


def texts(encoder: Hf, lines: list[str]) -> Prepared:
    return encoder.collate([encoder.prepare(TextItem("x", line)) for line in lines])


def direct(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_pictures_equal_a_direct_call(name: str, folders: dict[str, Path], pictures: list[Image.Image]) -> None:
    encoder = loaded(folders[name])
    pixels = AutoImageProcessor.from_pretrained(folders[name])(pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        model = direct(folders[name])
        tower = model.vision_model(pixels, output_hidden_states=True)
        pooled = model.visual_projection(tower.pooler_output) if name == "clip" else tower.pooler_output
    before = 1 if name == "clip" else 0
    expected = {"pooled": pooled}
    states = {"": tower.last_hidden_state} | {f"layer_{k:02d}.": s for k, s in enumerate(tower.hidden_states)}
    for prefix, state in states.items():
        expected[f"{prefix}tokens"] = state[:, before:]
        expected[prefix + ("mean" if prefix else "patch_mean")] = state[:, before:].mean(1)
        if before:
            expected[f"{prefix}cls"] = state[:, 0]
    outputs = encoder.outputs("image")
    assert outputs.keys() == {*expected, "tokens_joint"}
    assert main_output(outputs) == "pooled"
    found = encoder.encode(images(encoder, pictures), tuple(outputs))
    for output, values in expected.items():
        torch.testing.assert_close(found[output], values, **CLOSE)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_patch_in_the_shared_space_is_the_embedding_of_that_patch_everywhere(
    name: str, folders: dict[str, Path], pictures: list[Image.Image]
) -> None:
    """The library embeds a picture whose last states are all replaced by one patch's."""
    encoder = loaded(folders[name])
    batch = images(encoder, pictures[:1])
    found = encoder.encode(batch, ("tokens", "tokens_joint"))
    model = direct(folders[name])
    last = model.vision_model.encoder if name == "clip" else model.vision_model.post_layernorm
    for place, patch in enumerate(found["tokens"][0]):

        def everywhere(_: Any, __: Any, answer: Any, patch: Tensor = patch) -> Any:
            if isinstance(answer, Tensor):
                return patch.expand_as(answer)
            return type(answer)(last_hidden_state=patch.expand_as(answer.last_hidden_state))

        handle = last.register_forward_hook(everywhere)
        with torch.inference_mode():
            answer = model.get_image_features(batch.tensors["pixel_values"])
        handle.remove()
        torch.testing.assert_close(found["tokens_joint"][0, place], answer.pooler_output[0], **CLOSE)
    assert (found["tokens_joint"][0] - found["tokens_joint"][0, 0]).abs().max() > 1e-4


@pytest.mark.parametrize(("name", "precision"), [("clip", "bfloat16"), ("siglip", "float16")])
def test_patches_in_the_shared_space_in_reduced_precision(
    name: str, precision: str, folders: dict[str, Path], pictures: list[Image.Image]
) -> None:
    exact, rough = loaded(folders[name]), loaded(folders[name], precision=precision)
    one, two = (e.encode(images(e, pictures), ("tokens_joint",))["tokens_joint"] for e in (exact, rough))
    assert two.dtype == torch.float32
    torch.testing.assert_close(two, one, rtol=0, atol=0.05)


def one_text(model: Any, folder: Path, line: str) -> dict[str, Tensor]:
    """SigLIP's texts as it was trained: lower case, padded to all positions, no mask."""
    siglip = not hasattr(model, "text_projection")
    more = {"padding": "max_length", "max_length": LIMIT, "padding_side": "right"} if siglip else {}
    ids = AutoTokenizer.from_pretrained(folder)(line.lower(), return_tensors="pt", **more)["input_ids"]
    real = int((ids != 0).sum()) if siglip else ids.shape[1]
    with torch.inference_mode():
        answer = model.text_model(input_ids=ids, output_hidden_states=True)
        pooled = answer.pooler_output if siglip else model.text_projection(answer.pooler_output)
    rows = {"pooled": pooled[0]}
    states = {"": answer.last_hidden_state} | {f"layer_{k:02d}.": s for k, s in enumerate(answer.hidden_states)}
    for prefix, state in states.items():
        rows[f"{prefix}mean"] = state[0, :real].mean(0)
        rows[f"{prefix}last"] = state[0, real - 1]
    return rows


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["clip", "siglip", "siglip-gemma", "naflex"])
def test_texts_in_a_batch_equal_a_direct_call_alone(
    name: str, side: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[name], tmp_path / "copy")
    rules = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(rules | {"padding_side": side}))
    encoder, model = loaded(folder), direct(folder)
    outputs = tuple(encoder.outputs("text"))
    assert main_output(outputs) == "pooled"
    lines = [*LINES, "A Red RAT"]
    together = encoder.encode(texts(encoder, lines), outputs)
    for row, line in enumerate(lines):
        alone = encoder.encode(texts(encoder, [line]), outputs)
        expected = one_text(model, folder, line)
        assert expected.keys() == set(outputs)
        for output, values in expected.items():
            torch.testing.assert_close(together[output][row], values, **CLOSE)
            torch.testing.assert_close(alone[output][0], values, **CLOSE)


def test_the_sides_meet_in_the_librarys_own_cosines(folders: dict[str, Path], pictures: list[Image.Image]) -> None:
    encoder = loaded(folders["clip"])
    pixels = images(encoder, pictures).tensors["pixel_values"]
    tokens = AutoTokenizer.from_pretrained(folders["clip"])(LINES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = direct(folders["clip"])(pixel_values=pixels, **tokens).logits_per_image
    image = encoder.encode(images(encoder, pictures), ("pooled",))["pooled"]
    text = encoder.encode(texts(encoder, LINES), ("pooled",))["pooled"]
    cosines = torch.nn.functional.normalize(image) @ torch.nn.functional.normalize(text).T
    torch.testing.assert_close(cosines * encoder.constants["logit_scale"], logits, rtol=0, atol=1e-4)
    assert set(loaded(folders["siglip"]).constants) == {"logit_scale", "logit_bias"}


@pytest.mark.parametrize(("name", "before", "after"), [("clip", [54], [55]), ("siglip", [], [1])])
def test_begin_and_end_exactly_once_and_the_cut_at_the_limit(
    name: str, before: list[int], after: list[int], folders: dict[str, Path]
) -> None:
    encoder = loaded(folders[name])
    room = LIMIT - len(before) - len(after)
    for words, cut in ((room - 1, False), (room, False), (room + 1, True), (90, True)):
        prepared = encoder.prepare(TextItem("x", " ".join("a" * words) if name == "clip" else "a" * words))
        ids = prepared.tensors["input_ids"].tolist()
        assert (prepared.cut, len(ids)) == ((cut,), min(words, room) + len(before) + len(after))
        assert (ids[: len(before)], ids[-1:]) == (before, after)
        assert ids.count(after[0]) == 1
    end = {"clip": "<|endoftext|>", "siglip": "<eos>"}[name]
    assert encoder.texts.tokens.encode(f"a{end}") == encoder.texts.tokens.encode("a")


def test_siglips_padding_is_read_to_the_last_position_whatever_max_length(folders: dict[str, Path]) -> None:
    encoder = loaded(folders["siglip"], max_length=4)
    prepared = texts(encoder, ["a red rat", "a"])
    assert prepared.cut == (True, False)
    assert prepared.tensors["input_ids"].shape == (2, LIMIT)
    assert prepared.tensors["attention_mask"].sum(1).tolist() == [4, 2]
    fields = loaded(folders["siglip"]).identity("text")
    assert (fields["padding"], fields["case"]) == (f"0 to {LIMIT} tokens, read", "lower")
    assert "padding" not in loaded(folders["clip"]).identity("text")


def test_naflex_means_leave_out_the_padding(folders: dict[str, Path], pictures: list[Image.Image]) -> None:
    encoder = loaded(folders["naflex"])
    outputs = encoder.outputs("image")
    assert {name for name in outputs if "." not in name} == {"pooled", "patch_mean"}
    found = encoder.encode(images(encoder, pictures), tuple(outputs))
    model, processor = direct(folders["naflex"]), AutoImageProcessor.from_pretrained(folders["naflex"])
    for row, picture in enumerate(pictures):
        inputs = processor(picture, return_tensors="pt")
        count = int(inputs["spatial_shapes"].prod())
        with torch.inference_mode():
            answer = model.vision_model(**inputs, output_hidden_states=True)
        torch.testing.assert_close(found["pooled"][row], answer.pooler_output[0], **CLOSE)
        mean = answer.last_hidden_state[0, :count].mean(0)
        torch.testing.assert_close(found["patch_mean"][row], mean, **CLOSE)
        for layer, state in enumerate(answer.hidden_states):
            torch.testing.assert_close(found[f"layer_{layer:02d}.mean"][row], state[0, :count].mean(0), **CLOSE)
    assert 0 < count < 16


def test_a_side_knows_its_own_weights_only(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["clip"], tmp_path / "copy")
    before = {side: loaded(folder).identity(side) for side in ("image", "text")}
    state = load_file(folder / "model.safetensors")
    state["text_projection.weight"] += 1
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    after = {side: loaded(folder).identity(side) for side in ("image", "text")}
    assert after["image"] == before["image"]
    assert {name for name in before["text"] if before["text"][name] != after["text"][name]} == {"weights"}
    state["visual_projection.weight"] += 1
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert loaded(folder).identity("image")["weights"] != before["image"]["weights"]


def test_texts_do_without_a_processor(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "copy")
    (folder / "preprocessor_config.json").unlink()
    encoder = loaded(folder)
    assert encoder.encode(texts(encoder, LINES), ("pooled",))["pooled"].shape == (4, 12)
    with pytest.raises(VlpipeError, match="AutoImageProcessor cannot be loaded from this folder"):
        encoder.identity("image")


def test_pictures_do_without_a_tokenizer(
    folders: dict[str, Path], pictures: list[Image.Image], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "copy")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    encoder = loaded(folder)
    assert encoder.encode(images(encoder, pictures), ("pooled",))["pooled"].shape == (3, 12)
    with pytest.raises(VlpipeError, match="no vocabulary"):
        encoder.identity("text")


@pytest.mark.parametrize("side", ["image", "text"])
def test_a_tower_trains_its_own_side(side: str, folders: dict[str, Path], pictures: list[Image.Image]) -> None:
    encoder = loaded(folders["clip"])
    tower = encoder.tower(side).eval()  # type: ignore[arg-type]
    prepared = images(encoder, pictures) if side == "image" else texts(encoder, LINES)
    rows = tower(prepared.tensors)
    torch.testing.assert_close(rows, encoder.encode(prepared, ("pooled",))["pooled"], **CLOSE)
    rows.square().sum().backward()
    trained = {name for name, p in encoder.model.named_parameters() if p.grad is not None}
    own = {name for name, p in encoder.model.named_parameters() if id(p) in {id(q) for q in tower.parameters()}}
    assert trained == own
    assert all(name.startswith(("vision", "visual") if side == "image" else "text") for name in own)
    assert len(own) > 20
