from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

from vlpipe.backbones import train as training
from vlpipe.backbones.commands import train_backbone
from vlpipe.backbones.data import Order
from vlpipe.backbones.live import Places
from vlpipe.backbones.loop import CAPTIONS, LOG, TRAINING, Loop
from vlpipe.backbones.settings import LoopConfig
from vlpipe.backbones.state import STATE, WEIGHTS
from vlpipe.evaluate.lineage import but_seeds
from vlpipe.evaluate.run import evaluate
from vlpipe.extract.commands import extract
from vlpipe.extract.contracts import TextItem
from vlpipe.extract.load import load_encoder
from vlpipe.foundation.config import resolve
from vlpipe.heads.contracts import SHELF, Batch, Shapes, Source
from vlpipe.heads.editing import Editor
from vlpipe.heads.runs import Run, open_joined
from vlpipe.manifests.manifest import Manifest

World = Any
SPEC = "bundled:mad-clip"
CPU = {"device": "cpu"}


def parts(world: World, **changed: Any) -> Any:
    """What a run learns with, before its first step."""
    places = Places((world.images,), world.cache, world.runs)
    config = resolve(LoopConfig, {"objective": {"hidden": 8}, "encoder": CPU, "text_lr": 1e-3}, changed)
    return training._parts("tevi", world.manifest, SPEC, config, places), config


def batch(world: World, made: Any, config: LoopConfig, step: int = 0) -> tuple[Tensor, Any, list[str]]:
    """The images, text tensors and text ids of one step, drawn as the loop draws them."""
    pairs = training._pairs(Manifest.open(world.manifest), made, "train")
    order = Order(np.arange(len(pairs)), config.batch_size, [config.seed, TRAINING])
    rows = order.at(step)
    picked = pairs.captions(rows, 1, np.random.default_rng([config.seed, CAPTIONS, TRAINING, step]))[:, 0]
    return pairs.images(rows)["rows"], pairs.texts(picked), [pairs.text_columns["text_id"][t] for t in picked]


def by_hand(images: Tensor, texts: Tensor, sae: Any, network: Any, scale: Tensor) -> Tensor:
    """Eq. 11 pair by pair: the codes of image i under the mask of text j, decoded, and InfoNCE both ways."""
    values, latents = sae.codes(images)
    decoder, bias = sae.autoencoder.W_dec.detach(), sae.autoencoder.b_pre.detach()
    layers = [network[n] for n in (0, 2, 4)]
    masks = torch.sigmoid(layers[2](torch.relu(layers[1](torch.relu(layers[0](texts))))))
    rows = []
    for i in range(len(images)):
        cosines = []
        for j in range(len(texts)):
            v = (values[i] * masks[j][latents[i]]) @ decoder[latents[i]] + bias
            cosines.append(v @ texts[j] / (v.norm() * texts[j].norm()))
        rows.append(torch.stack(cosines))
    logits = scale.exp() * torch.stack(rows)
    own = -logits.log_softmax(1).diagonal().mean() - logits.log_softmax(0).diagonal().mean()
    return own / 2


def test_one_step_is_the_one_made_by_hand(world: World, tmp_path: Path) -> None:
    made, config = parts(world, steps=1, batch_size=6, lr=0.01, text_lr=0.001, warmup=0.0, clip_norm=1e9)
    images, tokens, _ = batch(world, made, config)
    head = made.objective.head
    tower: Any = load_encoder(SPEC, CPU).tower("text").train()
    network, scale = torch.nn.Sequential(*head.network.children()), head.logit_scale
    sae = Run.open(world.runs, world.sae).head()
    texts = tower(tokens)
    loss = by_hand(images, texts, sae, network, scale)
    assert float(made.objective.loss(images, texts[:, None], {})["loss"].detach()) == pytest.approx(
        float(loss.detach()), rel=1e-5
    )
    learned = [*network.parameters(), scale]
    groups = [
        {"params": [p for p in own if (p.ndim > 1) == decays], "lr": rate, "weight_decay": 0.1 * decays}
        for own, rate in ((learned, 0.01), (list(tower.parameters()), 0.001))
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups)
    for p in learned:
        p.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    world.live(tmp_path / "out", steps=1, lr=0.01, text_lr=0.001, warmup=0.0, clip_norm=1e9)
    found = load_file(tmp_path / "out" / STATE)
    expected = {f"text.{name}": p for name, p in tower.named_parameters()}
    expected |= {f"objective.head.network.{name}": p for name, p in network.named_parameters()}
    for name, p in expected.items():
        clear = p.grad.abs() > 1e-5  # Adam's first step is a sign: rounding decides it where there is no gradient
        torch.testing.assert_close(found[f"model.{name}"][clear], p.detach()[clear], atol=2e-5, rtol=0)


def test_the_loss_is_the_cached_heads_own(world: World) -> None:
    """Before training the tower's texts are the cached ones, and the same weights give the same loss."""
    made, config = parts(world, batch_size=6, objective={"equation": 10, "hidden": 8})
    images, tokens, text_ids = batch(world, made, config)
    live = made.objective.loss(images, made.towers["text"].eval()(tokens)[:, None], {})
    kind = SHELF.load("tevi")
    under = Run.open(world.runs, world.sae).head()
    shapes = Shapes({"image": (18,), "text": (18,)}, {}, heads={"image": under})
    cached = kind(resolve(kind.Config, {"equation": 10, "hidden": 8}), shapes)
    cached.load_state_dict(made.objective.head.state_dict())
    rows = made.live.opener.rows(Source(f"{SPEC}#pooled"), "text")
    places = [made.live.opener.tables.text_ids.index(text_id) for text_id in text_ids]
    expected = cached.loss(Batch([""] * 6, {"image": images, "text": rows.take(np.array(places))}))
    for name in ("loss", "positive"):
        assert float(live[name].detach()) == pytest.approx(float(expected[name].detach()), rel=1e-6)


def test_the_tower_and_the_mask_learn_and_the_images_do_not(world: World, tmp_path: Path) -> None:
    """There are no pictures any more, so none was read."""
    assert not list(world.manifest.parent.glob("*.png"))
    world.live(tmp_path)
    found = load_file(tmp_path / WEIGHTS)
    start = load_encoder(SPEC, CPU).tower("text").state_dict()
    changed = [name for name, tensor in start.items() if not torch.equal(tensor, found[f"text.{name}"])]
    assert len(changed) == len(start)
    assert not [name for name in found if name.startswith("image.")]
    sae = load_file(world.runs / world.sae / "head.safetensors")
    for name, tensor in sae.items():
        assert torch.equal(found[f"objective.head.under.{name}"], tensor)


def run_line(line: str) -> None:
    """What the user is told to do, done."""
    words = shlex.split(line)
    assert words[:2] == ["vlpipe", "extract"]
    done = CliRunner().invoke(extract, [*words[2:], "--set", 'device="cpu"', "--workers", "0"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "objective", [{"hidden": 8}, {"head": "smartclip", "equation": 10}, {"head": "text_adapter"}]
)
def test_once_the_texts_are_extracted_the_same_call_makes_the_run(
    world: World, tmp_path: Path, objective: dict[str, Any]
) -> None:
    kind = objective.get("head", "tevi")
    source = world.images if kind == "tevi" else f"image={SPEC}#pooled"
    first = world.live(tmp_path / "out", source=source, objective=objective)
    assert "run" not in first
    assert world.live(tmp_path / "out", source=source, objective=objective) == first
    run_line(first["then"])
    second = world.live(tmp_path / "out", source=source, objective=objective)
    anywhere = world.live(tmp_path / "out", source=source, objective=objective, encoder={})
    assert anywhere["run"] == second["run"]
    run = Run.open(world.runs, second["run"])
    assert run.kind == kind
    assert run.sources["text"] == f"{first['encoder']}#pooled"
    told = run.settings.model_dump()
    assert (told["text_lr"], told["batch_size"], told["epochs"]) == (1e-3, 6, 0)
    assert (told["weight_decay"], told["warmup"]) == (0.1, 0.25)  # of the loop
    trained = load_file(tmp_path / "out" / WEIGHTS)
    for name, tensor in run.head().state_dict().items():
        assert torch.equal(trained[f"objective.head.{name}"], tensor)
    joined = open_joined(run)
    rows = joined.text_batch(np.arange(8), "text")
    tower: Any = load_encoder(first["encoder"], CPU).tower("text")
    tokens = load_encoder(SPEC, CPU).tokenizer  # type: ignore[attr-defined]
    texts = tower({"tokens": torch.stack([tokens.encode(text)[0] for text in rows.columns["text"]])})
    torch.testing.assert_close(rows.x["text"], texts.detach(), atol=1e-5, rtol=1e-5)
    assert len(evaluate(world.runs, run.id).entries) > 3
    if kind != "text_adapter":
        Editor.open(world.runs, run.id).edit(joined.image_batch(np.arange(3)).x["image"], rows.x["text"][:3])


def test_seeds_of_one_recipe_share_their_lineage(world: World, tmp_path: Path) -> None:
    """Each on an autoencoder of its own seed."""
    sae = world.head("sae", f"image={SPEC}", latents=26, k=4, epochs=1, batch_size=16, seed=1)
    found = []
    for seed, lr in ((0, 0.01), (1, 0.01), (0, 0.02)):
        given = {"seed": seed, "lr": lr, "source": f"image={SPEC}#pooled::{sae}" if seed else world.images}
        run_line(world.live(tmp_path / f"{seed}{lr}", **given)["then"])
        found.append(Run.open(world.runs, world.live(tmp_path / f"{seed}{lr}", **given)["run"]))
    assert len({run.id for run in found}) == 3
    first, second, other = map(but_seeds, found)
    assert first == second != other


def test_texts_pass_finished_runs_behind_the_tower(world: World, bert: Path, tmp_path: Path) -> None:
    """A dual encoder: both sides through one `projection`, whose text side is carried over to the new texts."""
    spec = f"hf:{bert}"
    world.extract(spec, "text", "mean")
    images, texts = f"image={SPEC}#pooled", f"text={spec}#mean"
    projection = world.head("projection", images, texts, objective="con", latent=8, epochs=1, batch_size=16)
    sae = world.head("sae", f"{images}::{projection}", latents=16, k=4, epochs=1, batch_size=16)
    given = {"spec": f"{spec}#mean::{projection}", "source": f"{images}::{projection}::{sae}"}
    first = world.live(tmp_path / "out", **given)
    run_line(first["then"])
    run = Run.open(world.runs, world.live(tmp_path / "out", **given)["run"])
    output, _, carried = run.sources["text"].partition("::")
    assert output == f"{first['encoder']}#mean"
    assert carried != projection
    weights = [Run.open(world.runs, name).status["weights"] for name in (carried, projection)]
    assert weights[0] == weights[1]
    joined = open_joined(run)
    rows = joined.text_batch(np.arange(6), "text")
    encoder: Any = load_encoder(first["encoder"], CPU)
    items = [encoder.prepare(TextItem(t, t)) for t in rows.columns["text"]]
    states = encoder.encode(encoder.collate(items), ("mean",))["mean"]
    head = Run.open(world.runs, projection).head()
    expected = head.texts(Batch([""] * 6, {"text": states.clone()})).x["text"]
    torch.testing.assert_close(rows.x["text"], expected.detach(), atol=1e-5, rtol=1e-5)
    assert len(evaluate(world.runs, run.id).entries) > 3


def test_open_clip_texts_learn_beside_cached_images(world: World, clip: str, tmp_path: Path) -> None:
    spec, objective = f"open_clip:{clip}", {"head": "smartclip", "hidden": 4}
    first = world.live(tmp_path, spec=spec, source=f"image={SPEC}#pooled", objective=objective)
    start: Any = load_encoder(spec, CPU)
    trained: Any = load_encoder(first["encoder"], CPU)
    assert trained.weights["image"] == start.weights["image"]
    assert trained.weights["text"] != start.weights["text"]
    assert not [name for name in load_file(tmp_path / WEIGHTS) if "visual" in name]


class InterruptedTrainingError(Exception):
    """Stands for a kill."""


def test_an_interrupted_run_equals_an_uninterrupted_one(
    world: World, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tower that has dropout."""
    given: dict[str, Any] = {"spec": f"hf:{bert}#mean", "source": f"image={SPEC}#pooled"}
    world.extract(f"hf:{bert}", "text", "mean")
    projection = world.head(
        "projection", given["source"], f"text=hf:{bert}#mean", objective="con", latent=8, epochs=1, batch_size=16
    )
    given = {name: f"{value}::{projection}" for name, value in given.items()}
    given["objective"] = {"head": "smartclip", "hidden": 4}
    straight = world.live(tmp_path / "straight", **given)
    original, steps = Loop._descend, 0

    def counted(self: Loop, *args: Any) -> float:
        nonlocal steps
        if steps == 3:
            raise InterruptedTrainingError
        steps += 1
        return original(self, *args)

    monkeypatch.setattr(Loop, "_descend", counted)
    with pytest.raises(InterruptedTrainingError):
        world.live(tmp_path / "twice", **given)
    monkeypatch.setattr(Loop, "_descend", original)
    resumed = world.live(tmp_path / "twice", **given)
    assert resumed["loss"] == straight["loss"]
    for name in (WEIGHTS, STATE):
        one, other = load_file(tmp_path / "straight" / name), load_file(tmp_path / "twice" / name)
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []
    assert (tmp_path / "straight" / LOG).read_text() == (tmp_path / "twice" / LOG).read_text()


def test_the_command(world: World, tmp_path: Path) -> None:
    places = ["--manifest", str(world.manifest), "--cache", str(world.cache), "--runs", str(world.runs)]
    sets = [
        "steps=2", "batch_size=6", "lr=0.01", "text_lr=1e-3", 'objective={hidden=8}', 'encoder={device="cpu"}',
    ]  # fmt: skip
    options = [*places, "--encoder", SPEC, "--source", world.images, "--out", str(tmp_path / "out")]
    options += [word for one in sets for word in ("--set", one)]
    printed = CliRunner().invoke(train_backbone, ["tevi", *options])
    assert printed.exit_code == 0, printed.output
    line = next(line for line in printed.stdout.splitlines() if line.startswith("next: "))
    run_line(line.removeprefix("next: "))
    again = CliRunner().invoke(train_backbone, ["tevi", *options])
    assert any(line.startswith("run tevi-") for line in again.stdout.splitlines())
