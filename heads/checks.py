"""What is refused before a run gets a folder: rows that no head can learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import HeadConfig
from vlpipe.heads.data import Joined


def check_images(joined: Joined, config: HeadConfig) -> None:
    """Raise `VlpipeError` when no image can be used at all, or too few are there to learn from."""
    usable, training = len(joined.images(None)), len(joined.images("train"))
    if usable and (training >= config.least_images or not config.epochs):
        return
    counts = joined.counts()
    if not usable:
        raise VlpipeError(
            f"none of {counts['images_left_out']} images has features for every role ({left_out(counts)}); make "
            "them with `vlpipe extract`, failed ones with its --retry-failed; texts come with the manifest"
        )
    splits = ", ".join(f"{number} in '{name}'" for name, number in counts["images"].items())
    found = f"{training} training image, and this head compares images" if training else "no images to train on"
    raise VlpipeError(
        f"{found}: usable images are {splits}; expected {config.least_images} or more in 'train'. Give another "
        "split rule (--split-rule random:0.7/0.15/0.15@0), or see which rows are missing with `vlpipe cache show`"
    )


def left_out(counts: Mapping[str, Any]) -> str:
    """Why images cannot be used, from `Joined.counts`: features by role, and images that have no text at all."""
    why = [
        f"{name}: {n['usable']} usable, {n['failed']} failed, {n['absent']} absent"
        for name, n in counts["roles"].items()
    ]
    without = counts.get("images_without", {})  # not in older runs
    return "; ".join(why + [f"{n} images without a text of role '{kind}'" for kind, n in without.items()])


def check_partial(joined: Joined, config: HeadConfig) -> None:
    """Raise `VlpipeError` for a partial role that no image that trains has."""
    if not config.epochs:
        return
    training = joined.images("train")
    for name, role in joined.roles.items():
        if role.partial and role.side == "text" and not joined.by_image[name].most(training):
            raise VlpipeError(
                f"none of {len(training)} training images has a cached text of role '{role.kind}', which the "
                f"head's '{name}' learns from; add some (`vlpipe manifest negatives`) and extract them"
            )
