"""The main job on real photos, checked from outside: extract, ridge, retrieval.

    python benchmarks/flickr8k_ridge.py --photos-root ../shared/data/flickr8k --models build/real-models

runs vlpipe's own commands over Flickr8k with DINOv2-small-derived features (CLS) and MiniLM (mean), then
compares what they left with two computations that share no code with vlpipe: the features with a plain
transformers script (largest difference), the recalls with NumPy on the cached rows (equality).
`--photos 60` takes 30 train, 10 validation and 20 test photos. `make real-models` writes the two models.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Features = dict[str, Floats]
KS = (1, 5, 10)
TOLERANCE = 1e-5


def vlpipe(*arguments: str) -> Any:
    """What one command prints with --json, its last line; its own words go to stderr."""
    command = [sys.executable, "-m", "vlpipe.pipeline", *arguments, "--json"]
    print("$ vlpipe " + " ".join(arguments), flush=True)
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}")
    print(f"  {time.perf_counter() - start:.1f} s", flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def subset(root: Path, out: Path, photos: int) -> Path:
    """A folder in the same layout with the first photos of each split: half train, a third test, the rest val."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = {"train": photos // 2, "test": photos // 3}
    wanted["val"] = photos - sum(wanted.values())
    kept = []
    for line in (root / "captions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        split = json.loads(line)["split"]
        if wanted[split]:
            wanted[split] -= 1
            kept.append(line)
    (out / "captions.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    images = out / "images"
    if not images.exists():
        images.symlink_to((root / "images").resolve())
    return out


def features(store: Path, output: str) -> Features:
    """A store's rows by id, read with zarr and pyarrow alone."""
    import zarr

    ids = pq.read_table(next(store.rglob("rows.parquet"))).column(0).to_pylist()
    rows = zarr.open_group(store, mode="r")[output][:]
    return dict(zip(ids, np.asarray(rows, dtype=np.float64), strict=True))


def plain_features(models: Path, photos: list[Path], captions: list[str]) -> tuple[Floats, Floats]:
    """The two models as their documentation shows them: one picture, one text at a time."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    vision = AutoModel.from_pretrained(models / "dinov2-small").eval()
    processor = AutoImageProcessor.from_pretrained(models / "dinov2-small")
    language = AutoModel.from_pretrained(models / "all-MiniLM-L6-v2").eval()
    tokenizer = AutoTokenizer.from_pretrained(models / "all-MiniLM-L6-v2")
    with torch.inference_mode():
        images = [
            vision(**processor(Image.open(p).convert("RGB"), return_tensors="pt")).last_hidden_state[0, 0]
            for p in photos
        ]
        texts = [language(**tokenizer(c, return_tensors="pt")).last_hidden_state[0].mean(0) for c in captions]
    return torch.stack(images).double().numpy(), torch.stack(texts).double().numpy()


def unit(rows: Floats) -> Floats:
    """Rows of length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def joined(manifest: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The split of each photo, and the caption ids of each photo, from the manifest's tables."""
    images = pq.read_table(manifest / "images.parquet", columns=["image_id", "split"]).to_pydict()
    texts = pq.read_table(manifest / "texts.parquet", columns=["text_id", "image_id"]).to_pydict()
    captions: dict[str, list[str]] = {image: [] for image in images["image_id"]}
    for text, image in zip(texts["text_id"], texts["image_id"], strict=True):
        captions[image].append(text)
    return dict(zip(images["image_id"], images["split"], strict=True)), captions


def ridge_scores(
    x: Features, y: Features, split: dict[str, str], captions: dict[str, list[str]], strength: float
) -> tuple[Floats, Ints]:
    """(photos, captions) cosines of the test split, and each caption's photo, from the normal equations."""
    train, test = ([i for i in captions if split[i] == part] for part in ("train", "test"))
    inputs = np.stack([x[i] for i in train])
    mean, spread = inputs.mean(0), inputs.std(0)
    spread[spread < 1e-6 * np.abs(mean)] = np.inf  # a constant column gives 0
    targets = np.stack([unit(np.stack([y[t] for t in captions[i]])).mean(0) for i in train])
    centre = targets.mean(0)
    z = (inputs - mean) / spread
    weights = np.linalg.solve(z.T @ z + strength * np.eye(z.shape[1]), z.T @ (targets - centre))
    images = unit((np.stack([x[i] for i in test]) - mean) / spread @ weights)
    texts = unit(unit(np.stack([y[t] for i in test for t in captions[i]])) - centre)
    owner = np.repeat(np.arange(len(test)), [len(captions[i]) for i in test])
    return images @ texts.T, owner


def recalls(scores: Floats, owner: Ints) -> dict[str, float]:
    """Recall@K both ways from the full matrix, ties against the query."""
    own = np.arange(len(scores))[:, None] == owner[None]
    best = np.where(own, scores, -np.inf).max(1)
    i2t = 1 + ((scores >= best[:, None]) & ~own).sum(1)
    match = scores[owner, np.arange(len(owner))]
    t2i = 1 + ((scores >= match[None]) & ~own).sum(0)
    return {f"{name}_recall@{k}": float((r <= k).mean()) for name, r in (("i2t", i2t), ("t2i", t2i)) for k in KS}


def largest_difference(cached: Features, ids: list[str], plain: Floats) -> float:
    """Largest absolute difference of any value."""
    return float(np.abs(np.stack([cached[i] for i in ids]) - plain).max())


def main() -> None:
    """Run all of it; exit 1 where a comparison fails."""
    options = parse()
    out: Path = options.out
    root = subset(options.photos_root, out / "photos", options.photos) if options.photos else options.photos_root
    vision, language = (f"hf:{(options.models / name).resolve()}" for name in ("dinov2-small", "all-MiniLM-L6-v2"))
    manifest, cache, runs = (str(out / name) for name in ("manifest", "cache", "runs"))
    vlpipe("manifest", "build", "flickr8k", "--root", str(root), "--out", manifest)
    extract = ("extract", "--manifest", manifest, "--cache", cache, "--dtype", "float32", "--encoder")
    images = vlpipe(*extract, vision, "--output", "cls")
    texts = vlpipe(*extract, language, "--output", "mean")
    sources = ("--source", f"image={vision}#cls", "--source", f"text={language}#mean")
    run = vlpipe("train-head", "ridge", "--manifest", manifest, "--cache", cache, "--runs", runs, *sources)
    found = vlpipe("eval", "--run", run["run"], "--task", "retrieval", "--split", "test", "--runs", runs)
    metrics = {name: entry["value"] for name, entry in found["evaluations"][0]["metrics"].items()}
    strength = run["scalars"]["strength"]
    x, y = features(Path(images["store"]), "cls"), features(Path(texts["store"]), "mean")
    split, captions = joined(Path(manifest))
    failed = compare_features(options, Path(manifest), x, y, captions)
    expected = recalls(*ridge_scores(x, y, split, captions, strength))
    print(f"strength {strength:g}, chosen by vlpipe on validation photos")
    for name, value in expected.items():
        equal = metrics[name] == value
        failed |= not equal
        print(f"{name:14} vlpipe {metrics[name]:.4f}  NumPy {value:.4f}  {'equal' if equal else 'DIFFERENT'}")
    print(f"rank_std {metrics['rank_std']:.2f}  worst_gap {metrics['worst_gap']:.2f}")
    sys.exit(int(failed))


def compare_features(
    options: argparse.Namespace, manifest: Path, x: Features, y: Features, captions: dict[str, list[str]]
) -> bool:
    """Print the largest differences from the plain script on evenly spread photos; True where one is too large."""
    chosen = list(captions)[:: max(1, len(captions) // options.compare)]
    table = pq.read_table(manifest / "texts.parquet", columns=["text_id", "text"]).to_pydict()
    words = dict(zip(table["text_id"], table["text"], strict=True))
    paths = pq.read_table(manifest / "images.parquet", columns=["image_id", "path"]).to_pydict()
    files = dict(zip(paths["image_id"], paths["path"], strict=True))
    queries = [captions[i][0] for i in chosen]
    photos = [options.photos_root / "images" / files[i] for i in chosen]
    plain_x, plain_y = plain_features(options.models, photos, [words[q] for q in queries])
    differences = {
        "image": largest_difference(x, chosen, plain_x),
        "text": largest_difference(y, queries, plain_y),
    }
    for side, difference in differences.items():
        print(
            f"{side} features of {len(chosen)} rows: largest difference from plain transformers {difference:.1e}"
        )
    return max(differences.values()) > TOLERANCE


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos-root", type=Path, default=Path("../shared/data/flickr8k"))
    parser.add_argument("--models", type=Path, default=Path("build/real-models"))
    parser.add_argument("--out", type=Path, default=Path("build/flickr8k"))
    parser.add_argument("--photos", type=int, default=0, help="how many photos; 0 takes all")
    parser.add_argument("--compare", type=int, default=200, help="rows compared with plain transformers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
