"""The main job on 60 real photos, checked from outside by the script that the results page names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_main_job_on_real_photos(shared: Path, real_models: Path, repository: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, repository / "benchmarks" / "flickr8k_ridge.py", "--photos", "60", "--compare", "20",
        "--photos-root", shared / "data" / "flickr8k", "--models", real_models, "--out", tmp_path,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" equal\n") == 6
    assert "DIFFERENT" not in done.stdout
