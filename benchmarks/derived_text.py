"""Print a sample of a manifest's derived texts, each with the caption that it was made of, to be read.

Rows are drawn by a digest of seed and id: a rule that changes leaves the sample of the others as it is.


vlpipe manifest negatives MANIFEST --out DERIVED
python benchmarks/derived_text.py DERIVED --role hard_negative --rows 100 --seed 0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.compute as pc

from vlpipe.foundation.files import digest
from vlpipe.manifests.manifest import Manifest


def main() -> None:
    """Number, attributes, caption, derived text, and with --others what else is said of the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--role", default="hard_negative", help="hard_negative, or view:NAME")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--others", action="store_true", help="the image's other captions too")
    asked = parser.parse_args()
    texts = Manifest.open(asked.manifest).table(
        "text", ["text_id", "text", "image_id", "role", "source_text_id", "attributes"]
    )
    captions = texts.filter(pc.equal(texts["role"], "caption"))
    words = dict(zip(captions["text_id"].to_pylist(), captions["text"].to_pylist(), strict=True))
    derived = texts.filter(pc.equal(texts["role"], asked.role))
    order = sorted(derived.to_pylist(), key=lambda row: digest([asked.seed, row["text_id"]]))
    for number, row in enumerate(order[: asked.rows], start=1):
        source = row["source_text_id"]
        print(f"{number} {row['text_id']} {dict(row['attributes'])}\n    {words[source]}\n    {row['text']}")
        if asked.others:
            same = captions.filter(pc.equal(captions["image_id"], row["image_id"]))["text"].to_pylist()
            print("".join(f"        {text}\n" for text in same if text != words[source]), end="")


if __name__ == "__main__":
    main()
