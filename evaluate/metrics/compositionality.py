"""Whether an image scores its caption above a fluent false one (JAM, section 4: binary and 5-way Recall@1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vlpipe.evaluate.choices import Counted, false_texts, named, scores_of, shares, tie_of
from vlpipe.evaluate.contracts import Inputs, Rows
from vlpipe.evaluate.distractors import NONE, distractors_of
from vlpipe.foundation.errors import VlpipeError

FAMILIES = ("replace", "add", "swap")  # SugarCrepe's, and those of the rules of `vlpipe manifest negatives`
OTHERS = 3  # captions of other images in the 5-way choice
BINARY, CHOICE = "binary", "choice5"
UNKNOWN = -1


class Compositionality(Counted):
    """One question a hard negative: whether the caption that it was made from is above it, for their image.

    `binary` is against the hard negative alone, `choice5` against it and one caption each of three other images
    of the split, none of which is a caption of the image, too. Ties are wrong. Numbers (shares):
    `binary_recall@1` over all questions (micro average), `binary_recall@1:KIND` of a kind of negative
    (`replace_obj`) and of a family (`replace`), and `binary_recall@1_macro`, the mean over families;
    `choice5_...` likewise.

    A negative's kind is its first attribute that is in `by`. What of it stands before `_` is its family where that
    is replace, add or swap; any other kind is a family of its own.
    """

    def __init__(self, by: Sequence[str] = ("subset", "rule"), seed: int = 0) -> None:
        self.by = tuple(by)
        self.seed = seed

    def rows(self, inputs: Inputs) -> Rows:
        """One row a hard negative: `binary` and `choice5`, 1 for a hit, 0 for none, -1 where there are fewer than
        three such images; `kind` and `family`.

        Raises `VlpipeError` without a hard negative of a caption, `NonFiniteScoresError` for scores that are not.
        """
        negatives, captions = false_texts(inputs, lambda role: role == "hard_negative")
        if not len(negatives):
            raise VlpipeError(
                "no text of the split is a hard negative of a usable caption; make some with `vlpipe manifest "
                "negatives` and extract the texts, or evaluate on a manifest that has some (sugarcrepe)"
            )
        images = inputs.text_image[captions]
        right, wrong = scores_of(inputs, images, captions), scores_of(inputs, images, negatives)
        others = distractors_of(inputs, images, OTHERS, self.seed)
        asked = others[:, 0] != NONE
        found = np.full((len(right), OTHERS), -np.inf)
        for place, column in enumerate(others[asked].T):
            found[asked, place] = scores_of(inputs, images[asked], column)
        tie = tie_of(right, wrong, found[asked])
        binary = right > wrong + tie
        choice = np.where(asked, binary & (right > found.max(axis=1) + tie), UNKNOWN)
        kinds = [self._kind(inputs.columns["attributes"][place]) for place in negatives]
        values = {BINARY: binary.astype(np.int8), CHOICE: choice.astype(np.int8)}
        values |= {"kind": named(kinds), "family": named([family(kind) for kind in kinds])}
        return Rows(np.array(inputs.text_ids, dtype=object)[negatives], images, values)

    def _kind(self, attributes: Mapping[str, str]) -> str | None:
        return next((attributes[name] for name in self.by if name in attributes), None)

    def numbers(self, rows: Rows) -> dict[str, tuple[float, int]]:
        """Questions behind each number."""
        found: dict[str, tuple[float, int]] = {}
        for way in (BINARY, CHOICE):
            asked = rows.values[way] != UNKNOWN
            hits = rows.values[way][asked] == 1
            if not len(hits):
                continue
            name = f"{way}_recall@1"
            families = shares(hits, rows.values["family"][asked])
            found[name] = float(hits.mean()), len(hits)
            if families:
                mean = float(np.mean([value for value, _ in families.values()]))
                found[f"{name}_macro"] = mean, sum(count for _, count in families.values())
            both = families | shares(hits, rows.values["kind"][asked])
            found |= {f"{name}:{kind}": share for kind, share in both.items()}
        return found


def family(kind: str | None) -> str | None:
    """The family of a kind of negative; None for a negative of no kind."""
    if kind is None:
        return None
    start = kind.partition("_")[0]
    return start if start in FAMILIES else kind
