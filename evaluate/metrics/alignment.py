"""Statistics of how alike two sets of paired rows are, before anything is trained (JAM paper, section 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from vlpipe.evaluate.canonical import Canonical, principal, reduced, singular
from vlpipe.evaluate.cka import Cka
from vlpipe.evaluate.cknna import Cknna
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.evaluate.kernels import KernelName, UndefinedError, checked
from vlpipe.evaluate.pairs import Pairs, Per, pairs_of

TRUE = -1  # the number of the pairing as it is, among the shuffled ones
SHUFFLED = "_shuffled"
VARIANCE, FIRST = 0.99, 10  # SVCCA: share of the variance that is kept, correlations that are averaged


@dataclass(frozen=True)
class Settings:
    """Options of the statistics: widths that rows are reduced to (0: not), neighbours, kernel of CKA and CKNNA."""

    components: int = 50
    dims: int = 10
    neighbours: int = 10
    kernel: KernelName = "linear"


class Statistic(Protocol):
    """One number of two sets of rows."""

    def value(self, order: Tensor) -> float:
        """The number where image i is paired with text `order[i]`."""
        ...


@dataclass(frozen=True)
class Side:
    """Rows (n, d) of one side and what the statistics make of them, each once."""

    rows: Tensor
    settings: Settings

    @cached_property
    def linear(self) -> Tensor:
        """Linear principal components, orthonormal."""
        return principal(self.rows, self.settings.components)

    @cached_property
    def rbf(self) -> Tensor:
        """Components of an RBF kernel, orthonormal."""
        return principal(self.rows, self.settings.components, "rbf")

    @cached_property
    def most(self) -> Tensor:
        """Singular vectors of 99 % of the variance."""
        return singular(self.rows, VARIANCE, None)

    @cached_property
    def ten(self) -> Tensor:
        """The first ten singular vectors."""
        return singular(self.rows, VARIANCE, FIRST)

    @cached_property
    def kept(self) -> Tensor:
        """Rows for CKA and CKNNA."""
        rows = checked(self.rows, 4, "CKA and CKNNA")
        return reduced(rows, self.settings.dims) if self.settings.dims else rows

    def cut(self, rows: int) -> Side:
        """The first rows alone."""
        return self if rows >= len(self.rows) else Side(self.rows[:rows], self.settings)


def _cka(images: Side, texts: Side, debiased: bool) -> Statistic:
    return Cka(images.kept, texts.kept, images.settings.kernel, debiased)


def _cknna(images: Side, texts: Side, estimator: Any) -> Statistic:
    settings = images.settings
    return Cknna(images.kept, texts.kept, settings.neighbours, settings.kernel, estimator)


STATISTICS: Mapping[str, Callable[[Side, Side], Statistic]] = {
    "cca_linear": lambda images, texts: Canonical(images.linear, texts.linear, 1),
    "cca_rbf": lambda images, texts: Canonical(images.rbf, texts.rbf, 1),
    "svcca": lambda images, texts: Canonical(images.most, texts.most, FIRST),
    "svcca_fixed10": lambda images, texts: Canonical(images.ten, texts.ten, FIRST),
    "cka_biased": partial(_cka, debiased=False),
    "cka_debiased": partial(_cka, debiased=True),
    "cknna_paper": partial(_cknna, estimator="paper"),
    "cknna_unbiased": partial(_cknna, estimator="unbiased"),
}
CONDITIONS = ("match", "hard", "easy_image", "easy_text")


class Alignment:
    """CCA, SVCCA, CKA and CKNNA of matches, hard non-matches and easy non-matches.

    `match`: an image and a caption of it; `hard`: the image and a hard negative of that caption; `easy_image`: an
    unrelated picture (white noise) and the caption; `easy_text`: the image and an unrelated text. The unrelated
    rows are those of `inputs.beside`; where there are fewer, the first pairs alone take part.

    Numbers `CONDITION_STATISTIC`, and with `_shuffled` the mean over `permutations` of the texts: what unrelated
    rows of the same spread give. With fewer pairs than values a row most are far from 0.
    They are of the set as a whole: the bootstrap, whose draws hold pairs twice, would raise them.
    """

    resampled: ClassVar[bool] = False

    def __init__(
        self,
        settings: Settings,
        per: Per = "image",
        where: Mapping[str, Sequence[str]] | None = None,
        permutations: int = 10,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.per: Per = per
        self.where = where or {}
        self.permutations = permutations
        self.seed = seed

    def rows(self, inputs: Inputs) -> Rows:
        """One row a condition, statistic and pairing: columns `condition`, `statistic`, `shuffle` (-1: pairs as
        they are), `pairs`, `value`, and where that is NaN `why` it is not defined.

        Raises `VlpipeError` where features are not finite, `UndefinedError` where nothing is defined.
        """
        pairs = pairs_of(inputs, self.per, self.where, self.seed)
        found = [
            {"condition": name, **row}
            for name, (images, texts) in self.conditions(inputs, pairs).items()
            for row in self.measured(images, texts)
        ]
        if all(math.isnan(row["value"]) for row in found):
            raise UndefinedError(next((row["why"] for row in found), "no pair of an image and a caption"))
        ids = np.array([f"{row['condition']}_{row['statistic']}" for row in found], dtype=object)
        kinds = {"shuffle": np.int64, "pairs": np.int64, "value": np.float64}
        values = {name: np.array([row[name] for row in found], kinds.get(name, object)) for name in found[0]}
        return Rows(ids, np.full(len(ids), -1, dtype=np.int64), values)

    def conditions(self, inputs: Inputs, pairs: Pairs) -> dict[str, tuple[Side, Side]]:
        """Both sides of every condition that the inputs have rows for, as long as each other."""
        images = Side(inputs.vectors("image", pairs.images), self.settings)
        texts = Side(inputs.vectors("text", pairs.texts), self.settings)
        made = {"match": (images, texts)}
        if pairs.negatives is not None:
            made["hard"] = (images, Side(inputs.vectors("text", pairs.negatives), self.settings))
        if inputs.beside is not None:
            easy = inputs.beside
            noise, other = len(easy.image_ids), len(easy.text_ids)
            if noise:
                made["easy_image"] = (Side(self._drawn(easy, "image", noise), self.settings), texts)
            if other:
                made["easy_text"] = (images, Side(self._drawn(easy, "text", other), self.settings))
        shortest = {name: min(len(one.rows), len(two.rows)) for name, (one, two) in made.items()}
        return {name: (one.cut(shortest[name]), two.cut(shortest[name])) for name, (one, two) in made.items()}

    def _drawn(self, easy: Inputs, side: Any, count: int) -> Tensor:
        return easy.vectors(side, np.random.default_rng(self.seed).permutation(count))

    def measured(self, images: Side, texts: Side) -> Iterator[dict[str, Any]]:
        """Every statistic of paired rows, as they are and shuffled."""
        n = len(images.rows)
        draw = np.random.default_rng(self.seed)
        orders = {TRUE: torch.arange(n)}
        orders |= {number: torch.from_numpy(draw.permutation(n)) for number in range(self.permutations)}
        for name, make in STATISTICS.items():
            shared = {"statistic": name, "pairs": n}
            try:
                made = make(images, texts)
                values = {number: made.value(order) for number, order in orders.items()}
            except UndefinedError as error:
                yield {**shared, "shuffle": TRUE, "value": math.nan, "why": str(error)}
                continue
            for number, value in values.items():
                yield {**shared, "shuffle": number, "value": value, "why": ""}

    def summarise(self, rows: Rows) -> dict[str, float]:
        """Every number that is defined."""
        return {name: float(rows.values["value"][own].mean()) for name, own in self._named(rows)}

    def counts(self, rows: Rows) -> dict[str, int]:
        """Pairs behind each number."""
        return {name: int(rows.values["pairs"][own][0]) for name, own in self._named(rows)}

    @staticmethod
    def _named(rows: Rows) -> Iterator[tuple[str, Any]]:
        """Names of numbers and the rows (bool) that each is the mean of."""
        defined, true = ~np.isnan(rows.values["value"]), rows.values["shuffle"] == TRUE
        for name in dict.fromkeys(rows.query_ids.tolist()):
            for suffix, kind in (("", true), (SHUFFLED, ~true)):
                own = defined & kind & (rows.query_ids == name)
                if own.any():
                    yield name + suffix, own
