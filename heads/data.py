"""The rows of a manifest's images and texts, joined by id with the cached features of each role."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.columns import Columns, Reader
from vlpipe.heads.contracts import Batch, Role, Shapes, Table, roles_on
from vlpipe.heads.sources import CachedRows
from vlpipe.heads.splits import StrArray, canonical, split_of
from vlpipe.heads.tables import BoolArray, IntArray, Tables, TextsByOwner, ids_at

STRETCH_BYTES = 8 << 20  # what the rows of several batches that are fetched at once may take


class Joined:
    """Batches for a head, from tables and one `CachedRows` a role.

    An image is usable when each role that is not optional has a usable row for it, and evaluable when each image
    role has. All positions are those of the manifest's tables.
    """

    def __init__(
        self, tables: Tables, roles: Mapping[str, Role], sources: Mapping[str, CachedRows], rule: str
    ) -> None:
        self.tables = tables
        self.roles = roles
        self.sources = sources
        self.rule = rule
        self.image_ids = tables.image_ids
        self.text_ids = tables.text_ids
        self.text_image = tables.text_image
        self.text_role = tables.text_role
        self.image_roles = roles_on(roles, "image")
        self.text_roles = roles_on(roles, "text")
        _check_parents(roles)
        self.split: StrArray = split_of(rule, tables.image_ids, tables.split)
        self.by_image = {
            name: self._texts_by(self.text_image, name, len(self.image_ids)) for name in self.text_roles
        }
        self.by_source = {
            name: self._texts_by(tables.text_source, name, len(self.text_ids))
            for name in self.text_roles
            if roles[name].of is not None
        }
        self.seen = self._usable(self.image_roles)
        self.usable = self.seen & self._usable(self.text_roles)

    def images(self, split: str | None) -> IntArray:
        """Positions of the usable images of a split (None: of all), in manifest order."""
        return self._of_split(self.usable, split)

    def evaluable(self, split: str | None) -> IntArray:
        """Positions of the images of a split (None: of all) that can be scored, whatever texts they have.

        A role that only training reads may be missing from the manifest that a run is evaluated on.
        """
        return self._of_split(self.seen, split)

    def texts_of(self, images: IntArray, kinds: Sequence[str], without_image: bool = False) -> IntArray:
        """Positions of the usable texts of these images with these manifest roles, in manifest order.

        `without_image` adds those that belong to no image: distractors, class prompts.
        """
        wanted = np.zeros(len(self.image_ids) + 1, dtype=np.bool_)
        wanted[images] = True
        wanted[-1] = without_image  # position -1: no image
        chosen = wanted[self.text_image] & np.isin(self.text_role, list(kinds))
        if self.text_roles:
            chosen &= self.sources[self.text_roles[0]].usable
        return np.flatnonzero(chosen)

    def image_batch(self, positions: IntArray) -> Batch:
        """Every image role, (rows, *shape) each; ids are image ids."""
        x, mask = {}, {}
        for name in self.image_roles:
            x[name], mask[name] = self._rows(name, positions)
        return Batch(ids_at(self.image_ids, positions), x, mask, self._columns(positions, {}))

    def text_batch(self, positions: IntArray, role: str) -> Batch:
        """Texts of any kind, one a row, under a role; ids are text ids, columns hold "text"."""
        rows, mask = self._rows(role, positions)
        columns = {"text": self.tables.texts(positions)}
        return Batch(ids_at(self.text_ids, positions), {role: rows}, {role: mask}, columns)

    def training_batch(self, positions: IntArray, seed: int, epoch: int) -> Batch:
        """Every role of some images; which texts an image gets depends on seed, epoch and image alone.

        Columns hold "label", and under each text role's name its texts: one a row, or a list a row.
        """
        return self._with_texts(positions, self._drawn(positions, seed, epoch))

    def training_batches(self, order: IntArray, size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """`training_batch` of `size` images after the other, to the bit; rows of several are fetched at once."""
        stretch = self._stretch(size)
        for first in range(0, len(order), stretch):
            yield from _parts(self.training_batch(order[first : first + stretch], seed, epoch), size)

    def whole_batch(self, positions: IntArray) -> Batch:
        """Every role of some images, with all their texts: as `training_batch` were every `per_image` None."""
        chosen = {name: _every(self.by_image[name], positions) for name in self.text_roles}
        return self._with_texts(positions, chosen)

    def shapes(self) -> Shapes:
        """What a head is built from; raises `VlpipeError` where the manifest has no texts for a table."""
        rows = {name: source.shape for name, source in self.sources.items()}
        constants = {name: dict(source.features.constants) for name, source in self.sources.items()}
        tables = {name: self._table(name, role.kind) for name, role in self.roles.items() if role.table}
        heads = {name: source.under.head for name, source in self.sources.items() if source.under is not None}
        return Shapes(rows, constants, tables, heads)

    def counts(self) -> dict[str, Any]:
        """Images by split that take part, images left out, and each role's rows: usable, failed, absent, zero.

        Beside them, by manifest role of a text that every image needs, the images that have none in the manifest.
        """
        names, numbers = np.unique(self.split[self.usable], return_counts=True)
        splits = {str(name) or "(none)": int(number) for name, number in zip(names, numbers, strict=True)}
        roles = {name: source.counts() for name, source in self.sources.items()}
        left = int((~self.usable).sum())
        return {"images": splits, "images_left_out": left, "images_without": self._without(), "roles": roles}

    def content(self) -> dict[str, str]:
        """By role: digest of the pictures or texts that were encoded (`FeatureSet.content_digest`)."""
        return {name: source.features.content_digest for name, source in self.sources.items()}

    def digest(self) -> str:
        """SHA-256 of which rows are usable and of each image's split."""
        found = hashlib.sha256(np.packbits(self.usable).tobytes())
        for name, role in self.roles.items():
            if role.side == "text":
                found.update(np.packbits(self.sources[name].usable).tobytes())
        found.update("\n".join(self.split.tolist()).encode("utf-8"))
        return found.hexdigest()

    def _table(self, name: str, kind: str) -> Table:
        """Every usable text of a kind that belongs to no image."""
        source = self.sources[name]
        chosen = np.flatnonzero(source.usable & (self.text_role == kind) & (self.text_image < 0))
        if not len(chosen):
            raise VlpipeError(
                f"role '{name}' is made of texts with the role '{kind}' that belong to no image, and the manifest "
                "has none with features; build it with them, then extract its texts"
            )
        return Table(self.tables.texts(chosen), source.take(chosen))

    def _texts_by(self, owner: IntArray, name: str, owners: int) -> TextsByOwner:
        eligible = self.sources[name].usable & (self.text_role == self.roles[name].kind)
        return TextsByOwner(owner, eligible, owners)

    def _usable(self, roles: Sequence[str]) -> BoolArray:
        """Images (images,) for which each of these roles that is not optional has a row."""
        usable: BoolArray = np.ones(len(self.image_ids), dtype=np.bool_)
        for name in roles:
            role = self.roles[name]
            if not (role.optional or role.partial):
                usable &= self.sources[name].usable if role.side == "image" else self.by_image[name].have()
        return usable

    def _without(self) -> dict[str, int]:
        """By manifest role of a text that every image needs: how many images have none in the manifest, if any."""
        found = {}
        for role in (self.roles[name] for name in self.text_roles):
            have = self.text_image[(self.text_role == role.kind) & (self.text_image >= 0)]
            lacking = len(self.image_ids) - len(np.unique(have))
            if lacking and not (role.optional or role.partial):
                found[role.kind] = lacking
        return found

    def _of_split(self, images: BoolArray, split: str | None) -> IntArray:
        return np.flatnonzero(images if split is None else images & (self.split == canonical(split)))

    def _with_texts(self, positions: IntArray, chosen: Mapping[str, IntArray]) -> Batch:
        """Image rows, and for each text role those at the positions that are chosen for it."""
        images = self.image_batch(positions)
        x, mask = dict(images.x), dict(images.mask)
        for name in self.text_roles:
            x[name], mask[name] = self._rows(name, chosen[name])
        return Batch(images.ids, x, mask, self._columns(positions, chosen))

    def _stretch(self, size: int) -> int:
        """Images whose rows are fetched at once: as many batches as fit, one where batches are not parts of it.

        Those are what finished runs make of rows, whose last bits may depend on how many there are, and roles as
        wide as the batch's image with the most texts.
        """
        wide = any(self.roles[name].per_image is None for name in self.text_roles)
        if wide or any(source.through for source in self.sources.values()):
            return size
        each = [prod(self.sources[n].shape) * (self.roles[n].per_image or 1) for n in self._in_batches()]
        return size * max(1, STRETCH_BYTES // (4 * size * max(1, sum(each))))

    def _in_batches(self) -> list[str]:
        return [*self.image_roles, *self.text_roles]

    def _drawn(self, images: IntArray, seed: int, epoch: int) -> dict[str, IntArray]:
        """By text role: positions of texts, (images,) or (images, K), -1 for none."""
        found: dict[str, IntArray] = {}
        for name in self.text_roles:
            role = self.roles[name]
            texts = self.by_image[name] if role.of is None else self.by_source[name]
            owners = images if role.of is None else found[role.of]
            if role.per_image is None:
                found[name] = _every(texts, owners)
                continue
            drawn = texts.drawn(owners, role.per_image, seed, epoch)
            found[name] = drawn[:, 0] if role.per_image == 1 else drawn
        return found

    def _rows(self, name: str, positions: IntArray) -> tuple[Tensor, Tensor]:
        """Rows of one role and their mask; zeros and False at position -1, and where an optional role has none."""
        source, flat = self.sources[name], positions.reshape(-1)
        there = flat >= 0
        if self.roles[name].optional or self.roles[name].partial:
            there[there] = source.usable[flat[there]]
        rows = source.take(flat[there])
        if not there.all():
            found, rows = rows, rows.new_zeros(len(flat), *source.shape)
            rows[torch.from_numpy(there)] = found
        return rows.reshape(*positions.shape, *source.shape), torch.from_numpy(there.reshape(positions.shape))

    def _columns(self, images: IntArray, texts: Mapping[str, IntArray]) -> Columns:
        """The label of each image, and under each text role's name its texts."""
        readers: dict[str, Reader] = {"label": partial(ids_at, self.tables.label)}
        readers |= dict.fromkeys(texts, self._texts)
        return Columns(readers, {"label": images, **texts})

    def _texts(self, positions: IntArray) -> list[Any]:
        flat = self.tables.texts(positions.reshape(-1))
        if positions.ndim == 1:
            return flat
        width = positions.shape[1]
        return [flat[start : start + width] for start in range(0, len(flat), width)]


def _check_parents(roles: Mapping[str, Role]) -> None:
    """Raise `VlpipeError` where a role's texts cannot be those that were made of another role's text."""
    before: list[str] = []
    for name, role in roles.items():
        parent = roles[role.of] if role.of in before else None
        if role.of is not None and (parent is None or parent.side != "text"):
            raise VlpipeError(
                f"role '{name}' reads texts that were made of the text of role '{role.of}': expected the name of "
                f"a text role before it, one of {', '.join(before) or 'none'}"
            )
        if parent is not None and parent.per_image != 1:
            many = "all texts" if parent.per_image is None else f"{parent.per_image} texts"
            raise VlpipeError(
                f"role '{name}' reads texts that were made of the one text that is drawn for role '{role.of}', "
                f"and '{role.of}' has {many} an image: expected per_image=1 there, or no of= here"
            )
        before.append(name)


def _parts(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch of training images `size` rows after the other; tensors are views."""
    x, mask = (
        {name: torch.split(tensor, size) for name, tensor in part.items()} for part in (batch.x, batch.mask)
    )
    for number, start in enumerate(range(0, len(batch.ids), size)):
        rows = slice(start, start + size)
        columns = batch.columns.part(rows) if isinstance(batch.columns, Columns) else batch.columns
        own, there = ({name: views[number] for name, views in part.items()} for part in (x, mask))
        yield Batch(batch.ids[rows], own, there, columns)


def _every(texts: TextsByOwner, owners: IntArray) -> IntArray:
    """Positions of all texts, (owners, as many as the one with the most has), -1 for none."""
    return texts.padded(owners, max(1, texts.most(owners)))
