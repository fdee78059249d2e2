"""Tar shards: pictures that stay where they are, captions from text and JSON, CC3M, CC12M and Itemized-cc0.3M."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.manifest import Manifest
from vlpipe.manifests.shards import Member, samples


def picture(seed: int, form: str = "JPEG") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8 + seed, 8), (seed * 40 % 256, 9, 9)).save(data, form)
    return data.getvalue()


def pack(path: Path, files: Mapping[str, bytes], form: int = tarfile.GNU_FORMAT) -> Path:
    """As tar packs it: a folder's own entry first, which is no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def sample(key: str, seed: int, caption: str | None = None, **record: Any) -> dict[str, bytes]:
    """One sample as img2dataset packs it."""
    text = f"caption {seed}" if caption is None else caption
    described = {"url": "http://x/y.jpg", "caption": text, "key": key, "status": "success", "exif": "{}"} | record
    return {
        f"{key}.jpg": picture(seed),
        f"{key}.json": json.dumps(described).encode(),
        f"{key}.txt": text.encode(),
    }


def publish(root: Path) -> Path:
    """Two shards of img2dataset, with the tables that it writes beside them."""
    pack(root / "00000.tar", sample("000000000", 0) | sample("000000001", 1))
    pack(root / "00001.tar", sample("000010000", 2))
    (root / "00000.parquet").write_bytes(b"table")
    (root / "00000_stats.json").write_text("{}")
    return root


def texts(manifest: Manifest) -> dict[str, str]:
    rows = manifest.table("text").to_pylist()
    return {row["text_id"]: row["text"] for row in rows}


@pytest.mark.parametrize(("name", "split"), [("cc3m", "train"), ("cc12m", "train"), ("webdataset", None)])
def test_img2datasets_shards(tmp_path: Path, name: str, split: str | None) -> None:
    manifest = build(name, publish(tmp_path / "set"), tmp_path / "m")
    manifest.verify()
    rows = manifest.table("image").to_pylist()
    assert [row["image_id"] for row in rows] == ["00000/000000000", "00000/000000001", "00001/000010000"]
    assert {row["split"] for row in rows} == {split}
    for seed, row in enumerate(rows):
        member = Member.parse(manifest.image_root / row["path"])
        assert member is not None
        assert member.read() == picture(seed)
    assert texts(manifest) == {
        "00000/000000000#0": "caption 0",
        "00000/000000001#0": "caption 1",
        "00001/000010000#0": "caption 2",
    }
    assert check(manifest, every_image=True).errors == []


def test_splits_are_words_of_a_shards_name(tmp_path: Path) -> None:
    root = tmp_path / "set"
    names = ("cc3m-train-0000", "cc3m-validation-0000", "test/00000", "trainable/1", "b/cc3m_val_1")
    for number, name in enumerate(names):
        pack(root / f"{name}.tar", sample(f"{number:09d}", number))
    rows = build("webdataset", root, tmp_path / "m").table("image").to_pylist()
    assert {row["image_id"].rpartition("/")[0]: row["split"] for row in rows} == {
        "b/cc3m_val_1": "val",
        "cc3m-train-0000": "train",
        "cc3m-validation-0000": "val",
        "test/00000": "test",
        "trainable/1": None,
    }
    rows = (
        build("webdataset", root, tmp_path / "m2", {"split": "test", "shards": "*.tar"}).table("image").to_pylist()
    )
    assert [row["split"] for row in rows] == ["test", "test"]


def test_captions_of_several_fields(tmp_path: Path) -> None:
    record = {"raw_caption": ["raw"], "longIB_captions": ["one", "two"], "deep": {"inner": "nested"}}
    pack(tmp_path / "set" / "00000.tar", sample("0", 0, "naïve\u2028 - 2020 \n", **record))
    fields = ["txt", "json.longIB_captions", "json.deep.inner", "json.key"]
    manifest = build("webdataset", tmp_path / "set", tmp_path / "m", {"captions": fields})
    rows = manifest.table("text").to_pylist()
    assert [(row["text_id"], row["text"], dict(row["attributes"])["field"]) for row in rows] == [
        ("00000/0#0", "naïve\u2028 - 2020 ", "txt"),
        ("00000/0#1", "one", "json.longIB_captions"),
        ("00000/0#2", "two", "json.longIB_captions"),
        ("00000/0#3", "nested", "json.deep.inner"),
        ("00000/0#4", "0", "json.key"),
    ]


def test_absent_captions_are_errors_or_left_out(tmp_path: Path) -> None:
    files = sample("a", 0) | sample("b", 1, " \n") | sample("c", 2)
    del files["c.txt"]
    pack(tmp_path / "set" / "0.tar", files)
    with pytest.raises(VlpipeError, match=r"sample '0/b' has no txt, or a blank one; .*drop_blank=true"):
        build("webdataset", tmp_path / "set", tmp_path / "m")
    manifest = build("webdataset", tmp_path / "set", tmp_path / "m", {"drop_blank": True})
    assert (manifest.count("image"), texts(manifest)) == (3, {"0/a#0": "caption 0"})
    wanted = {"captions": ["json.caption", "json.exif"], "drop_blank": True}
    assert len(texts(build("webdataset", tmp_path / "set", tmp_path / "m2", wanted))) == 5
    pack(tmp_path / "s2" / "0.tar", sample("a", 0, nested={"x": 7}))
    with pytest.raises(VlpipeError, match=r"json\.nested is \{'x': '7'\}; expected a text or a list of texts"):
        build("webdataset", tmp_path / "s2", tmp_path / "m3", {"captions": ["json.nested"]})


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_keys_in_folders_other_files_and_long_names(tmp_path: Path, form: int) -> None:
    long = "d" * 90 + "/" + "k" * 60
    files = {f"{long}.PNG": picture(1, "PNG"), f"{long}.txt": b"far", f"{long}.seg.png": b"no picture of it"}
    files |= {
        "a/0.webp": picture(2, "WEBP"),
        "a/0.txt": b"a",
        "b/0.jpeg": picture(3),
        "b/0.txt": b"b",
        "./c.jpg": picture(4),
        "./c.txt": b"c",
        "d.txt": b"-",
    }
    pack(tmp_path / "set" / "0.tar", files, form)
    manifest = build("webdataset", tmp_path / "set", tmp_path / "m")
    assert texts(manifest) == {f"0/{long}#0": "far", "0/a/0#0": "a", "0/b/0#0": "b", "0/c#0": "c"}
    assert check(manifest, every_image=True).errors == []


def test_shards_that_are_no_shards(tmp_path: Path) -> None:
    root = publish(tmp_path / "set")
    whole = (root / "00000.tar").read_bytes()
    compressed = tmp_path / "z" / "0.tar"
    compressed.parent.mkdir()
    with tarfile.open(compressed, "w:gz") as tar:
        tar.add(root / "00000.tar", "x.tar")
    with pytest.raises(VlpipeError, match=r"0\.tar' is no whole tar file .*; fetch it again, or unpack it"):
        build("webdataset", compressed.parent, tmp_path / "m")
    ends = [n for n in range(0, len(whole), 512) if not any(whole[n:])]
    broken = [whole[:n] for n in (0, 100, 1000, 1024, 1500, 2048, ends[0] - 512, ends[0])]
    with tarfile.open(root / "00000.tar") as tar:
        third = tar.getmembers()[2].offset
    broken.append(whole[:third] + b"x" * 512 + whole[third + 512 :])
    for data in broken:  # cut in a header, in a file, between files, before the mark of the end; a broken header
        (root / "00000.tar").write_bytes(data)
        with pytest.raises(VlpipeError, match=r"00000\.tar' is no whole tar file"):
            build("webdataset", root, tmp_path / "m")
    compressed.unlink()
    with pytest.raises(
        VlpipeError, match=r"has no files '\*\*/\*\.tar'; expected tar shards .*published at https"
    ):
        build("webdataset", tmp_path / "z", tmp_path / "m")
    with pytest.raises(VlpipeError, match=r"needs --root DIR; expected tar shards"):
        build("cc3m", None, tmp_path / "m")
    pack(root / "00000.tar", sample("0", 0) | {"0.JPG": b"twice"})
    with pytest.raises(VlpipeError, match=r"holds '0\.JPG' twice"):
        build("webdataset", root, tmp_path / "m")
    pack(root / "00000.tar", sample("0", 0) | {"0.png": b"two"})
    with pytest.raises(VlpipeError, match=r"has two pictures, \.jpg and \.png"):
        build("webdataset", root, tmp_path / "m")
    pack(root / "00000.tar", sample("0", 0) | {"0.json": b"{"})
    with pytest.raises(VlpipeError, match="its JSON is broken"):
        build("webdataset", root, tmp_path / "m", {"captions": ["json.caption"]})
    pack(root / "00000.tar", sample("0", 0) | {"0.txt": b"caf\xe9"})
    with pytest.raises(VlpipeError, match="is not UTF-8"):
        build("webdataset", root, tmp_path / "m")
    pack(root / "00000.tar", sample("0", 0) | sample("1", 1) | {"0.jpeg": b"again"})
    with pytest.raises(VlpipeError, match="same image_id '00000/0'"):
        build("webdataset", root, tmp_path / "m")


def test_a_shard_that_was_packed_again_is_noticed(tmp_path: Path) -> None:
    root = publish(tmp_path / "set")
    manifest = build("webdataset", root, tmp_path / "m")
    path = manifest.image_root / manifest.table("image")["path"][1].as_py()
    member = Member.parse(path)
    assert member is not None
    whole = (root / "00000.tar").read_bytes()
    for changed in (whole[512:], whole[:3000] + bytes(len(whole)), whole[: member.offset + 5], b""):
        (root / "00000.tar").write_bytes(changed)
        with pytest.raises(VlpipeError, match=r"shard '00000\.tar' has no file of .* build the manifest again"):
            member.read()
    (root / "00000.tar").unlink()
    report = check(manifest, every_image=True)
    assert report.numbers["missing_images"] == 2
    with pytest.raises(FileNotFoundError):
        member.read()


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.tar", "a.tar#1", "a.tar#1+", "a.tar#-1+2", "a#1+2", "a.tar#1+2/b.jpg"]
)
def test_ordinary_paths_are_no_members(name: str) -> None:
    assert Member.parse(Path(name)) is None


def test_memory_does_not_grow_with_a_shard(tmp_path: Path) -> None:
    peaks = []
    for count in (200, 4_000):
        shard = pack(tmp_path / f"{count}.tar", {f"{n:09d}.txt": b"caption" for n in range(count)})
        tracemalloc.start()
        assert sum(1 for _ in samples(shard)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 64_000


def itemized(root: Path) -> Path:
    recap = {"raw_caption": ["raw"], "shortIB_captions": ["short"]}
    keyed = sample("000020017", 0, **recap) | sample("000000003", 1, **recap) | sample("000000009", 2, **recap)
    pack(root / "0.tar", keyed | sample("000007777", 3, index=5, **recap))
    items = {"10017": ["a red car", "two men"], "3": ["a dog"], "9": [], "5": ["by index"], "299999": ["not here"]}
    (root / "first_300000_rewrites.json").write_text(json.dumps(items))
    return root


def test_itemized(tmp_path: Path) -> None:
    manifest = build("itemized_cc", itemized(tmp_path / "set"), tmp_path / "m")
    rows = manifest.table("text").to_pylist()
    assert [(row["text_id"], row["text"], dict(row["attributes"])["field"]) for row in rows] == [
        ("0/000020017#0", "a red car", "items"),
        ("0/000020017#1", "two men", "items"),
        ("0/000000003#0", "a dog", "items"),
        ("0/000000009#0", "short", "json.shortIB_captions"),
        ("0/000007777#0", "by index", "items"),
    ]
    assert {row["split"] for row in rows} == {"train"}


def test_wrong_itemized_files(tmp_path: Path) -> None:
    root = itemized(tmp_path / "set")
    elsewhere = tmp_path / "items.json"
    (root / "first_300000_rewrites.json").rename(elsewhere)
    expected = r"expected .*first_300000_rewrites\.json .*published at https"
    with pytest.raises(VlpipeError, match=rf"first_300000_rewrites\.json' does not exist; {expected}"):
        build("itemized_cc", root, tmp_path / "m")
    assert build("itemized_cc", root, tmp_path / "m", {"items": str(elsewhere)}).count("text") == 5
    elsewhere.write_text('{"3": "a dog"}')
    with pytest.raises(VlpipeError, match="is no JSON object of lists of texts by index"):
        build("itemized_cc", root, tmp_path / "m2", {"items": str(elsewhere)})
    elsewhere.write_text("{}")
    pack(root / "1.tar", sample("000007777", 3))
    with pytest.raises(VlpipeError, match="'000007777' has no index in its JSON, and its key is no number"):
        build("itemized_cc", root, tmp_path / "m2", {"items": str(elsewhere)})
