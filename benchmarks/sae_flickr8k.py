"""What a learned sparse autoencoder makes of real photos: how much it keeps, and what its latents are called.

    python benchmarks/sae_flickr8k.py --work build/tevi-flickr8k --k 32 128

stands on what `tevi_flickr8k.py` makes in the same folder: photos and captions in one space of 256 dimensions, and
`sae` runs of 8 times that. For each K, and each seed: explained variance and active latents of the 250 validation
photos, dead latents, retrieval of rebuilt test photos, and the latents' names: for each latent that three test
photos or more activate, the word of the training captions whose embedding is nearest to its decoder row (Eq. 5),
and the share of its ten strongest test photos of which a caption has that word, beside the share with the names
shuffled among the latents.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from flickr8k_study import RECALLS, Line, Study, mean, vlpipe
from tevi_flickr8k import Space
from torch import Tensor

from vlpipe.cache_store.layout import store_path
from vlpipe.cache_store.reader import open_features
from vlpipe.heads.contracts import Batch
from vlpipe.heads.editing import nearest_texts
from vlpipe.heads.folder import Run
from vlpipe.heads.runs import open_joined
from vlpipe.heads.sae_report import strongest_images
from vlpipe.heads.vectors import unit
from vlpipe.manifests.manifest import Manifest

OFTEN = 20  # training photos that a word is said of
LEAST, MOST = 3, 10  # test photos that show what a latent is
STOP = re.compile(
    "an?|the|of|in|on|at|with|and|to|is|are|his|her|their|its?|he|she|they|one|two|three|four|another|other|some|by|"
    "for|from|as|while|through|into|up|down|out|over|off|near|who|that|this|there|be|has|have"
)


def words_in(text: str) -> set[str]:
    """Words of a caption in small letters."""
    return set(re.findall(r"[a-z]+", text.lower()))


def captions(study: Study, split: str) -> dict[str, set[str]]:
    """By photo of a split, the words of its captions."""
    manifest = Manifest.open(study.manifest)
    of = {row["image_id"]: row["split"] for row in manifest.table("image", ["image_id", "split"]).to_pylist()}
    found: dict[str, set[str]] = {image: set() for image, own in of.items() if own == split}
    for row in manifest.table("text", ["image_id", "text", "role"]).to_pylist():
        if row["role"] == "caption" and row["image_id"] in found:
            found[row["image_id"]] |= words_in(row["text"])
    return found


def vocabulary(study: Study, space: Space) -> tuple[list[str], Tensor]:
    """Words of training captions, and their rows (words, d) in the shared space."""
    counts = Counter(word for said in captions(study, "train").values() for word in said)
    words = sorted(word for word, times in counts.items() if times >= OFTEN and not STOP.fullmatch(word))
    folder, table = study.work / "words", study.work / "words.jsonl"
    rows = [json.dumps({"text_id": word, "text": word, "role": "prompt"}) for word in words]
    table.write_text("\n".join(rows), encoding="utf-8")
    vlpipe("manifest", "from-table", "--texts", table, "--out", folder)
    encoder, _, output = study.text.partition("#")
    place = "--manifest", folder, "--cache", study.work / "cache"
    vlpipe("extract", *place, "--dtype", "float32", "--encoder", encoder, "--output", output)
    store = store_path(study.work / "cache", Manifest.open(folder).digest, encoder, "text")
    features = torch.from_numpy(open_features(store, output).rows(words))
    head = Run.open(study.work / "runs", space.projection).head()
    return words, head.texts(Batch(words, {"text": features})).x["text"]


def named(study: Study, run_id: str, words: Sequence[str], rows: Tensor) -> dict[str, float]:
    """How well the names of one run's latents fit."""
    run = Run.open(study.work / "runs", run_id)
    head, joined = run.head(), open_joined(run)
    _, who = strongest_images(head, joined, joined.evaluable("test"), MOST)
    said = captions(study, "test")
    seen = [[joined.image_ids[place] for place in row if place >= 0] for row in who.tolist()]
    told = [latent for latent, photos in enumerate(seen) if len(photos) >= LEAST]
    found = {"named latents": float(len(told))}
    for kind, table in (("", rows), (" (centred)", unit(rows) - unit(rows).mean(dim=0))):
        nearest = nearest_texts(head.autoencoder.W_dec.detach().to(table.dtype), table).tolist()
        own = [words[nearest[latent]] for latent in told]
        shuffled = np.random.default_rng(0).permutation(own)
        found[f"different names{kind}"] = float(len(set(own)))
        for title, given in (("name in a caption", own), ("shuffled", shuffled)):
            hits = [
                np.mean([name in said[p] for p in seen[latent]]) for latent, name in zip(told, given, strict=True)
            ]
            found[f"{title}{kind}, percent"] = 100 * float(np.mean(hits))
    return found


def told(study: Study, space: Space, k: int, words: Sequence[str], rows: Tensor) -> None:
    """One K, over seeds."""
    runs = space.more(space.autoencoder(k), k)
    rebuilt = Line(study, "rebuilt", space.tevi(runs, 'mask="none"', "epochs=0"))
    scalars = ("explained_variance", "dead_latents", "latents", "l0")
    print(f"K {k}:", ", ".join(f"{name} {_spread([run['scalars'][name] for run in runs])}" for name in scalars))
    retrieval = rebuilt.evaluations["retrieval"]
    print("  rebuilt:", ", ".join(f"{name} {mean(retrieval, name)}" for name in RECALLS))
    names = [named(study, run["run"], words, rows) for run in runs]
    print("  names:", ", ".join(f"{key} {_spread([one[key] for one in names])}" for key in names[0]), flush=True)


def _spread(values: Sequence[float]) -> str:
    digits = 3 if max(values) <= 1 else 1
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=min(1, len(values) - 1)):.{digits}f}"


def main() -> None:
    """Prepare, train, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    Study.options(parser)
    parser.add_argument("--k", type=int, nargs="+", default=[32, 128])
    given = parser.parse_args()
    study = Study.of(given)
    study.prepare()
    space = Space.of(study)
    words, rows = vocabulary(study, space)
    print(f"{len(words)} words")
    for k in given.k:
        told(study, space, k, words, rows)


if __name__ == "__main__":
    main()
