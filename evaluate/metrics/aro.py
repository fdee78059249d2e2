"""Whether an image scores its caption above the same words in another order (Yuksekgonul et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vlpipe.evaluate.choices import Counted, false_texts, named, scores_of, shares, tie_of
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.foundation.errors import VlpipeError

RELATION, FIRST, SECOND = "relation", "attribute_1", "attribute_2"
LEAST_PAIRS = 25  # of a pair of attributes, as the authors count


class Aro(Counted):
    """A caption is right where it scores above all of its false texts, one or four reordered ones; ties are wrong.

    Numbers (shares): `accuracy` over all captions (what ARO calls Precision@1 on the order sets); of VG-Relation
    and VG-Attribution also `accuracy:GROUP` of each relation, or pair of attributes (`old_new`) that at least
    `least` captions are about, and `accuracy_macro`, their mean but for those in `without`.
    """

    def __init__(self, without: Sequence[str] = (), least: int | None = None) -> None:
        self.without = set(without)
        self.least = least

    def rows(self, inputs: Inputs) -> Rows:
        """One row a caption with false texts: `right`, bool, and `group`, None for one that is no group.

        Raises `VlpipeError` without any, `NonFiniteScoresError` for scores that are not finite.
        """
        wrong, captions = false_texts(inputs, lambda role: role != "caption")
        if not len(wrong):
            raise VlpipeError(
                "no usable caption of the split has a false text (role hard_negative or perturbed:RULE); expected "
                "a manifest of them (vlpipe manifest build aro)"
            )
        images = inputs.text_image[captions]
        right, false = scores_of(inputs, images, captions), scores_of(inputs, images, wrong)
        asked, first, place = np.unique(captions, return_index=True, return_inverse=True)
        best = np.full(len(asked), -np.inf)
        np.maximum.at(best, place, false)
        hits = right[first] > best + tie_of(right, false)
        told = [_group(inputs.columns["attributes"][caption]) for caption in asked]
        large = {name for name, (_, n) in shares(hits, named(told)).items() if n >= self._least(inputs)}
        groups = named([group if group in large else None for group in told])
        ids = np.array(inputs.text_ids, dtype=object)[asked]
        return Rows(ids, inputs.text_image[asked], {"right": hits, "group": groups})

    def _least(self, inputs: Inputs) -> int:
        if self.least is not None:
            return self.least
        return LEAST_PAIRS if any(FIRST in told for told in inputs.columns["attributes"]) else 1

    def numbers(self, rows: Rows) -> dict[str, tuple[float, int]]:
        """Captions behind each number."""
        if not len(rows):
            return {}
        hits = rows.values["right"]
        found = {"accuracy": (float(hits.mean()), len(hits))}
        groups = shares(hits, rows.values["group"])
        averaged = [share for name, share in groups.items() if name not in self.without]
        if averaged:
            values, counts = zip(*averaged, strict=True)
            found["accuracy_macro"] = float(np.mean(values)), sum(counts)
        return found | {f"accuracy:{name}": share for name, share in groups.items()}


def _group(attributes: Mapping[str, str]) -> str | None:
    """The relation that a caption is about, or its two attributes."""
    if RELATION in attributes:
        return attributes[RELATION]
    both = [attributes[name] for name in (FIRST, SECOND) if name in attributes]
    return "_".join(both) if len(both) == 2 else None
