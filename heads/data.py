"""The rows of a manifest's images and texts, joined by id with the cached features of each role."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlpipe.heads.contracts import Batch, Role, Shapes, roles_on
from vlpipe.heads.sources import CachedRows
from vlpipe.heads.splits import StrArray, canonical, split_of
from vlpipe.heads.tables import BoolArray, IntArray, Tables, TextsByImage, ids_at


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
        self.split: StrArray = split_of(rule, tables.image_ids, tables.split)
        self.by_image = {name: self._texts_by_image(name) for name in self.text_roles}
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
        return Batch(ids_at(self.image_ids, positions), x, mask, self._labels(positions))

    def text_batch(self, positions: IntArray, role: str) -> Batch:
        """Texts of any kind, one a row, under a role; ids are text ids, columns hold "text"."""
        rows, mask = self._rows(role, positions)
        columns = {"text": self.tables.texts(positions)}
        return Batch(ids_at(self.text_ids, positions), {role: rows}, {role: mask}, columns)

    def training_batch(self, positions: IntArray, seed: int, epoch: int) -> Batch:
        """Every role of some images; which texts an image gets depends on seed, epoch and image alone.

        Columns hold "label", and under each text role's name its texts: one a row, or a list a row.
        """
        return self._with_texts(positions, lambda name: self._drawn(name, positions, seed, epoch))

    def whole_batch(self, positions: IntArray) -> Batch:
        """Every role of some images, with all their texts: as `training_batch` were every `per_image` None."""
        return self._with_texts(positions, lambda name: self._every(name, positions))

    def shapes(self) -> Shapes:
        """What a head is built from."""
        rows = {name: source.shape for name, source in self.sources.items()}
        return Shapes(rows, {name: dict(source.features.constants) for name, source in self.sources.items()})

    def counts(self) -> dict[str, Any]:
        """Images by split that take part, images left out, and each role's rows: usable, failed, absent, zero."""
        names, numbers = np.unique(self.split[self.usable], return_counts=True)
        splits = {str(name) or "(none)": int(number) for name, number in zip(names, numbers, strict=True)}
        roles = {name: source.counts() for name, source in self.sources.items()}
        return {"images": splits, "images_left_out": int((~self.usable).sum()), "roles": roles}

    def content(self) -> dict[str, str]:
        """By role: digest of the pictures or texts that were encoded (`FeatureSet.content_digest`)."""
        return {name: source.features.content_digest for name, source in self.sources.items()}

    def digest(self) -> str:
        """SHA-256 of which rows are usable and of each image's split."""
        found = hashlib.sha256(np.packbits(self.usable).tobytes())
        for name in self.text_roles:
            found.update(np.packbits(self.sources[name].usable).tobytes())
        found.update("\n".join(self.split.tolist()).encode("utf-8"))
        return found.hexdigest()

    def _texts_by_image(self, name: str) -> TextsByImage:
        eligible = self.sources[name].usable & (self.text_role == self.roles[name].kind)
        return TextsByImage(self.text_image, eligible, len(self.image_ids))

    def _usable(self, roles: Sequence[str]) -> BoolArray:
        """Images (images,) for which each of these roles that is not optional has a row."""
        usable: BoolArray = np.ones(len(self.image_ids), dtype=np.bool_)
        for name in roles:
            role = self.roles[name]
            if not role.optional:
                usable &= self.sources[name].usable if role.side == "image" else self.by_image[name].counts > 0
        return usable

    def _of_split(self, images: BoolArray, split: str | None) -> IntArray:
        return np.flatnonzero(images if split is None else images & (self.split == canonical(split)))

    def _with_texts(self, positions: IntArray, chosen: Callable[[str], IntArray]) -> Batch:
        """Image rows, and for each text role those at the positions that are chosen for it."""
        images = self.image_batch(positions)
        x, mask, columns = dict(images.x), dict(images.mask), dict(images.columns)
        for name in self.text_roles:
            texts = chosen(name)
            x[name], mask[name] = self._rows(name, texts)
            columns[name] = self._texts(texts)
        return Batch(images.ids, x, mask, columns)

    def _drawn(self, name: str, images: IntArray, seed: int, epoch: int) -> IntArray:
        """Positions of texts, (images,) or (images, K), -1 for none."""
        wanted = self.roles[name].per_image
        if wanted is None:
            return self._every(name, images)
        drawn = self.by_image[name].drawn(images, wanted, seed, epoch)
        return drawn[:, 0] if wanted == 1 else drawn

    def _every(self, name: str, images: IntArray) -> IntArray:
        """Positions of all texts, (images, as many as the one with the most has), -1 for none."""
        by_image = self.by_image[name]
        return by_image.padded(images, max(1, by_image.most(images)))

    def _rows(self, name: str, positions: IntArray) -> tuple[Tensor, Tensor]:
        """Rows of one role and their mask; zeros and False at position -1, and where an optional role has none."""
        source, flat = self.sources[name], positions.reshape(-1)
        there = flat >= 0
        if self.roles[name].optional:
            there[there] = source.usable[flat[there]]
        rows = source.take(flat[there])
        if not there.all():
            found, rows = rows, rows.new_zeros(len(flat), *source.shape)
            rows[torch.from_numpy(there)] = found
        return rows.reshape(*positions.shape, *source.shape), torch.from_numpy(there.reshape(positions.shape))

    def _labels(self, positions: IntArray) -> dict[str, list[str | None]]:
        return {"label": [self.tables.label[position] for position in positions.tolist()]}

    def _texts(self, positions: IntArray) -> list[Any]:
        flat = self.tables.texts(positions.reshape(-1))
        if positions.ndim == 1:
            return flat
        width = positions.shape[1]
        return [flat[start : start + width] for start in range(0, len(flat), width)]
