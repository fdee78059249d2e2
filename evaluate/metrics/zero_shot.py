"""Zero-shot classification: the class whose prompts score highest with an image (CLIP, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vlpipe.evaluate.choices import named, shares
from vlpipe.evaluate.contracts import Inputs, IntArray, Rows
from vlpipe.foundation.errors import UnknownNameError, VlpipeError
from vlpipe.heads.ranks import TIE_EPS, NonFiniteScoresError

STEP = 1024  # images at once
TOP = (1, 5)
HOW = "build the manifest with class prompts (of most sets: --set templates=...), then extract its texts"


@dataclass(frozen=True)
class Classes:
    """The candidates: a label each, and the positions of its prompts; `truth` (images,) is -1 where an image has
    no label, or one that is no candidate's.
    """

    labels: list[str]
    prompts: list[IntArray]
    truth: IntArray

    @classmethod
    def of(cls, inputs: Inputs, attribute: str) -> Classes:
        """From the columns "role" and "attributes" of the texts, "label" and "attributes" of the images.

        The truth is an image's label, or with `attribute` that attribute of it. Where prompts say of which
        attribute they are a value (MAD's do), only those of this one are candidates. Raises `VlpipeError` without
        candidates.
        """
        found: dict[str, list[int]] = {}
        named_by: set[str] = set()
        for place, (role, told) in enumerate(
            zip(inputs.columns["role"], inputs.columns["attributes"], strict=True)
        ):
            if role != "prompt" or "label" not in told:
                continue
            named_by |= {told["attribute"]} if "attribute" in told else set()
            if told.get("attribute", attribute) == attribute:
                found.setdefault(told["label"], []).append(place)
        if not found and named_by:
            if attribute:
                raise UnknownNameError("attribute of prompts", attribute, named_by)
            raise VlpipeError(f"prompts are of {', '.join(sorted(named_by))}: choose --set attribute='\"NAME\"'")
        if not found:
            raise VlpipeError(f"no text is a prompt with the attribute 'label'; {HOW}")
        place_of = {label: number for number, label in enumerate(found)}
        columns = inputs.image_columns
        told_of = [one.get(attribute) for one in columns["attributes"]] if attribute else columns["label"]
        truth = np.array([place_of.get(label, -1) for label in told_of], dtype=np.int64)
        return cls(list(found), [np.array(places, dtype=np.int64) for places in found.values()], truth)


class ZeroShot:
    """Each class is one text, the mean of its prompts; images whose label is no candidate do not count.

    Numbers (shares): `top1_accuracy`, `top5_accuracy` (where there are more than five classes), both over images,
    `class_accuracy`, the mean over classes of top-1, and `chance_accuracy`, one over the number of classes. Ties
    count against the image; `_optimistic` is the other end.
    """

    def __init__(self, attribute: str = "") -> None:
        self.attribute = attribute

    def rows(self, inputs: Inputs) -> Rows:
        """One row an image that counts: `label`, the number of `classes`, `rank` and `rank_optimistic` of its own.

        Raises `VlpipeError` without candidates, or images that count, `NonFiniteScoresError` for scores.
        """
        classes = Classes.of(inputs, self.attribute)
        images = np.flatnonzero(classes.truth >= 0)
        if not len(images):
            raise VlpipeError(
                f"none of the {len(inputs.image_ids)} images has one of the {len(classes.labels)} labels of the "
                f"prompts, for example '{classes.labels[0]}'; choose another split, or --set attribute='\"NAME\"'"
            )
        both = np.concatenate(list(self._ranks(inputs, classes)), axis=1)[:, images]
        return Rows(
            np.array(inputs.image_ids, dtype=object)[images],
            images,
            {
                "label": named([classes.labels[place] for place in classes.truth[images]]),
                "classes": np.full(len(images), len(classes.labels), dtype=np.int64),
                "rank": both[1],
                "rank_optimistic": both[0],
            },
        )

    def _ranks(self, inputs: Inputs, classes: Classes) -> Iterator[IntArray]:
        """(2, images) of some images at a time: rank of the true class, ties for it and against it."""
        scores = inputs.averages(classes.prompts)
        for start in range(0, len(inputs.image_ids), STEP):
            rows = slice(start, min(start + STEP, len(inputs.image_ids)))
            block = scores(rows)
            if not bool(torch.isfinite(block).all()):
                wrong = np.argwhere(~torch.isfinite(block).cpu().numpy())
                texts = [int(classes.prompts[place][0]) for place in np.unique(wrong[:, 1])]
                bad = np.unique(wrong[:, 0] + start).tolist()
                raise NonFiniteScoresError(bad, texts, inputs.image_ids, inputs.text_ids)
            tie = TIE_EPS * torch.finfo(block.dtype).eps * block.abs().amax(dim=1, keepdim=True)
            truth = torch.from_numpy(np.maximum(classes.truth[rows], 0))[:, None]
            own = block.gather(1, truth)
            others = block.scatter(1, truth, -torch.inf)
            above = [(others > own + tie).sum(dim=1), (others >= own - tie).sum(dim=1)]
            yield 1 + torch.stack(above).cpu().numpy()

    def summarise(self, rows: Rows) -> dict[str, float]:
        """All numbers that the rows define."""
        if not len(rows):
            return {}
        classes = int(rows.values["classes"][0])
        found: dict[str, float] = {}
        for column, suffix in (("rank", ""), ("rank_optimistic", "_optimistic")):
            rank = rows.values[column]
            found |= {f"top{k}_accuracy{suffix}": float((rank <= k).mean()) for k in TOP if k == 1 or k < classes}
        by_class = shares(rows.values["rank"] == 1, rows.values["label"])
        found["class_accuracy"] = float(np.mean([share for share, _ in by_class.values()]))
        return found | {"chance_accuracy": 1 / classes}

    def counts(self, rows: Rows) -> dict[str, int]:
        """Images behind each number."""
        return dict.fromkeys(self.summarise(rows), len(rows))
