"""Run by `make wheel` with the wheel installed: every package imports and the bundled model encodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vlpipe.pipeline as pipeline


def vlpipe(*arguments: str) -> str:
    command = [sys.executable, "-m", "vlpipe.pipeline", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    home = Path(pipeline.__file__).resolve()
    if "site-packages" not in home.parts:
        raise SystemExit(f"not the wheel: vlpipe comes from {home}")
    if "train-head" not in vlpipe("--help"):
        raise SystemExit("--help names no train-head")
    for shelf in pipeline.SHELVES:
        if not vlpipe("list", shelf).strip():
            raise SystemExit(f"the wheel has no {shelf}")
    if pipeline.ENCODER not in vlpipe("doctor"):
        raise SystemExit("the bundled model does not load from the wheel")
    print("wheel: ok")


if __name__ == "__main__":
    main()
