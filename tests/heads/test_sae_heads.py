"""The sparse autoencoder heads: codes, dead latents, reports, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.checkpoint import load_tensors, load_weights, save_tensors
from vlpipe.heads.contracts import Batch, Shapes, Table
from vlpipe.heads.kinds.cg_sae import CgSae
from vlpipe.heads.kinds.sae import Sae

WIDTH = 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch(rows: Tensor) -> Batch:
    return Batch([str(n) for n in range(len(rows))], {"image": rows})


def sparse_rows(count: int, latents: int = 12, seed: int = 0) -> Tensor:
    """Sums of two of some directions, around a mean that is not 0."""
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(99).normal(size=(latents, WIDTH))
    code = np.zeros((count, latents))
    for row in code:
        row[rng.choice(latents, 2, replace=False)] = rng.uniform(1, 2, 2)
    return torch.from_numpy(code @ directions + 5.0).float()


def sae(**settings: Any) -> Sae:
    torch.manual_seed(settings.pop("seed", 0))
    return Sae(Sae.Config(**{"k": 3, "latents": 24, "lr": 1e-2, **settings}), Shapes({"image": (WIDTH,)}))


def cg_sae(concepts: Tensor, **settings: Any) -> CgSae:
    shapes = Shapes({"image": (WIDTH,), "concept": (concepts.shape[1],)})
    table = Table([f"c{n}" for n in range(len(concepts))], concepts)
    torch.manual_seed(0)
    return CgSae(CgSae.Config(**{"k": 3, **settings}), Shapes(shapes.rows, tables={"concept": table}))


def trained(head: Any, rows: Tensor, steps: int) -> dict[str, float]:
    head.configure(steps)
    head.prepare(lambda: iter([batch(rows)]))
    scalars: dict[str, float] = {}
    for _ in range(steps):
        scalars = head.update(batch(rows))
    return scalars


def test_codes_follow_equation_3_row_by_row() -> None:
    head = sae()
    rows = drawn(6, WIDTH)
    values, indices = head.codes(rows)
    model = head.autoencoder.requires_grad_(False)
    for row in range(6):
        pre = [float((rows[row] - model.b_pre) @ w + b) for w, b in zip(model.W_enc, model.b_enc, strict=True)]
        order = sorted(range(24), key=lambda n: -pre[n])[:3]
        assert indices[row].tolist() == order
        assert values[row].tolist() == pytest.approx([max(0.0, pre[n]) for n in order], abs=1e-6)
        rebuilt = model.b_pre + sum(max(0.0, pre[n]) * model.W_dec[n] for n in order)
        torch.testing.assert_close(head.images(batch(rows[row : row + 1])).x["image"][0], rebuilt)


def test_a_code_is_the_same_alone_in_a_batch_and_in_three_dimensions() -> None:
    head = sae().double()
    rows = drawn(12, WIDTH).double()
    values, indices = head.codes(rows)
    for n in range(12):
        alone, same = head.codes(rows[n : n + 1])
        assert torch.equal(same[0], indices[n])
        torch.testing.assert_close(alone[0], values[n], atol=1e-12, rtol=0)
    cube, places = head.codes(rows.reshape(3, 4, WIDTH))
    assert torch.equal(places.reshape(12, 3), indices)
    torch.testing.assert_close(cube.reshape(12, 3), values, atol=1e-12, rtol=0)
    assert int((values > 0).sum(dim=1).max()) <= 3


def test_training_explains_sparse_data_and_keeps_the_decoder_at_unit_norm() -> None:
    head, rows = sae(k=2, lr=3e-2), sparse_rows(256)
    first = trained(head, rows, 1)["unexplained"]
    last = trained(head, rows, 400)["unexplained"]
    assert last < 0.2 < 0.4 < first
    torch.testing.assert_close(head.autoencoder.W_dec.norm(dim=1), torch.ones(24), atol=1e-5, rtol=0)
    head.validate(batch(sparse_rows(64, seed=5)))
    report = head.report()
    assert report["explained_variance"] > 0.8
    assert 1 <= report["l0"] <= 2


def test_explained_variance_and_l0_against_numpy() -> None:
    head, rows = sae(), sparse_rows(40)
    trained(head, rows, 3)
    for part in rows.split(15):
        head.validate(batch(part))
    x, x_hat = rows.double().numpy(), head.images(batch(rows)).x["image"].double().numpy()
    expected = 1 - ((x - x_hat) ** 2).sum() / ((x - x.mean(axis=0)) ** 2).sum()
    report = head.report()
    assert report["explained_variance"] == pytest.approx(expected, abs=1e-6)
    assert report["l0"] == pytest.approx(float((head.codes(rows)[0] > 0).sum() / 40))


@pytest.mark.parametrize("start", ["geometric_median", "mean", "zero"])
def test_the_bias_starts_among_the_training_rows(start: str) -> None:
    head, rows = sae(start=start), sparse_rows(100)
    head.prepare(lambda: iter([batch(rows[:60]), batch(rows[60:])]))
    found = head.autoencoder.b_pre.detach()
    if start == "mean":
        torch.testing.assert_close(found, rows.mean(dim=0))
    if start == "geometric_median":
        assert 0 < float((found - rows.mean(dim=0)).norm()) < 2
    if start == "zero":
        assert not found.any()
    spread = rows.double().var(dim=0, correction=0).sum()
    assert float(head.get_buffer("variance")) == pytest.approx(float(spread), rel=1e-5)
    assert torch.equal(head.autoencoder.W_enc, head.autoencoder.W_dec)


def test_idle_latents_are_counted_in_samples() -> None:
    head, rows = sae(dead_after=50), drawn(20, WIDTH)
    for _ in range(3):
        head.update(batch(rows))
        fired = torch.zeros(24, dtype=torch.bool)
        values, indices = head.codes(rows)
        fired[indices[values > 0]] = True
    idle = head.get_buffer("idle")
    assert set(idle.tolist()) <= {0, 20, 40, 60}
    assert torch.equal(head.dead(), (idle >= 50).nonzero()[:, 0])


def test_dead_latents_revive_and_most_do_not_without_the_auxiliary_loss() -> None:
    """Twenty of 24 latents start behind the others by their bias."""
    fired = {}
    for weight in (1 / 32, 0.0):
        head, rows = sae(k=2, aux_k=3, aux_weight=weight, dead_after=256, lr=3e-2), sparse_rows(256)
        with torch.no_grad():
            head.autoencoder.b_enc[:20] = -4.0
            head.autoencoder.b_enc[20:] = 2.0
        trained(head, rows, 2)
        assert len(head.dead()) >= 15
        trained(head, rows, 300)
        values, indices = head.codes(rows)
        fired[weight] = len(set(indices[values > 0].tolist()) & set(range(20)))
    assert fired[0.0] <= 8
    assert fired[1 / 32] >= 14


def test_more_auxiliary_than_dead_latents_are_clamped() -> None:
    head, rows = sae(aux_k=24, dead_after=1), drawn(5, WIDTH)
    head.get_buffer("idle")[:2] = 10
    scalars = head.update(batch(rows))
    assert scalars["dead"] == 2
    assert np.isfinite(scalars["auxiliary"])


@pytest.mark.parametrize("rows", [torch.full((9, WIDTH), 3.0), torch.zeros(9, WIDTH), drawn(1, WIDTH)])
def test_constant_rows_are_explained_by_the_bias_and_have_no_explained_variance(rows: Tensor) -> None:
    head = sae()
    scalars = trained(head, rows, 5)
    assert scalars["unexplained"] < 1e-2
    head.validate(batch(rows))
    assert "explained_variance" not in head.report()
    assert all(torch.isfinite(p).all() for p in head.parameters())


def test_unit_norm_reads_directions_only() -> None:
    head, rows = sae(unit_norm=True), drawn(5, WIDTH)
    for ours, tripled in zip(head.codes(rows), head.codes(3 * rows), strict=True):
        torch.testing.assert_close(ours, tripled)


@pytest.mark.parametrize("learn", [False, True])
def test_concepts_are_the_decoder_and_stay_or_start(learn: bool) -> None:
    concepts = 3 * drawn(10, WIDTH, seed=4)
    head = cg_sae(concepts, learn=learn)
    expected = concepts / concepts.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.autoencoder.W_dec.detach(), expected)
    before = head.autoencoder.W_dec.detach().clone()
    trained(head, sparse_rows(64), 20)
    assert torch.equal(head.autoencoder.W_dec, before) is not learn
    assert not torch.equal(head.autoencoder.W_enc, before)
    assert head.names == [f"c{n}" for n in range(10)]


def test_centred_concepts_lose_their_mean() -> None:
    concepts = drawn(10, WIDTH, seed=4) + 7
    found = cg_sae(concepts, centred=True).autoencoder.W_dec.detach()
    expected = concepts - concepts.mean(dim=0)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("value", [1.0, 1e-3, 1e4])
def test_centred_concepts_that_are_equal_are_no_directions(value: float) -> None:
    """Of nine equal rows float32 keeps rounding noise, which must not become unit vectors."""
    row = value * torch.rand(1, WIDTH, generator=torch.Generator().manual_seed(1))
    equal = row.expand(9, -1)
    assert (equal - equal.mean(dim=0)).any()
    for concepts in (equal, row):
        head = cg_sae(concepts.clone(), centred=True, k=1)
        assert not head.autoencoder.W_dec.any()
        with pytest.raises(VlpipeError, match=r"concept 'c0' is the mean of all.*centred"):
            trained(head, sparse_rows(8), 1)
    mixed = torch.cat([row + value * drawn(1, WIDTH), row - value * drawn(1, WIDTH), row])
    with pytest.raises(VlpipeError, match=r"concept 'c2' is the mean of all \(1 such\)"):
        trained(cg_sae(mixed, centred=True, k=1), sparse_rows(8), 1)


def test_centred_concepts_may_be_close_to_each_other() -> None:
    concepts = 1 + 1e-4 * drawn(5, WIDTH, seed=4).double()
    found = cg_sae(concepts.float(), centred=True).autoencoder.W_dec.detach().double()
    expected = concepts - concepts.mean(dim=0)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True), atol=3e-3, rtol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(bad: float) -> None:
    rows = sparse_rows(20)
    rows[13, 2] = bad
    later = Batch([str(n) for n in range(10, 20)], {"image": rows[10:]})
    with pytest.raises(VlpipeError, match=r"1 of 10 training images .*not finite.*the first is '13'"):
        sae().prepare(lambda: iter([batch(rows[:10]), later]))
    head = sae()
    head.prepare(lambda: iter([batch(rows[:10])]))
    with pytest.raises(VlpipeError, match=r"1 of 20 validation images .*the first is '13'"):
        head.validate(batch(rows))
    concepts = drawn(4, WIDTH)
    concepts[1, 0] = bad
    for centred in (False, True):
        with pytest.raises(VlpipeError, match=r"1 of 4 concepts .*the first is 'c1'"):
            cg_sae(concepts, centred=centred)


def test_without_training_images_there_is_no_start() -> None:
    with pytest.raises(VlpipeError, match="no training images"):
        sae().prepare(lambda: iter([]))


def test_a_row_that_is_not_finite_is_found_beyond_those_that_the_bias_starts_among(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vlpipe.heads.sae_head.START_ROWS", 10)
    rows = sparse_rows(30)
    head = sae(start="mean")
    head.prepare(lambda: map(batch, rows.split(10)))
    torch.testing.assert_close(head.autoencoder.b_pre.detach(), rows[:10].mean(dim=0))
    rows[29] = torch.nan
    with pytest.raises(VlpipeError, match="the first is '9'"):
        head.prepare(lambda: map(batch, rows.split(10)))


def test_saved_and_loaded_codes_are_equal_to_the_bit(tmp_path: Path) -> None:
    rows = sparse_rows(32)
    for make in (sae, lambda: cg_sae(drawn(10, WIDTH, seed=4))):
        head: Any = make()
        trained(head, rows, 5)
        save_tensors(tmp_path / "head.safetensors", head.state_dict())
        again = sae() if isinstance(head, Sae) else cg_sae(torch.zeros(10, WIDTH))
        load_weights(again, load_tensors(tmp_path / "head.safetensors", ""), tmp_path, "")
        for ours, theirs in zip(head.codes(rows), again.codes(rows), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(head.images(batch(rows)).x["image"], again.images(batch(rows)).x["image"])


def test_impossible_sizes_and_concepts_are_refused() -> None:
    with pytest.raises(VlpipeError, match="k = 25 active latents of 24: expected 1 to 24"):
        sae(k=25)
    with pytest.raises(VlpipeError, match="k = 12 active latents of 4"):
        cg_sae(drawn(4, WIDTH), k=12)
    with pytest.raises(VlpipeError, match="images have 8 values a row and concepts 5"):
        cg_sae(drawn(4, 5))
    concepts = drawn(4, WIDTH)
    concepts[2] = 0
    with pytest.raises(VlpipeError, match="embedding of concept 'c2' is zero"):
        trained(cg_sae(concepts), sparse_rows(8), 1)
