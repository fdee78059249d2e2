"""Conceptual Captions: 3.3 million web pictures with cleaned alt texts, as tar shards.

Sharma, Ding, Goodman and Soricut, "Conceptual Captions: A Cleaned, Hypernymed, Image Alt-text Dataset For
Automatic Image Captioning", ACL 2018.
"""

from __future__ import annotations

from typing import ClassVar

from vlpipe.manifests.datasets.webdataset import Webdataset


class Cc3m(Webdataset):
    """Shards that img2dataset makes of the published addresses (3,318,333 train, 15,840 val, many gone by now), or
    ready ones (cc3m-train-0000.tar, cc3m-validation-0000.tar). Shards without a split in their name are train.
    """

    source: ClassVar[str] = "https://ai.google.com/research/ConceptualCaptions/download"
    licence: ClassVar[str] = "captions: free use with attribution; images: their owners' terms"
    title: ClassVar[str] = "CC3M"
    fallback: ClassVar[str | None] = "train"
