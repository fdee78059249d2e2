"""The layer study of JAM (section 4.2, Figs. 5 and 6) in small, on real photos.

    python benchmarks/jam_layers.py [--set epochs=...]

writes a table of the first photos of each split of Flickr8k, two captions each, and runs `jam_layers.toml` beside
this file, which holds all commands. Further arguments go to `vlpipe recipe run`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PHOTOS = {"train": 400, "val": 100, "test": 100}
CAPTIONS = 2
FLICKR8K = Path("../shared/data/flickr8k/captions.jsonl")
FOLDER = Path("build/jam-layers")


def main() -> None:
    """Write the table, then run the recipe."""
    rows = [json.loads(line) for line in FLICKR8K.read_text(encoding="utf-8").splitlines()]
    chosen = [row for split, count in PHOTOS.items() for row in [r for r in rows if r["split"] == split][:count]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "table.jsonl").open("w", encoding="utf-8") as file:
        for row in chosen:
            name, captions = row["image"], row["captions"][:CAPTIONS]
            line = {"path": name, "image_id": name, "split": row["split"], "captions": captions}
            file.write(json.dumps(line) + "\n")
    recipe = Path(__file__).with_suffix(".toml")
    command = [sys.executable, "-m", "vlpipe.pipeline", "recipe", "run", str(recipe), *sys.argv[1:]]
    raise SystemExit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
