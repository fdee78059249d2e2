"""What is refused before a run gets a folder: rows that no head can learn from."""

from __future__ import annotations

from vlpipe.foundation.errors import VlpipeError
from vlpipe.heads.contracts import HeadConfig
from vlpipe.heads.data import Joined


def check_images(joined: Joined, config: HeadConfig) -> None:
    """Raise `VlpipeError` when no image can be used at all, or none is there to learn from."""
    usable, training = len(joined.images(None)), len(joined.images("train"))
    if usable and (training or not config.epochs):
        return
    counts = joined.counts()
    if not usable:
        roles = [
            f"{name}: {n['usable']} usable, {n['failed']} failed, {n['absent']} absent"
            for name, n in counts["roles"].items()
        ]
        raise VlpipeError(
            f"none of {counts['images_left_out']} images has features for every role ({'; '.join(roles)}); make "
            "them with `vlpipe extract`, failed ones with its --retry-failed"
        )
    splits = ", ".join(f"{number} in '{name}'" for name, number in counts["images"].items())
    raise VlpipeError(
        f"no images to train on: usable images are {splits}; expected some in 'train'. Give another split rule "
        "(--split-rule random:0.7/0.15/0.15@0), or see which rows are missing with `vlpipe cache show`"
    )


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
