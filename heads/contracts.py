"""What a head is: it learns from cached rows, and scores images against texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from pydantic import Field
from torch import Tensor, nn

from vlpipe.foundation.config import Config
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.shelf import Shelf

SHELF = Shelf("vlpipe.heads.kinds", "head")
RunId = str
NEEDED = ("Config", "roles", "code", "update", "finish")  # a head of one side may lack what scores


class HeadConfig(Config):
    """Settings of every head; `least_images` of a batch are needed for its loss to say anything."""

    least_images: ClassVar[int] = 1
    seed: int = Field(default=0, ge=0)
    epochs: int = Field(default=1, ge=0)
    batch_size: int = Field(default=1024, ge=1)


class GradientConfig(HeadConfig):
    """Settings of heads that learn by gradient: AdamW, linear warm-up, cosine decay."""

    lr: float = Field(default=5e-4, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    warmup: float = Field(default=0.05, ge=0, le=1)  # share of all steps
    clip_norm: float = Field(default=1.0, gt=0)


@dataclass(frozen=True)
class Role:
    """What a head reads, by meaning.

    `kind` is a text's role in the manifest (caption, hard_negative, view:NAME, ...). `per_image` is how many
    texts of an image a step holds: 1 gives (rows, *shape), K gives (rows, K, *shape) with a mask where an
    image has fewer, None all of them, as many columns as the batch's image with the most has. An `optional` role
    may be missing from the manifest, a `partial` one from some images, but not from all that train.

    `of` names a role before this one that has one text an image: the texts are then those that were made from the
    text that is drawn for it (a caption's own hard negatives), and `per_image` counts these.

    Two kinds of role come with `Shapes`. A `table` is every text of its kind that belongs to no image (class
    prompts, concepts): `Shapes.tables`, once, and in no batch. A role that `stands` is read as the last run of its
    source reads it, and that run's head is handed over: `Shapes.heads`.
    """

    side: Literal["image", "text"]
    kind: str = "caption"
    per_image: int | None = 1
    optional: bool = False
    partial: bool = False
    of: str | None = None
    table: bool = False
    stands: bool = False


@dataclass(frozen=True)
class Source:
    """Where a role's rows come from: a cache output `ENCODER#OUTPUT`, then finished runs' transforms in order."""

    output: str
    through: tuple[RunId, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Rows of one step. A training row is an image; `ids` are its image ids (or text ids when scoring texts).

    `x[role]` is (rows, *shape) or (rows, K, *shape); `mask[role]`, bool, (rows,) or (rows, K), is False where
    there is no such text; `columns` holds manifest columns, one entry a row.
    """

    ids: Sequence[str]
    x: Mapping[str, Tensor]
    mask: Mapping[str, Tensor] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Texts that belong to no image, in manifest order, and their rows (texts, *shape).

    The rows are zeros when the head of a finished run is built: it keeps what it needs of them.
    """

    texts: Sequence[str]
    rows: Tensor


@dataclass(frozen=True)
class Shapes:
    """What a head is built from: the shape of one row of each role, and the constants of its encoder.

    `constants[role]` holds what the encoder that made the role's rows knows of itself ("logit_scale"); `tables`
    and `heads` what the roles with `table` and with `stands` come as.
    """

    rows: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)

    def width(self, role: str) -> int:
        """Length of a role's row vector; raises `VlpipeError` where a row is no vector (patches, tokens)."""
        shape = self.rows[role]
        if len(shape) != 1:
            raise VlpipeError(
                f"role '{role}' has rows of shape {shape}; this head reads one vector a row, shape (width,): "
                f"name a pooled output for it (--source {role}=SPEC#OUTPUT)"
            )
        return shape[0]

    def shared_width(self, head: str) -> int:
        """The one width of images and texts; raises `VlpipeError`, for this head, where they differ."""
        image, text = self.width("image"), self.width("text")
        if image != text:
            raise VlpipeError(
                f"images have {image} values a row and texts {text}: '{head}' needs one space for both; "
                "send the images through a finished ridge run first (--source image=SPEC#OUTPUT::RUN)"
            )
        return text


class Head(Protocol):
    """A small model on cached features. Also an `nn.Module`, whose state dict is what a run keeps.

    `images` takes a batch whose `x` holds every image role. `texts` takes one whose `x` holds the head's first
    text role: when texts are scored they come under that name, whatever their role in the manifest. What both
    return is read by `score` (whole block) and `score_pairs` (row by row), and, under the same role names, by
    heads that stand on this one's run. Neither depends on a row's batch mates.
    """

    Config: ClassVar[type[HeadConfig]]
    roles: ClassVar[Mapping[str, Role]]
    code: ClassVar[int]  # version: raised when the same config would give other weights

    def __init__(self, config: Any, shapes: Shapes) -> None: ...

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn from one batch; scalars to log."""
        ...

    def finish(self) -> None:
        """After the last epoch: a closed-form solve, a last projection."""
        ...

    def images(self, batch: Batch) -> Batch:
        """Image rows as `score` reads them, once a row."""
        ...

    def texts(self, batch: Batch) -> Batch:
        """Text rows as `score` reads them, once a row."""
        ...

    def score(self, images: Batch, texts: Batch) -> Tensor:
        """(images, texts): exact similarity of every image with every text of one block."""
        ...

    def score_pairs(self, images: Batch, texts: Batch) -> Tensor:
        """(rows,): similarity of row i's image with row i's text."""
        ...


def load_head(kind: str) -> type[Head]:
    """A head's class, by its name on the shelf or as `importable.module:Class`.

    Raises what `Shelf.load` raises, and `UsageError` that names what a class lacks to be a head.
    """
    found = SHELF.load(kind)
    lacking = [name for name in NEEDED if not hasattr(found, name)]
    if not lacking and not (isinstance(found.Config, type) and issubclass(found.Config, HeadConfig)):
        lacking = ["a Config derived from HeadConfig"]
    if not issubclass(found, nn.Module):
        lacking.append("the base class torch.nn.Module")
    if lacking:
        raise UsageError(
            f"'{kind}' is not a head: it lacks {', '.join(lacking)}; expected what vlpipe.heads.contracts.Head has"
        )
    return cast("type[Head]", found)


def roles_of(head: type[Head], config: HeadConfig) -> Mapping[str, Role]:
    """The roles of a head under one config.

    They are the class's `roles`, unless it has a class method `roles_for(config)`, for settings that decide what
    is read (TPC's number of views).
    """
    chosen = getattr(head, "roles_for", None)
    roles: Mapping[str, Role] = chosen(config) if chosen else head.roles
    return roles


def roles_on(roles: Mapping[str, Role], side: Literal["image", "text"]) -> list[str]:
    """Names of the roles of one side that batches hold, in the head's order."""
    return [name for name, role in roles.items() if role.side == side and not role.table]


@runtime_checkable
class Scheduled(Protocol):
    """A head that must know how long training takes, for its learning rate or other schedules."""

    def configure(self, total_steps: int) -> None:
        """Called once, before the first `update`."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A head that looks at the training rows before it learns: for means and spreads.

    What it takes from them belongs into its state dict.
    """

    def prepare(self, training: Callable[[], Iterator[Batch]]) -> None:
        """Called once, before the first `update`; not when a run is resumed.

        Each call of `training()` gives every training image once, in batches with all their texts:
        (rows, K, *shape) and a mask for every text role.
        """
        ...


@runtime_checkable
class Resumable(Protocol):
    """A head that carries more between epochs than its state dict: optimiser moments, running sums."""

    def training_state(self) -> dict[str, Tensor]:
        """Plain tensors by name, kept in the checkpoint and not in the finished run."""
        ...

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `training_state` gave; called after `configure` and `load_state_dict`."""
        ...


@runtime_checkable
class Validated(Protocol):
    """A head that looks at validation rows before `finish`, for example to choose a strength."""

    def validate(self, batch: Batch) -> None:
        """See one batch of the validation split."""
        ...


@runtime_checkable
class Monitored(Protocol):
    """A head that looks at validation rows after every epoch, and may end its training early.

    What it keeps meanwhile (the best weights) belongs into its `training_state`; `finish` takes them up.
    """

    def after_epoch(self, epoch: int, validation: Callable[[], Batch]) -> bool:
        """Whether training goes on after `epoch` finished epochs; False stops it for good.

        `validation()` gives all usable images of the validation split in one batch with all their texts:
        (rows, K, *shape) and a mask for every text role. It is read only when called.
        """
        ...


@runtime_checkable
class Reported(Protocol):
    """A head that has something to say of itself once it is finished: a chosen strength, dead latents."""

    def report(self) -> dict[str, float]:
        """Finite scalars for the run's status, beside those of the last epoch."""
        ...


@runtime_checkable
class Tempered(Protocol):
    """A head that knows how sharp a text's scores are."""

    def temperature(self, texts: Batch) -> Tensor:
        """(rows,): the divisor of each text's scores before a softmax."""
        ...


@runtime_checkable
class Mapped(Protocol):
    """A head that says where in an image its score comes from."""

    def maps(self, images: Batch, texts: Batch) -> Tensor:
        """(rows, patches): each patch's share of row i's score."""
        ...
