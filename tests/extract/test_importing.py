"""`vlpipe cache import`: features made elsewhere, matched by id, checked before any row is kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe import pipeline
from vlpipe.cache_store.arrays import StoredArray
from vlpipe.cache_store.errors import RowsError, StaleCacheError, ValueRangeError
from vlpipe.cache_store.layout import Status, marker_path
from vlpipe.cache_store.reader import open_features
from vlpipe.cache_store.writer import StoreWriter
from vlpipe.extract import importing
from vlpipe.extract.importing import Imported, import_rows
from vlpipe.extract.outside import Stacked
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.writer import write_manifest

ROWS = 300
IDS = [f"é {n:03d}.jpg" for n in range(ROWS)]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_manifest(
        tmp_path_factory.mktemp("made") / "m",
        name="three hundred",
        source="made",
        licence="none",
        image_root=Path(),
        images=[{"image_id": name, "path": name, "split": "test"} for name in IDS],
        texts=[],
    )


def rows(count: int = ROWS, *shape: int, dtype: str = "<f4") -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, *(shape or (7,)))).astype(dtype)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def keep(
    manifest: Manifest, cache: Path, features: Any, ids: Any = IDS, side: Any = "image", **changed: Any
) -> Imported:
    return import_rows(features, ids, manifest, side, changed.pop("name", "clip"), cache=cache, **changed)


@pytest.mark.parametrize("piece", [1, 100, 8 << 20])
@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", ">f4"])
def test_rows_come_back_under_their_ids(
    manifest: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, piece: int
) -> None:
    monkeypatch.setattr(importing, "PIECE_BYTES", piece)
    given = rows(dtype=kind)
    order = np.random.default_rng(5).permutation(ROWS)
    made = keep(manifest, cache, np.asfortranarray(given[order]), [IDS[n] for n in order], dtype="float32")
    assert (made.rows, made.imported, made.already, made.missing, made.surplus) == (ROWS, ROWS, 0, 0, 0)
    found = open_features(Path(made.store), "features")
    np.testing.assert_array_equal(found.rows(IDS), given.astype(np.float32))
    assert found.ids == IDS
    assert found.fingerprint.keys() == {"imported", "rows", "output", "dtype"}


def test_float16_is_the_default_and_rows_may_have_any_shape(manifest: Manifest, cache: Path) -> None:
    given = rows(ROWS, 3, 4, dtype="<f8")
    found = open_features(Path(keep(manifest, cache, given, output="tokens").store), "tokens")
    assert found.shape == (3, 4)
    np.testing.assert_array_equal(found.take(np.arange(ROWS)), given.astype(np.float16))


def test_files_are_stacked(manifest: Manifest, cache: Path) -> None:
    given = rows()
    parts = Stacked([given[:1], given[1:120], given[:0], given[120:]])
    positions = np.array([299, 0, 1, 119, 120, 0])
    np.testing.assert_array_equal(parts.take(positions), given[positions])
    made = keep(manifest, cache, parts)
    np.testing.assert_array_equal(open_features(Path(made.store), "features").rows(IDS), given.astype(np.float16))
    for other in (rows(3, 8), rows(3, 7, dtype="<f2")):
        with pytest.raises(RowsError, match="expected the same"):
            Stacked([given, other])


def test_content_is_that_of_each_rows_bytes(manifest: Manifest, cache: Path) -> None:
    given = rows()
    first = open_features(Path(keep(manifest, cache, given).store), "features")
    hashes = b"".join(hashlib.sha256(row.tobytes()).digest()[:16] for row in given)
    assert first.content_digest == hashlib.sha256(hashes).hexdigest()
    assert first.fingerprint["rows"] == hashlib.sha256(hashes).hexdigest()
    given[17, 0] += 1
    other = open_features(Path(keep(manifest, cache, given, name="b").store), "features")
    assert other.content_digest != first.content_digest


def test_the_same_again_imports_nothing_and_a_lost_block_alone(manifest: Manifest, cache: Path) -> None:
    given = rows()
    store = Path(keep(manifest, cache, given).store)
    assert keep(manifest, cache, given).imported == 0
    marker_path(store, 1).unlink()
    made = keep(manifest, cache, given[::-1], IDS[::-1])  # the order is not what it is
    assert (made.imported, made.already) == (64, ROWS - 64)
    assert open_features(store, "features").usable.all()


def test_an_interrupted_import_goes_on(manifest: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, written = rows(), []

    def two_blocks(self: StoreWriter, block: int, *values: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(block)
        real(self, block, *values)

    real = StoreWriter.write
    monkeypatch.setattr(StoreWriter, "write", two_blocks)
    with pytest.raises(KeyboardInterrupt):
        keep(manifest, cache, given)
    monkeypatch.setattr(StoreWriter, "write", real)
    made = keep(manifest, cache, given)
    assert (made.imported, made.already) == (ROWS - 128, 128)
    whole = open_features(Path(keep(manifest, cache / "whole", given).store), "features")
    found = open_features(Path(made.store), "features")
    assert (found.content_digest, found.fingerprint) == (whole.content_digest, whole.fingerprint)
    np.testing.assert_array_equal(found.rows(IDS), whole.rows(IDS))


def test_a_damaged_block_is_written_anew(manifest: Manifest, cache: Path) -> None:
    given = rows()
    store = Path(keep(manifest, cache, given).store)
    chunk = Path(str(StoredArray.open(store / "features").path(1)))
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
    assert keep(manifest, cache, given).imported == 64
    assert chunk.read_bytes() == whole


def test_other_rows_are_refused_with_the_field(manifest: Manifest, cache: Path) -> None:
    given = rows()
    keep(manifest, cache, given)
    changed = given.copy()
    changed[5, 5] = 9
    with pytest.raises(StaleCacheError, match=r"features\.rows: cached '[0-9a-f]{64}', asked"):
        keep(manifest, cache, changed)
    with pytest.raises(StaleCacheError, match=r"features\.dtype: cached 'float16', asked 'float32'"):
        keep(manifest, cache, given, dtype="float32")


def test_a_source_is_the_fingerprint_and_rows_are_compared_all_the_same(manifest: Manifest, cache: Path) -> None:
    given = rows()
    made = keep(manifest, cache, given, source="CLIP ViT-B/32, openai")
    fingerprint = open_features(Path(made.store), "features").fingerprint
    assert fingerprint == {
        "imported": "1", "source": "CLIP ViT-B/32, openai", "output": "features", "dtype": "float16",
    }  # fmt: skip
    changed = given.copy()
    changed[5, 5] = 9
    with pytest.raises(StaleCacheError, match=r"content_hash of 1 of 300 rows differs, first \['é 005\.jpg'\]"):
        keep(manifest, cache, changed, source="CLIP ViT-B/32, openai")
    with pytest.raises(StaleCacheError, match=r"features\.source: cached 'CLIP ViT-B/32, openai', asked 'DINO'"):
        keep(manifest, cache, given, source="DINO")


def test_missing_and_surplus_ids(manifest: Manifest, cache: Path) -> None:
    given = rows()
    ids = ["not there", *IDS[3:]]
    with pytest.raises(RowsError, match=r"3 of 300 images .* have no row, first .*000.*--allow-missing"):
        keep(manifest, cache, given[2:], ids, source="s")
    assert not cache.exists()
    made = keep(manifest, cache, given[2:], ids, source="s", allow_missing=True)
    assert (made.missing, made.missing_first) == (3, tuple(IDS[:3]))
    assert (made.surplus, made.surplus_first) == (1, ("not there",))
    found = open_features(Path(made.store), "features")
    assert found.status.tolist() == [Status.FAILED] * 3 + [Status.OK] * (ROWS - 3)
    np.testing.assert_array_equal(found.rows(IDS[3:]), given[3:].astype(np.float16))
    made = keep(manifest, cache, given, source="s")  # with the rest, the same source goes on
    assert (made.imported, made.already, made.missing) == (64, ROWS - 64, 0)
    np.testing.assert_array_equal(open_features(Path(made.store), "features").rows(IDS), given.astype(np.float16))
    with pytest.raises(RowsError, match="none of the 2 ids"):
        keep(manifest, cache, given[:2], ["x", "y"], allow_missing=True)


def test_zero_rows_are_counted(manifest: Manifest, cache: Path) -> None:
    given = rows()
    given[[4, 5]] = 0
    assert keep(manifest, cache, given).zero_norm == 2


@pytest.mark.parametrize(
    ("value", "dtype", "told"),
    [
        (70000, "float16", "row 290 of the features .* has the value 70000, float16 holds .*--dtype float32"),
        (-np.inf, "float16", "row 290 .* -inf, expected a finite number"),
        (np.nan, "float32", "row 290 .* nan, expected a finite number"),
        (1e300, "float32", r"row 290 .* 1e\+300, float32 holds"),
    ],
)
def test_values_are_checked_before_anything_is_kept(
    manifest: Manifest, cache: Path, value: float, dtype: str, told: str
) -> None:
    given = rows(dtype="<f8")
    given[290, 3] = value
    with pytest.raises(ValueRangeError, match=told):
        keep(manifest, cache, given, dtype=dtype)
    assert not cache.exists()


def test_what_is_refused(manifest: Manifest, cache: Path) -> None:
    given = rows()
    for shape, told in (((ROWS,), "expected .rows, width."), ((ROWS, 0), "expected .rows, width.")):
        with pytest.raises(RowsError, match=told):
            keep(manifest, cache, np.zeros(shape, np.float32))
    for kind in ("int64", "complex64", "V2", "bool"):
        with pytest.raises(RowsError, match="float16, float32, float64"):
            keep(manifest, cache, np.zeros((ROWS, 3), kind))
    with pytest.raises(RowsError, match="300 rows of features and 299 ids"):
        keep(manifest, cache, given, IDS[1:])
    with pytest.raises(RowsError, match="stands at rows 1 and 2"):
        keep(manifest, cache, given, [IDS[0], IDS[1], *IDS[1:-1]])
    with pytest.raises(VlpipeError, match="has no texts"):
        keep(manifest, cache, given, side="text")
    for name in ("", "clip#pooled", "a::b"):
        with pytest.raises(UsageError, match="expected a name"):
            keep(manifest, cache, given, name=name)
    assert not cache.exists()
    keep(manifest, cache, given)
    with pytest.raises(UsageError, match="has the output 'features' already"):
        keep(manifest, cache, given, output="other")


def test_the_command(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = rows()
    np.save("a.npy", given[:100])
    np.save("b.npy", given[100:])
    np.save("both.npy", np.stack([given, -given]))
    Path("a.txt").write_text("\n".join(IDS[:100]), encoding="utf-8")
    Path("b.json").write_text(json.dumps([*IDS[100:-1], "other"]), encoding="utf-8")
    Path("all.json").write_text(json.dumps(IDS), encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str, str]:
        base = ["cache", "import", "--manifest", str(manifest.folder), "--side", "image", "--as", "clip"]
        code = pipeline.run([*base, *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    two = ["a.npy", "b.npy", "--ids", "a.txt", "--ids", "b.json"]
    code, out, err = run(*two)
    assert (code, out) == (1, "")
    assert "--allow-missing" in err
    code, out, err = run(*two, "--allow-missing")
    assert code == 0
    assert out.startswith("clip image features: imported 300 rows, 0 were there; 299 ok, 1 failed -> cache/")
    assert err == (
        "note: 1 of the given ids are not in the manifest, first ['other']\n"
        "note: 1 images of the manifest have no row and count as failed, first ['é 299.jpg']\n"
    )
    assert run("both.npy", "--ids", "all.json", "--index", "1")[0] == 4
    code, out, _ = run("both.npy", "--ids", "all.json", "--index", "1", "--as", "minus", "--json")
    assert code == 0
    store = Path(json.loads(out)["store"])
    np.testing.assert_array_equal(open_features(store, "features").rows(IDS), -given.astype(np.float16))
    code, _, err = run("both.npy", "--ids", "all.json", "--index", "2")
    assert (code, "has the shape (2, 300, 7)" in err) == (2, True)
    code, _, err = run("both.npy", "--ids", "all.json")
    assert (code, err.count("\n")) == (1, 1)
    assert "'both.npy' has the shape (2, 300, 7), 'all.json' 300 ids; take one with --index" in err
    assert run("a.npy", "b.npy", "--ids", "all.json")[0] == 2
