"""Two images and two captions of the same words: which goes with which (Thrush et al., CVPR 2022, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vlpipe.evaluate.choices import Array, Counted, named, scores_of, shares, tie_of
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.foundation.errors import VlpipeError

TEXT, IMAGE, GROUP = "text_score", "image_score", "group_score"
CAPTIONS = ("caption_0", "caption_1")


class Winoground(Counted):
    """Scores of groups of two images with a caption each; ties are wrong.

    Numbers (shares): of groups, `text_score`, for each image its own caption is above the other, `image_score`,
    for each caption its own image is above the other, and `group_score`, both; of captions, `caption_accuracy`,
    its own image is above the other (what JAM's Table 15 calls text-score). The same of each tag,
    `text_score:TAG` and so on.
    """

    def __init__(self, by: str = "collapsed_tag") -> None:
        self.by = by

    def rows(self, inputs: Inputs) -> Rows:
        """One row a group, under its first image: the scores and `caption_0`, `caption_1`, bool, and `tag`.

        A group has two captions, of two images; those with fewer or more of them are left out. Raises
        `VlpipeError` without any, `NonFiniteScoresError` for scores that are not finite.
        """
        pairs = np.array(list(self._pairs(inputs)), dtype=np.int64).reshape(-1, 2)  # texts
        if not len(pairs):
            raise VlpipeError(
                "no two captions of two images share a group_id in this split; expected a manifest of such groups "
                "(vlpipe manifest build winoground)"
            )
        images = inputs.text_image[pairs]
        scores = {
            (text, image): scores_of(inputs, images[:, image], pairs[:, text])
            for text in (0, 1)
            for image in (0, 1)
        }
        values = _judged(scores)
        tags = [inputs.columns["attributes"][place].get(self.by) for place in pairs[:, 0]]
        groups = [inputs.columns["group_id"][place] for place in pairs[:, 0]]
        return Rows(named(groups), images[:, 0], {**values, "tag": named(tags)})

    def _pairs(self, inputs: Inputs) -> Iterator[list[int]]:
        """Positions of the captions of each group."""
        groups: dict[str, list[int]] = {}
        for place, (group, role) in enumerate(
            zip(inputs.columns["group_id"], inputs.columns["role"], strict=True)
        ):
            if group is not None and role == "caption" and inputs.text_image[place] >= 0:
                groups.setdefault(group, []).append(place)
        for found in groups.values():
            if len(found) == 2 and inputs.text_image[found[0]] != inputs.text_image[found[1]]:
                yield found

    def numbers(self, rows: Rows) -> dict[str, tuple[float, int]]:
        """Groups behind each score, captions behind the accuracy."""
        if not len(rows):
            return {}
        tags = rows.values["tag"]
        parts: dict[str, tuple[Array, Array]] = {name: (rows.values[name], tags) for name in (TEXT, IMAGE, GROUP)}
        captions = np.concatenate([rows.values[name] for name in CAPTIONS])
        parts["caption_accuracy"] = captions, np.tile(tags, 2)
        found: dict[str, tuple[float, int]] = {}
        for name, (hits, own) in parts.items():
            found[name] = float(hits.mean()), len(hits)
            found |= {f"{name}:{tag}": share for tag, share in shares(hits, own).items()}
        return found


def _judged(scores: dict[tuple[int, int], Array]) -> dict[str, Array]:
    """Columns from the scores (groups,) of each caption with each image, by (caption, image)."""
    tie = tie_of(*scores.values())
    text = (scores[0, 0] > scores[1, 0] + tie) & (scores[1, 1] > scores[0, 1] + tie)
    first, second = scores[0, 0] > scores[0, 1] + tie, scores[1, 1] > scores[1, 0] + tie
    image = first & second
    return {TEXT: text, IMAGE: image, GROUP: text & image, CAPTIONS[0]: first, CAPTIONS[1]: second}
