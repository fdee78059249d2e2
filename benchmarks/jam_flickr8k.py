"""JAM and its baselines on real photos: retrieval, and captions against rule-made hard negatives.

    python benchmarks/jam_flickr8k.py --manifest M --cache C --runs R --sugarcrepe S \
        jam 'objective="spread"' alpha=0.9

trains one head over three seeds with vlpipe's own command, on a manifest with hard negatives whose photos and
texts are in the cache (`benchmarks/RESULTS.md` has the commands), and prints, in percent, for validation and test
photos: image-to-text and text-to-image Recall@1, and the share of captions that score above their own hard
negative (binary Recall@1, ties are wrong). SugarCrepe's pairs are never trained on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlpipe.evaluate.asked import Asked
from vlpipe.evaluate.scoring import Scorer
from vlpipe.heads.ranks import ranks
from vlpipe.heads.runs import Run, open_joined

IMAGE, TEXT = "hf:build/real-models/dinov2-small#cls", "hf:build/real-models/all-MiniLM-L6-v2#mean"
Numbers = dict[str, float]


def train(arguments: argparse.Namespace) -> list[Run]:
    """One run a seed."""
    command = [sys.executable, "-m", "vlpipe.pipeline", "train-head", arguments.kind, "--json", "--threads", "1"]
    command += ["--manifest", arguments.manifest, "--cache", arguments.cache, "--runs", arguments.runs]
    command += ["--source", f"image={IMAGE}", "--source", f"text={TEXT}", "--seeds", arguments.seeds]
    command += [part for setting in arguments.settings for part in ("--set", setting)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return [Run.open(Path(arguments.runs), json.loads(line)["run"]) for line in done.stdout.splitlines()]


def numbers(run: Run, manifest: Path, cache: Path, split: str) -> Numbers:
    """Recalls and binary Recall@1 of one run on one split, in percent."""
    joined = open_joined(run, manifest, cache)
    images, captions = Asked.of(joined, split, ["caption"], manifest).usable()
    _, negatives = Asked.of(joined, split, ["hard_negative"], manifest).usable()
    head = run.head().double()
    local = np.full(len(joined.image_ids), -1, dtype=np.int64)
    local[images] = np.arange(len(images))
    found = ranks(Scorer(head, joined, images, captions), local[joined.text_image[captions]], len(images))
    both = Scorer(head, joined, images, np.concatenate([joined.tables.text_source[negatives], negatives]))
    owner = local[joined.text_image[negatives]]
    right, wrong = (both.pairs(owner, np.arange(len(negatives)) + start).numpy() for start in (0, len(negatives)))
    shares = {"i2t": found.i2t.recall(1), "t2i": found.t2i.recall(1), "binary": float((right > wrong).mean())}
    if split == "test":
        shares |= {
            f"binary {name}": float(v.mean()) for name, v in by_kind(joined, negatives, right > wrong).items()
        }
    return {name: 100 * share for name, share in shares.items()}


def by_kind(joined: Any, negatives: npt.NDArray[np.int64], hits: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Hits of replaced, added and swapped words, where the ids say which (SugarCrepe's do)."""
    kinds = np.array([joined.text_ids[p].partition("_")[0] for p in negatives])
    return {kind: hits[kinds == kind] for kind in ("replace", "add", "swap") if (kinds == kind).any()}


def told(name: str, found: list[Numbers]) -> None:
    """Mean and sample standard deviation of each number."""
    columns = {key: np.array([numbers[key] for numbers in found]) for key in found[0]}
    spread = {key: v.std(ddof=1) if len(v) > 1 else 0.0 for key, v in columns.items()}
    print(
        f"  {name:10}", "  ".join(f"{k} {v.mean():.1f} ± {spread[k]:.1f}" for k, v in columns.items()), flush=True
    )


def main() -> None:
    """Train, then tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--manifest", "--cache", "--runs", "--sugarcrepe"):
        parser.add_argument(option, required=True)
    parser.add_argument("--seeds", default="5,42,55")
    parser.add_argument("kind")
    parser.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    runs = train(arguments)
    print(arguments.kind, *arguments.settings, f"{len(runs)} seeds")
    sides = {"val": arguments.manifest, "test": arguments.manifest, "sugarcrepe": arguments.sugarcrepe}
    for name, manifest in sides.items():
        split = "val" if name == "val" else "test"
        told(name, [numbers(run, Path(manifest), Path(arguments.cache), split) for run in runs])
    told("run", [run.scalars | {"seconds": float(run.status["seconds"])} for run in runs])


if __name__ == "__main__":
    main()
