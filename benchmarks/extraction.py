"""Extraction against a bare loop of the same model, and against peers, on real photos and captions.

    python benchmarks/extraction.py --peers PEERS      # all of it; extraction_peers.py says what PEERS is
    python benchmarks/extraction.py --only photos --models vit_small_patch16_224 --photos 200 --runs 2

- photos: DINOv2-small-derived weights, `vlpipe`'s whole run against its model over batches that are decoded and
  prepared already, in the same process and with the same memory settings.
- peers: random weights of timm models; every contender decodes, prepares by the same transform, encodes, writes.
  The peers call the model as timm makes it.
- texts: MiniLM, against batches of 64 in manifest order, padded to the longest of each.

Each round runs every contender once, one after the other, so that what else the machine does falls on all; a ratio
is the median over the rounds of a contender's time to the first one's. Processor seconds, of all processes that a
contender starts, say more than seconds where others use the machine, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import extraction_peers as peers

from vlpipe.cache_store.layout import Side
from vlpipe.extract.contracts import Encoder, ImageItem, TextItem
from vlpipe.extract.job import Job
from vlpipe.extract.load import load_encoder
from vlpipe.extract.pictures import decode
from vlpipe.extract.run import extract
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest


class Cost(NamedTuple):
    """Of one pass, in seconds: by the clock, and of processors."""

    seconds: float
    cpu: float


Contenders = dict[str, Callable[[], Cost]]
BATCH = 64


def manifest_of(folder: Path, photos: Path, count: int, texts: int) -> Manifest:
    """The first photos, linked into one folder, and captions of all."""
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "photos"
    root.mkdir(parents=True)
    paths = sorted((photos / "images").rglob("*.jpg"))[:count]
    for path in paths:
        (root / path.name).symlink_to(path.absolute())
    lines = [json.loads(line) for line in (photos / "captions.jsonl").read_text(encoding="utf-8").splitlines()]
    captions = [text for line in lines for text in line.get("captions", [line.get("caption")])][:texts]
    return write_manifest(
        folder / "m", name="photos", source=str(photos), licence="see source", image_root=root,
        images=[{"image_id": path.name, "path": path.name, "split": "test"} for path in paths],
        texts=[{"text_id": str(n), "text": t, "role": "caption", "split": "test"} for n, t in enumerate(captions)],
    )  # fmt: skip


def whole_run(
    manifest: Manifest, encoder: Encoder, side: Side, output: str, cache: Path, workers: int
) -> Callable[[], int]:
    """`vlpipe extract` in a new cache, but for loading the model."""

    def run() -> int:
        shutil.rmtree(cache, ignore_errors=True)
        job = Job(manifest, encoder, "bench", side, (output,), cache, batch_size=BATCH, workers=workers)
        return extract(job).rows

    return run


def bare_loop(manifest: Manifest, encoder: Encoder, output: str) -> Callable[[], int]:
    """The model alone over batches that lie in memory, decoded and prepared."""
    names = manifest.table("image", ["path"]).column(0).to_pylist()
    prepared = [encoder.prepare(ImageItem(name, decode(manifest.image_root / name))) for name in names]
    starts = range(0, len(names), BATCH)
    batches = [encoder.collate(prepared[start : start + BATCH]) for start in starts]

    def run() -> int:
        return sum(len(encoder.encode(batch, (output,))[output]) for batch in batches)

    return run


def photos(options: argparse.Namespace) -> dict[str, Contenders]:
    """A whole run against the bare loop."""
    manifest = manifest_of(options.folder, options.flickr8k, options.photos, 0)
    encoder = load_encoder(f"hf:{options.real / 'dinov2-small'}", {})
    run = whole_run(manifest, encoder, "image", "cls", options.folder / "cache", options.workers)
    loop = bare_loop(manifest, encoder, "cls")
    return {"DINOv2-small, photos": {"bare loop over decoded batches": timed(loop), "vlpipe": timed(run)}}


def against_peers(options: argparse.Namespace) -> dict[str, Contenders]:
    """Every contender from files to files, each pass in a new process: forking after others hangs one of them."""
    manifest_of(options.folder, options.flickr8k, options.photos, 0)
    names = ("vlpipe", *peers.PEERS)
    return {
        f"{model}, random weights": {name: partial(_in_new_process, options, model, name) for name in names}
        for model in options.models
    }


def _in_new_process(options: argparse.Namespace, model: str, name: str) -> Cost:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_one_pass, options, model, name).result()


def _one_pass(options: argparse.Namespace, model: str, name: str) -> Cost:
    torch.set_num_threads(options.threads)
    set_start_method("fork", force=True)  # for the peers' loaders, as it is where they are used
    manifest = Manifest.open(options.folder / "m")
    encoder = load_encoder(f"timm:{model}", {"random_init": True})
    warm = [encoder.prepare(ImageItem("", decode(path))) for path in sorted(manifest.image_root.iterdir())[:BATCH]]
    plain: Any = encoder.tower("image").model
    first = next(iter(warm[0].tensors))
    encoder.encode(encoder.collate(warm), ("pooled",))

    def transform(picture: Any) -> Tensor:
        return encoder.prepare(ImageItem("", picture.convert("RGB"))).tensors[first]

    def encode(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            found: Tensor = plain.forward_head(plain.forward_features(pixels), pre_logits=True)
        return found.clone()  # it is changed in place

    if name == "vlpipe":
        import_module("zarr")  # which takes a fifth of a second; the peers' libraries are imported before, too
        return timed(whole_run(manifest, encoder, "image", "pooled", options.folder / "cache", options.workers))()
    peers.found(options.peers)
    out = options.folder / "peers"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        peers.imported()
        return timed(
            partial(peers.PEERS[name], manifest.image_root, out, transform, encode, BATCH, options.workers)
        )()


def texts(options: argparse.Namespace) -> dict[str, Contenders]:
    """A whole run against batches in manifest order; both tokenize."""
    manifest = manifest_of(options.folder, options.flickr8k, 0, options.texts)
    encoder = load_encoder(f"hf:{options.real / 'all-MiniLM-L6-v2'}", {})
    captions = manifest.table("text", ["text"]).column(0).to_pylist()

    def loop() -> int:
        rows = 0
        for start in range(0, len(captions), BATCH):
            prepared = [encoder.prepare(TextItem("", text)) for text in captions[start : start + BATCH]]
            rows += len(encoder.encode(encoder.collate(prepared), ("mean",))["mean"])
        return rows

    run = whole_run(manifest, encoder, "text", "mean", options.folder / "cache", 0)
    return {"MiniLM, captions": {"loop in manifest order": timed(loop), "vlpipe": timed(run)}}


COMPARISONS = {"photos": photos, "peers": against_peers, "texts": texts}


def timed(run: Callable[[], int]) -> Callable[[], Cost]:
    """What it costs; something must come out."""

    def pass_() -> Cost:
        started, cpu = time.perf_counter(), _cpu()
        if run() == 0:
            raise SystemExit("no rows came out")
        return Cost(time.perf_counter() - started, _cpu() - cpu)

    return pass_


def _cpu() -> float:
    """Processor seconds of this process and of those of its own that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(found.ru_utime + found.ru_stime for found in used)


def measured(contenders: Contenders, runs: int) -> dict[str, list[Cost]]:
    """What each contender costs in each round, after one that warms up."""
    rounds = [{name: run() for name, run in contenders.items()} for _ in range(runs + 1)]
    return {name: [seconds[name] for seconds in rounds[1:]] for name in contenders}


def tell(title: str, costs: dict[str, list[Cost]]) -> None:
    """A table in Markdown."""
    first = next(iter(costs.values()))
    print(
        f"\n### {title}\n\n| | seconds (median, range) | times the first | processor seconds | times the first |"
    )
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, taken in costs.items():
        rounds = list(zip(taken, first, strict=True))
        wall, cpu = (statistics.median(mine[n] / its[n] for mine, its in rounds) for n in range(2))
        seconds, used = ([cost[n] for cost in taken] for n in range(2))
        span = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"| {name} | {span} | {wall:.3f} | {statistics.median(used):.2f} | {cpu:.3f} |", flush=True)


def main() -> None:
    """Run the comparisons that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/extraction"))
    parser.add_argument("--flickr8k", type=Path, default=Path("../shared/data/flickr8k"))
    parser.add_argument("--real", type=Path, default=Path("build/real-models"), help="folder of the real models")
    parser.add_argument("--peers", type=Path, help="folder that the peers are installed in")
    parser.add_argument("--only", choices=COMPARISONS, nargs="*", default=list(COMPARISONS))
    parser.add_argument("--models", nargs="*", default=["vit_small_patch16_224", "mobilenetv3_small_100"])
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=18_750)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the model, for all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.only:
        if name == "peers" and not options.peers:
            print("peers: left out, for --peers names no folder")
            continue
        for title, contenders in COMPARISONS[name](options).items():
            tell(title, measured(contenders, options.runs))


if __name__ == "__main__":
    main()
