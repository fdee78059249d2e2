"""JAM and its baselines on real photos: retrieval, and captions against rule-made hard negatives.

    python benchmarks/jam_flickr8k.py --manifest M --cache C --runs R --sugarcrepe S \
        jam 'objective="spread"' alpha=0.9

trains one head over three seeds with vlpipe's own command, on a manifest with hard negatives whose photos and
texts are in the cache (`benchmarks/RESULTS.md` has the commands), and prints, in percent, for validation and test
photos: image-to-text and text-to-image Recall@1, the share of captions that score above their own hard negative
(binary Recall@1, ties are wrong), and above that and three captions of other photos (5-way). SugarCrepe is never
trained on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from vlpipe.evaluate.run import evaluate
from vlpipe.heads.runs import Run

IMAGE, TEXT = "hf:build/real-models/dinov2-small#cls", "hf:build/real-models/all-MiniLM-L6-v2#mean"
SHOWN = {
    "retrieval": {"i2t_recall@1": "i2t", "t2i_recall@1": "t2i"},
    "compositionality": {"binary_recall@1": "binary", "choice5_recall@1": "5-way"}
    | {f"binary_recall@1:{family}": f"binary {family}" for family in ("replace", "add", "swap")},
}
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
    """Recalls and binary Recall@1 of one run on one split, in percent; by family of negatives on test photos."""
    found: Numbers = {}
    for task, names in SHOWN.items():
        done = evaluate(run.folder.parent, run.id, task, split, manifest=manifest, cache=cache)
        found |= {shown: 100 * done.entries[name].value for name, shown in names.items() if name in done.entries}
    if split != "test":
        return {name: value for name, value in found.items() if " " not in name}
    return found


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
