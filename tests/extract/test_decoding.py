"""Pictures decoded in processes: the same pixels, and whatever a decoder does costs one row."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toys.mini import BAD, counts, job, manifest

from vlpipe.cache_store.reader import open_features
from vlpipe.extract import decoding
from vlpipe.extract.decoding import Decoders
from vlpipe.extract.pictures import PictureError, decode
from vlpipe.extract.prefetch import BrokenWorkersError
from vlpipe.extract.run import extract

BROKEN = (sys.executable, str(Path(__file__).parent / "toys" / "broken_decoder.py"))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoders]:
    monkeypatch.setattr(decoding, "COMMAND", BROKEN)
    with closing(Decoders(1)) as decoders:
        yield decoders


def reason(decoders: Decoders, data: bytes) -> str:
    with pytest.raises(PictureError) as caught:
        decoders.decode(data)
    return str(caught.value)


def test_the_same_pixels_and_the_same_reasons(photos: Path) -> None:
    with closing(Decoders(2)) as decoders:
        for path in sorted(photos.glob("00*.png")):
            data = path.read_bytes()
            found = decoders.decode(data)
            assert (found.mode, found.size) == ("RGB", (12, 10))
            assert np.array_equal(np.asarray(found), np.asarray(decode(data)))
        for name in ("empty.jpg", "page.jpg", "cut.png"):
            data = (photos / name).read_bytes()
            with pytest.raises(PictureError) as here:
                decode(data)
            assert reason(decoders, data) == str(here.value)


def test_a_picture_larger_than_any_pipe() -> None:
    values = np.random.default_rng(0).integers(0, 256, (1200, 1500, 3), np.uint8)
    buffer = BytesIO()
    Image.fromarray(values).save(buffer, "PNG", compress_level=0)
    with closing(Decoders(1)) as decoders:
        assert np.array_equal(np.asarray(decoders.decode(buffer.getvalue())), values)


def test_a_decoder_that_crashes_exits_or_never_ends(broken: Decoders, photos: Path) -> None:
    good = (photos / "001.png").read_bytes()
    assert "signal 11" in reason(broken, b"crash")
    assert broken.decode(good).size == (12, 10)
    assert "exit code 3" in reason(broken, b"exit")
    started = time.monotonic()
    assert "seconds" in reason(broken, b"loop")
    assert time.monotonic() - started < 10
    assert broken.decode(good).size == (12, 10)


def test_a_process_that_the_system_ended_is_tried_again(broken: Decoders, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "001.png", tmp_path / "x.png")
    assert broken.decode(f"once{tmp_path / 'x'}".encode()).size == (12, 10)


def test_a_run_over_broken_decoders(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good rows are those of a run that has no others."""
    root = tmp_path / "root"
    shutil.copytree(photos, root)
    broken = [f"{word}.jpg" for word in ("crash", "loop", "exit")]
    for name in broken:
        (root / name).write_bytes(name.encode())
    good = [f"{n:03d}.png" for n in range(70)]
    alone = job(manifest(tmp_path / "n", root, good, []), tmp_path / "d")
    extract(alone)
    expected = open_features(alone.store, "pooled").rows([f"i:{path}" for path in good])
    monkeypatch.setattr(decoding, "COMMAND", BROKEN)
    work = job(
        manifest(tmp_path / "m", root, [*good[:60], *broken, *BAD, *good[60:]], []), tmp_path / "c", workers=2
    )
    assert counts(extract(work)) == (78, 0, 70, 0, 8)
    np.testing.assert_array_equal(open_features(work.store, "pooled").rows([f"i:{p}" for p in good]), expected)


def test_processes_that_cannot_start_end_the_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = manifest(tmp_path / "m", photos, ["001.png", "002.png"], [])
    for command in ((sys.executable, "-c", "raise SystemExit(7)"), (str(tmp_path / "gone"),)):
        monkeypatch.setattr(decoding, "COMMAND", command)
        work = job(found, tmp_path / "c", workers=2)
        with pytest.raises(BrokenWorkersError, match="--workers 0"):
            extract(work)
        assert not list((work.store / "status" / "blocks").iterdir())
    assert counts(extract(job(found, tmp_path / "c")))[:2] == (2, 0)


def test_stopping_ends_a_decoder_at_work(broken: Decoders) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(reason(broken, b"loop")))
    thread.start()
    time.sleep(0.5)
    started = time.monotonic()
    broken.stop()
    thread.join()
    assert time.monotonic() - started < 0.4
    assert "signal 9" in found[0]


def test_a_decoder_ends_with_whoever_asked() -> None:
    process = subprocess.Popen(decoding.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_no_process_without_a_picture_to_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "COMMAND", (str(tmp_path / "gone"),))
    work = job(manifest(tmp_path / "m", tmp_path, ["gone.png"], ["a"]), tmp_path / "c", workers=2)
    assert counts(extract(work)) == (1, 0, 0, 0, 1)
    assert counts(extract(job(work.manifest, tmp_path / "c", "text", workers=2))) == (1, 0, 1, 0, 0)
