"""Every head on the shelf, and one from outside, keeps the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.heads.checkpoint import load_tensors, load_weights, save_tensors
from vlpipe.heads.contracts import (
    SHELF,
    Batch,
    Resumable,
    Scheduled,
    Shapes,
    Table,
    Tempered,
    Validated,
    roles_of,
    roles_on,
)
from vlpipe.heads.loop import seeded

WIDTH, ROWS, MOST = 6, 12, 3
NAMES = [*SHELF.names(), "vlpipe.heads.kinds.tpc:Tpc"]
CONCEPTS = 16


def shapes_of(roles: Any, constants: Any = None) -> Shapes:
    """Rows of `WIDTH` values; a table of concepts, and a small autoencoder, for the roles that ask for them."""
    rows: dict[str, tuple[int, ...]] = dict.fromkeys(roles, (WIDTH,))
    with seeded(7):
        table = Table([f"concept {n}" for n in range(CONCEPTS)], torch.randn(CONCEPTS, WIDTH))
        sae = SHELF.load("sae")
        under = sae(sae.Config(k=4, expansion=2), Shapes({"image": (WIDTH,)}))
    tables = {name: table for name, role in roles.items() if role.table}
    return Shapes(rows, constants or {}, tables, {name: under for name, role in roles.items() if role.stands})


def scores(head: Any) -> bool:
    """Whether a head reads both sides; one of a single side scores nothing."""
    return all(roles_on(head.roles, side) for side in ("image", "text"))


def batch(roles: Any, rows: int = ROWS, dtype: torch.dtype = torch.float32, seed: int = 0) -> Batch:
    """A training batch as `Joined` makes it, with some captions missing."""
    generator = torch.Generator().manual_seed(seed)
    x, mask = {}, {}
    for name in (*roles_on(roles, "image"), *roles_on(roles, "text")):
        role = roles[name]
        views = MOST if role.per_image is None else role.per_image
        shape = (rows,) if role.side == "image" or views == 1 else (rows, views)
        x[name] = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        mask[name] = torch.ones(shape, dtype=torch.bool)
        if len(shape) == 2 and views > 1:
            mask[name][0, 1:] = False
            x[name][0, 1:] = 0
    ids = [f"i{n}" for n in range(rows)]
    return Batch(ids, x, mask, {"label": ["a"] * rows})


def built(name: str, rows: int = ROWS) -> Any:
    """A head of its defaults, trained on one tiny batch."""
    head_class = SHELF.load(name)
    config = head_class.Config()
    roles = roles_of(head_class, config)
    constants = {role: {"logit_scale": 10.0} for role in roles}
    torch.manual_seed(0)
    head: Any = head_class(config, shapes_of(roles, constants))
    if isinstance(head, Scheduled):
        head.configure(3)
    for step in range(3):
        scalars = head.update(batch(roles, rows, seed=step))
        assert all(isinstance(value, float) for value in scalars.values())
    if isinstance(head, Validated):
        head.validate(batch(roles, rows, seed=9))
    head.finish()
    return head.eval()


def sides(head: Any, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> tuple[Batch, Batch]:
    """Images and texts as evaluation gives them."""
    if not scores(head):
        pytest.skip("reads one side, so it scores nothing")
    generator = torch.Generator().manual_seed(5)

    def draw() -> Tensor:
        return torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype)

    ids = [str(n) for n in range(rows)]
    images = Batch(ids, {name: draw() for name in roles_on(head.roles, "image")})
    return images, Batch(ids, {roles_on(head.roles, "text")[0]: draw()})


def part(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.ids[rows], {name: value[rows] for name, value in batch.x.items()})


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_diagonal_of_score_is_score_pairs(name: str) -> None:
    head = built(name)
    images, texts = sides(head)
    left, right = head.images(images), head.texts(texts)
    scores = head.score(left, right)
    assert scores.shape == (ROWS, ROWS)
    torch.testing.assert_close(scores.diagonal(), head.score_pairs(left, right), atol=1e-6, rtol=0)
    assert scores.std() > 0.01


def test_rows_do_not_depend_on_batch_mates(name: str) -> None:
    head = built(name)
    images, texts = sides(head)
    for whole, encode in ((images, head.images), (texts, head.texts)):
        together = encode(whole)
        for row in (0, ROWS - 1):
            alone = encode(part(whole, slice(row, row + 1)))
            for key, value in together.x.items():
                torch.testing.assert_close(alone.x[key][0], value[row], atol=1e-6, rtol=0)


def test_ids_stay_with_their_rows(name: str) -> None:
    head = built(name)
    images, texts = sides(head)
    assert head.images(images).ids == images.ids
    assert head.texts(texts).ids == texts.ids


def test_float64_stays_float64_and_halves_are_lifted(name: str) -> None:
    head = built(name)
    for given, expected in ((torch.float64, torch.float64), (torch.float16, torch.float32)):
        images, texts = sides(head, dtype=given)
        scores = head.score(head.images(images), head.texts(texts))
        assert scores.dtype == expected
        assert torch.isfinite(scores).all()


def test_save_and_load_give_the_same_scores_to_the_bit(name: str, tmp_path: Path) -> None:
    head = built(name)
    save_tensors(tmp_path / "head.safetensors", head.state_dict())
    roles = dict(head.roles)
    again = SHELF.load(name)(SHELF.load(name).Config(), shapes_of(roles))
    load_weights(again, load_tensors(tmp_path / "head.safetensors", ""), tmp_path, "")
    images, texts = sides(head)
    expected = head.score(head.images(images), head.texts(texts))
    assert torch.equal(again.eval().score(again.images(images), again.texts(texts)), expected)


def test_temperatures_are_positive_and_one_a_text(name: str) -> None:
    head = built(name)
    _, texts = sides(head)
    if isinstance(head, Tempered):
        temperature = head.temperature(head.texts(texts))
        assert temperature.shape == (ROWS,)
        assert (temperature > 0).all()


@pytest.mark.parametrize("spoil", ["zero", "constant", "none"])
def test_degenerate_rows_stay_finite(name: str, spoil: str) -> None:
    """Zero vectors, a constant column, a single row: finite losses, weights and scores."""
    head_class = SHELF.load(name)
    config = head_class.Config()
    roles = roles_of(head_class, config)
    head: Any = head_class(config, shapes_of(roles))
    given = batch(roles, 1 if spoil == "none" else ROWS)
    for rows in given.x.values():
        if spoil == "zero":
            rows[1] = 0
        if spoil == "constant":
            rows[..., 2] = 7.0
    scalars = head.update(given)
    if isinstance(head, Validated):
        head.validate(given)
    head.finish()
    assert all(torch.isfinite(torch.tensor(value)) for value in scalars.values())
    assert all(torch.isfinite(value).all() for value in head.state_dict().values() if value.dim())
    if not scores(head):
        return
    images, texts = sides(head)
    images.x[roles_on(head.roles, "image")[0]][0] = 0
    texts.x[roles_on(head.roles, "text")[0]][0] = 0
    assert torch.isfinite(head.score(head.images(images), head.texts(texts))).all()


def test_training_state_continues_to_the_bit(name: str) -> None:
    """Two updates, handed over as plain tensors, one more: equal to three in one go."""
    head_class = SHELF.load(name)
    config = head_class.Config()
    roles = roles_of(head_class, config)
    heads: list[Any] = []
    for _ in range(3):
        with seeded(9):  # as the loop does, for first weights and for dropout
            heads.append(head_class(config, shapes_of(roles)))
    straight, first, second = heads
    for head in (straight, first, second):
        if isinstance(head, Scheduled):
            head.configure(3)
    for step in range(3):
        for head in (straight, first)[: 2 if step < 2 else 1]:
            with seeded(step):
                head.update(batch(roles, seed=step))
    second.load_state_dict(first.state_dict())
    if isinstance(first, Resumable):
        second.load_training_state({key: value.clone() for key, value in first.training_state().items()})
    with seeded(2):
        second.update(batch(roles, seed=2))
    for head in (straight, second):
        if isinstance(head, Validated):
            head.validate(batch(roles, seed=9))
        head.finish()
    for key, value in straight.state_dict().items():
        assert torch.equal(second.state_dict()[key], value) or value.isnan().all()


def test_unknown_heads_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        SHELF.load("rigde")
    with pytest.raises(UsageError, match=r"importable\.module:Class"):
        SHELF.load("vlpipe.heads.kinds.tpc:Nothing")
