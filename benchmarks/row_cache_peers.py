"""The formats that others keep features in, each read as its documentation says, one shuffled epoch at a time.

Every reader is set up for what it is best at: h5py gets a contiguous data set and sorted positions, webdataset and
litdata stream shards through their shuffle, Hugging Face datasets maps an Arrow file. A reader returns how many
rows it gave; the slow ones stop after PART of them, and are counted by the row.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

Epoch = Callable[[int], int]
PART = 20_000  # rows that a reader gives at most, in whole batches: epochs of some take minutes


def _rows(work: Any) -> Any:
    """The set as one mapped array, to convert from."""
    return np.load(work.plain, mmap_mode="r")


def _counted(work: Any, batches: Any) -> int:
    done = 0
    for batch in batches:
        done += len(batch)
        if done >= PART:
            break
    return done


def read_h5py(work: Any) -> Epoch:
    """A contiguous data set; each batch's positions in ascending order, as h5py needs them."""
    import h5py

    path = work.folder / "rows.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["x"] = _rows(work)
    data = h5py.File(path, "r")["x"]

    def epoch(seed: int) -> int:
        order = np.random.default_rng(seed).permutation(work.rows)
        starts = range(0, work.rows, work.batch)
        return _counted(work, (data[np.sort(order[start : start + work.batch])] for start in starts))

    return epoch


def read_webdataset(work: Any) -> Epoch:
    """Tar shards of about 256 MB, one .npy member a row; a shuffle buffer of 5,000 rows."""
    import webdataset as wds

    folder = work.folder / "webdataset"
    if not folder.exists():
        folder.mkdir()
        with wds.ShardWriter(str(folder / "%05d.tar"), maxsize=256 << 20, maxcount=1 << 30, verbose=0) as sink:
            for row, values in enumerate(_rows(work)):
                data = io.BytesIO()
                np.save(data, values)
                sink.write({"__key__": f"{row:07d}", "npy": data.getvalue()})
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    window = max(1, min(5000, (1 << 30) // work.row_bytes))

    def epoch(seed: int) -> int:
        data = wds.WebDataset(shards, shardshuffle=len(shards), seed=seed, empty_check=False)
        rows = data.shuffle(window, seed=seed).decode().to_tuple("npy").batched(work.batch)
        return _counted(work, (batch[0] for batch in rows))

    return epoch


def read_litdata(work: Any) -> Epoch:
    """Chunks of 64 MB with tokens' own fast path unused: rows are of any shape; streamed with its shuffle."""
    import litdata

    folder = work.folder / "litdata"
    if not folder.exists():
        rows = _rows(work)
        litdata.optimize(
            fn=lambda row: np.array(rows[row]), inputs=list(range(work.rows)), output_dir=str(folder),
            chunk_bytes="64MB", num_workers=1, start_method="fork",
        )  # fmt: skip

    def epoch(seed: int) -> int:
        data = litdata.StreamingDataset(str(folder), shuffle=True, seed=seed)
        return _counted(work, litdata.StreamingDataLoader(data, batch_size=work.batch, num_workers=0))

    return epoch


def read_datasets(work: Any) -> Epoch:
    """A mapped Arrow file with rows of fixed length; shuffled indices, batches as NumPy arrays."""
    import datasets
    import pyarrow as pa

    folder = work.folder / "datasets"
    if not folder.exists():
        width = work.row_bytes // 2
        tables = []
        for start in range(0, work.rows, 1000):
            flat = pa.array(np.array(_rows(work)[start : start + 1000]).reshape(-1))
            tables.append(pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)}))
        datasets.Dataset(pa.concat_tables(tables)).save_to_disk(str(folder))
    data = datasets.load_from_disk(str(folder)).with_format("numpy")

    def epoch(seed: int) -> int:
        order = np.random.default_rng(seed).permutation(work.rows)
        starts = range(0, work.rows, work.batch)
        return _counted(work, (data[order[start : start + work.batch]]["x"] for start in starts))

    return epoch


READERS: dict[str, Callable[[Any], Epoch]] = {
    "h5py": read_h5py,
    "webdataset": read_webdataset,
    "litdata": read_litdata,
    "Hugging Face datasets": read_datasets,
}
