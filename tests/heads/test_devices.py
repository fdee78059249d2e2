"""Where heads learn: named devices, and dropout whose draws are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads import sae_sparse
from vlpipe.heads.commands import train_head
from vlpipe.heads.contracts import SHELF, Batch, Shapes
from vlpipe.heads.dropout import Dropout
from vlpipe.heads.folder import WEIGHTS
from vlpipe.heads.loop import seeded, stream_seed
from vlpipe.heads.training import train_run

World = Any
Maker = Callable[..., World]


def test_devices_by_name() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("abacus", "meta"):
        with pytest.raises(VlpipeError, match=rf"device '{name}' cannot be used .*; expected auto, cpu or cuda"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_one_line(world: Maker) -> None:
    made = world()
    paths = ["--manifest", str(made.manifest.folder), "--cache", str(made.cache), "--runs", str(made.runs)]
    result = CliRunner().invoke(train_head, ["tpc", "--encoder", "enc:a", "--device", "cuda", *paths])
    assert isinstance(result.exception, VlpipeError)
    assert "device 'cuda' cannot be used" in str(result.exception)
    assert not made.runs.exists()


SHORT: dict[str, Any] = {"epochs": 3}
ALIGNED = SHORT | {"latent": 4, "objective": "con"}
KINDS: dict[str, dict[str, Any]] = {
    "identity": {},
    "ridge": {},
    "cca": {"components": 3},
    "tpc": {},
    "projection": ALIGNED,
    "jam": ALIGNED | {"hidden": [8], "dropout": 0.0},
    "sae": SHORT | {"latents": 16, "k": 4},
    "cg_sae": SHORT | {"k": 4, "aux_k": 3},
    "tevi": SHORT | {"hidden": 8},
    "smartclip": SHORT | {"hidden": 8},
    "text_adapter": SHORT,
}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_the_same_run(world: Maker, kind: str) -> None:
    texts = [
        {"text_id": f"t{n}", "text": f"text {n}", "image_id": f"i{n % 80}", "role": "caption"} for n in range(240)
    ]
    texts += [{"text_id": f"p{n}", "text": f"concept {n}", "role": "prompt"} for n in range(16)]
    made = world(images=80, texts=texts)
    sources = {"image": f"enc:a::{made.trained('sae', **KINDS['sae']).run.id}"} if kind == "tevi" else {}
    plan = made.plan(kind, sources=sources, **KINDS[kind])
    here = train_run(plan, made.root / "cpu", "cpu").run
    there = train_run(plan, made.root / "gpu", "cuda").run
    assert here.id == there.id
    ours, wanted = load_file(there.folder / WEIGHTS), load_file(here.folder / WEIGHTS)
    if kind == "cca":  # a pair of singular vectors has no sign
        signs = (ours["image_map"] * wanted["image_map"]).sum(0).sign()
        ours |= {name: ours[name] * signs for name in ("image_map", "text_map")}
    torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-3)


def test_a_run_on_the_cpu_leaves_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> int:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", started)
    before = torch.get_rng_state()
    with seeded(3, 1):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_latents_are_chosen_in_larger_parts_beyond_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    original = sae_sparse.largest

    def counted(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        counts.append(len(scores))
        return original(scores, k)

    monkeypatch.setattr(sae_sparse, "largest", counted)
    monkeypatch.setattr(sae_sparse, "CHUNK_BYTES", 4 * 8 * 4)  # four rows of eight
    for device in ("cpu", "meta"):
        sae_sparse.active(
            torch.ones(9, 3, device=device), *(torch.ones(*n, device=device) for n in ((8, 3), (8,))), 2
        )
    assert counts == [4, 4, 1, 9]


class Waits(TorchDispatchMode):
    """Notes what makes a GPU's caller wait: operations whose result's size, or a number, is in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = [t for t in tree_leaves(args[1:]) if isinstance(t, Tensor) and t.dtype == torch.bool]
        if name in ("nonzero", "_local_scalar_dense") or (name.startswith("index") and masks):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_draws_made_beforehand_are_those_of_the_rows_that_there_are() -> None:
    """In every layer, in the order of use; rows that are not there are 0. A GPU is waited for once."""
    kind, there = SHELF.load("jam"), torch.tensor([[True, False], [False, False], [True, True]])
    config = kind.Config(hidden=[5, 4], latent=2, dropout=0.3, negatives=2)
    head: Any = kind(config, Shapes(dict.fromkeys(("image", "text", "negative"), (6,))))
    batch = Batch([""] * 3, {"image": rows(3), "text": rows(3), "negative": rows(3, 2)}, {"negative": there})
    with Waits() as waits:
        found = head.noise(batch, torch.Generator().manual_seed(7))
    assert waits.found == ["nonzero"]
    generator, expected = torch.Generator().manual_seed(7), []
    for name, layer in head.named_modules():
        if isinstance(layer, Dropout):
            present = [0, 1, 2] if "image" in name else [0, 1, 2, 3, 7, 8]
            drawn = torch.empty(len(present), layer.width).bernoulli_(0.7, generator=generator) / 0.7
            expected.append(torch.zeros(3 if "image" in name else 9, layer.width))
            for place, row in zip(present, drawn, strict=True):
                expected[-1][place] = row
    assert len(found) == len(expected) > 2
    assert all(map(torch.equal, found, expected))


def rows(*shape: int) -> Tensor:
    return torch.ones(*shape, 6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1, 1), (37, 12), (256, 512)])
def test_dropout_is_torchs_to_the_bit(p: float, shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = Dropout(p, shape[1]), torch.nn.Dropout(p)
    found = []
    for layer in (ours, theirs):
        with seeded(3, 1):
            found += [(layer(x), layer(2 * x))]
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    generator = torch.Generator().manual_seed(stream_seed(3, 1))
    ours.given = ours.drawn(len(x), x, generator)
    assert torch.equal(ours(x), found[1][0])
    assert torch.equal(ours.eval()(x), x)
