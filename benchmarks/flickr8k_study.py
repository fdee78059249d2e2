"""What the studies on Flickr8k share: the features, vlpipe's commands, lines of a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vlpipe.evaluate.bootstrap import Bootstrap
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.saved import read_rows

RECALLS = [f"{side}_recall@{k}" for side in ("i2t", "t2i") for k in (1, 5, 10)]
TASKS = ("retrieval", "rococo", "pair_cosines")
TITLES = [f"{side} R@{k}" for side in ("I→T", "T→I") for k in (1, 5, 10)]
TITLES += ["drop", "RSMS", "cosine", "R@1 against unedited, I→T", "T→I"]
Found = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """Where everything lies, and with which seeds heads are trained."""

    work: Path
    models: Path
    photos: Path
    seeds: tuple[int, ...]

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        """What the command line says of it."""
        parser.add_argument("--work", type=Path, default=Path("build/tevi-flickr8k"))
        parser.add_argument("--photos-root", type=Path, default=Path("../shared/data/flickr8k"))
        parser.add_argument("--models", type=Path, default=Path("build/real-models"))
        parser.add_argument("--seeds", default="0,1,2")

    @classmethod
    def of(cls, given: argparse.Namespace) -> Study:
        """From these options."""
        seeds = tuple(int(seed) for seed in given.seeds.split(","))
        return cls(given.work, given.models, given.photos_root, seeds)

    @property
    def manifest(self) -> Path:
        """Photos, captions and hard negatives."""
        return self.work / "negatives"

    @property
    def image(self) -> str:
        """The photos' features."""
        return f"hf:{self.models / 'dinov2-small'}#cls"

    @property
    def text(self) -> str:
        """The captions' features."""
        return f"hf:{self.models / 'all-MiniLM-L6-v2'}#mean"

    def prepare(self) -> None:
        """Manifest, negatives and features."""
        plain = self.work / "manifest"
        vlpipe("manifest", "build", "flickr8k", "--root", self.photos, "--out", plain)
        vlpipe("manifest", "negatives", plain, "--out", self.manifest)
        for source in (self.image, self.text):
            encoder, _, output = source.partition("#")
            place = "--manifest", self.manifest, "--cache", self.work / "cache"
            vlpipe("extract", *place, "--dtype", "float32", "--encoder", encoder, "--output", output)

    def train(
        self, kind: str, image: str, text: str | None, settings: Sequence[str], seeds: Sequence[int], *sweeps: str
    ) -> list[Found]:
        """Runs of one head, as the command tells them; `image` and `text` are sources."""
        place = "--manifest", self.manifest, "--cache", self.work / "cache", "--runs", self.work / "runs"
        sources = [f"image={image}", *([f"text={text}"] if text else [])]
        given = [part for source in sources for part in ("--source", source)]
        given += [part for setting in settings for part in ("--set", setting)]
        given += [part for sweep in sweeps for part in ("--sweep", sweep)]
        return vlpipe("train-head", kind, *place, *given, "--threads", "1", "--seeds", ",".join(map(str, seeds)))

    def evaluate(self, runs: Sequence[str], split: str, *task: str) -> list[Found]:
        """One evaluation a task and run, in their order."""
        named = [part for run in runs for part in ("--run", run)]
        told = vlpipe("eval", *named, "--runs", self.work / "runs", "--split", split, *task)[0]
        return list(told["evaluations"])

    def best(self, found: Sequence[Found]) -> Found:
        """Of several runs the one with the largest sum of recalls on validation photos."""
        if len(found) == 1:
            return found[0]
        evaluations = self.evaluate([run["run"] for run in found], "val")
        sums = [100 * sum(e["metrics"][name]["value"] for name in RECALLS) for e in evaluations]
        for run, total in zip(found, sums, strict=True):
            print(f"  {run['run']}  {run['varied']}  sum of validation recalls {total:.1f}", flush=True)
        return found[int(np.argmax(sums))]


def vlpipe(*arguments: object) -> list[Any]:
    """What one command prints with --json, a document a line; its own words go to stderr."""
    words = [str(argument) for argument in arguments]
    print("$ vlpipe " + " ".join(words), flush=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", "vlpipe.pipeline", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    print(f"  {time.perf_counter() - start:.1f} s", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Line:
    """One line of the table: the runs of a method, and what they are told apart from."""

    study: Study
    name: str
    runs: Sequence[str]

    @cached_property
    def evaluations(self) -> dict[str, list[Found]]:
        """By task, one a run."""
        asked = [part for task in TASKS for part in ("--task", task)]
        found = self.study.evaluate(self.runs, "test", *asked, "--set", 'kinds=["hard_negative"]')
        return {task: [one for one in found if one["task"] == task] for task in TASKS}

    def told(self, base: Line) -> str:
        """The line in Markdown."""
        retrieval, altered, cosines = (self.evaluations[task] for task in TASKS)
        cells = [mean(retrieval, name) for name in RECALLS]
        cells += [mean(altered, f"{number}:hard_negative") for number in ("drop", "rsms")]
        edited = "cosine_edited" in cosines[0]["metrics"]
        cells.append(mean(cosines, "cosine_edited" if edited else "cosine_original", 1))
        apart = {} if self is base else difference(retrieval, base.evaluations["retrieval"])
        cells += [apart.get(side, "") for side in ("i2t", "t2i")]
        return f"| {self.name} | " + " | ".join(cells) + " |"


def mean(evaluations: Sequence[Found], metric: str, scale: float = 100) -> str:
    """Mean and sample deviation over seeds; of a single run its bootstrap interval."""
    found = [evaluation["metrics"][metric] for evaluation in evaluations]
    values = scale * np.array([one["value"] for one in found])
    digits = 1 if scale == 100 else 3
    if len(values) == 1:
        low, high = (scale * end for end in found[0]["interval"])
        return f"{values[0]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def difference(evaluations: Sequence[Found], base: Sequence[Found]) -> dict[str, str]:
    """R@1 of some runs less that of others, both averaged over seeds, with the interval over photos."""
    ours, theirs = hits(evaluations), hits(base)
    if ours.query_ids.tolist() != theirs.query_ids.tolist():
        raise SystemExit("the runs were asked different queries")
    apart = ours.values["hit"] - theirs.values["hit"]
    rows = Rows(ours.query_ids, ours.image, {"direction": ours.values["direction"], "apart": apart})
    intervals = Bootstrap().intervals(rows, _by_side)
    return {
        side: "{:+.1f} ({:+.1f} to {:+.1f})".format(*(round(n, 1) + 0.0 for n in (value, *intervals[side])))
        for side, value in _by_side(rows).items()
    }


def hits(evaluations: Sequence[Found]) -> Rows:
    """By query: in how many of the runs its best match comes first, as a share."""
    saved = [read_rows(Path(evaluation["rows"])).rows for evaluation in evaluations]
    hit = np.mean([rows.values["rank"] <= 1 for rows in saved], axis=0)
    return Rows(saved[0].query_ids, saved[0].image, {"direction": saved[0].values["direction"], "hit": hit})


def _by_side(rows: Rows) -> dict[str, float]:
    """Mean difference in percent, image-to-text and text-to-image."""
    apart, direction = rows.values["apart"], rows.values["direction"]
    return {side: 100 * float(apart[direction == n].mean()) for n, side in enumerate(("i2t", "t2i"))}


def show(table: Sequence[Line]) -> None:
    """The table in Markdown; its first line is what the others are told apart from."""
    told = [line.told(table[0]) for line in table]
    print("\n| | " + " | ".join(TITLES) + " |\n| --- |" + " ---: |" * len(TITLES))
    print("\n".join(told))
