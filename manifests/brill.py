"""Brill's part-of-speech tagger with its lexicon, as TextBlob ships them: offline, the same on every machine."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

from vlpipe.foundation.errors import VlpipeError


@lru_cache(maxsize=1)
def brill() -> Any:
    """TextBlob's English module, its lexicon read. Raises `VlpipeError` where TextBlob is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it leaves the files of its lexicon open for the collector
            from textblob import en
            from textblob.en import inflect  # noqa: F401  (an attribute of `en` from here on)

            en.tag("a dog")  # reads the lexicon now
    except ImportError:
        raise VlpipeError("words are tagged by TextBlob, which is missing; pip install 'vlpipe[derive]'") from None
    return en
