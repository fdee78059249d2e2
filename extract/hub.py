"""Whether the hub that models come from is there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from vlpipe.foundation.errors import VlpipeError

SECONDS = 10  # as long as the library waits for one file's header


def hub_answers() -> bool:
    """Ask once; at once False without a network, or where HF_HUB_OFFLINE is set.

    The library itself asks six times a file, for half a minute and more, before it looks into its cache.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # a kind that depends on the library below the hub's
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """Inside, libraries that ask the hub by themselves look into its local cache at once."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def guarded(spec: str, hint: str, without_hub: bool, call: Any, *given: Any, **options: Any) -> Any:
    """A model library's result; whatever it raises becomes a `VlpipeError` of one line that ends in the hint."""
    logging.disable(logging.CRITICAL)  # what the library logs is said again by what it raises
    try:
        with offline() if without_hub else nullcontext():
            return call(*given, **options)
    except Exception as error:  # the library and the hub raise of every kind
        reason = " ".join(str(error).split())[:300]
        raise VlpipeError(f"'{spec}' cannot be loaded: {type(error).__name__}: {reason}; {hint}") from None
    finally:
        logging.disable(logging.NOTSET)


def why_not_there(name: str) -> str | None:
    """Why a model of the hub can neither be got nor is in the hub's local cache; None where it can or is.

    Asks for its config.json alone: that is small, and refused where the model's terms were not accepted.
    """
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(name, "config.json", local_files_only=not hub_answers())
    except Exception as error:  # the library and the hub raise of every kind
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None
