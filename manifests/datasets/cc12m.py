"""Conceptual 12M: 12 million web pictures with alt texts, as tar shards.

Changpinyo, Sharma, Ding and Soricut, "Conceptual 12M: Pushing Web-Scale Image-Text Pre-Training To Recognize
Long-Tail Visual Concepts", CVPR 2021.
"""

from __future__ import annotations

from typing import ClassVar

from vlpipe.manifests.datasets.webdataset import Webdataset


class Cc12m(Webdataset):
    """Shards that img2dataset makes of the published addresses ("about 12 million"; others count 12,423,374 lines
    of cc12m.tsv; many are gone by now), or ready ones. Shards without a split in their name are train.
    """

    source: ClassVar[str] = "https://github.com/google-research-datasets/conceptual-12m"
    licence: ClassVar[str] = "captions: free use with attribution; images: their owners' terms"
    title: ClassVar[str] = "CC12M"
    fallback: ClassVar[str | None] = "train"
