"""Where heads learn: named devices, and dropout whose draws are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from vlpipe.foundation.devices import pick_device
from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.commands import train_head
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


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["jam", "projection", "tpc", "ridge", "cca", "sae"])
def test_a_gpu_trains_the_same_run(world: Maker, kind: str) -> None:
    made = world(images=80)
    small = {"jam": {"hidden": [8], "dropout": 0.0, "objective": "con"}, "projection": {"objective": "con"}}
    settings: dict[str, Any] = {**small.get(kind, {})}
    if kind in ("jam", "projection"):
        settings |= {"epochs": 3, "latent": 4}
    if kind == "sae":
        settings |= {"latents": 16, "k": 4, "epochs": 3}
    if kind == "cca":
        settings |= {"components": 3}
    plan = made.plan(kind, **settings)
    here = train_run(plan, made.root / "cpu", "cpu").run
    there = train_run(plan, made.root / "gpu", "cuda").run
    assert here.id == there.id
    ours, wanted = load_file(there.folder / WEIGHTS), load_file(here.folder / WEIGHTS)
    torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-3)


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
