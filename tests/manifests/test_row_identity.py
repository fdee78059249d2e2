"""Row identity in publishers' own files: an id that stands twice, and files that are none of the set's."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.folders import pictures_in

FLICKR8K = {
    "Flickr_8k.trainImages.txt": "a.jpg\n",
    "Flickr_8k.devImages.txt": "",
    "Flickr_8k.testImages.txt": "b.jpg\n",
    "Flicker8k_Dataset/a.jpg": "",
    "Flicker8k_Dataset/b.jpg": "",
}
SUGARCREPE = {
    f"{name}.json": "{}"
    for name in ("add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj", "val2017/a.jpg")
}
PAIR = '{"filename": "a.jpg", "caption": "x", "negative_caption": "y"}'


def lay(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return root


def coco(images: list[tuple[int, str]], captions: list[tuple[int, int]]) -> dict[str, str]:
    listed = [{"id": number, "file_name": name, "width": 4, "height": 4} for number, name in images]
    said = [{"id": number, "image_id": image, "caption": "A dog."} for number, image in captions]
    photos = {f"val2017/{name}": "" for _, name in images}
    return photos | {"annotations/captions_val2017.json": json.dumps({"images": listed, "annotations": said})}


def karpathy(*numbers: int) -> dict[str, str]:
    sentences = [{"raw": f"Text {place}.", "sentid": number} for place, number in enumerate(numbers)]
    entry = {"filepath": "val2014", "filename": "a.jpg", "split": "val", "sentences": sentences}
    return {"val2014/a.jpg": "", "dataset_coco.json": json.dumps({"images": [entry]})}


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        (
            "flickr8k",
            FLICKR8K | {"Flickr8k.token.txt": "a.jpg#0\tone\na.jpg#0\tone\nb.jpg#0\ttwo\n"},
            r"Flickr8k\.token\.txt' line 2: 'a\.jpg#0' stands twice",
        ),
        ("coco", coco([(1, "a.jpg"), (1, "b.jpg")], [(5, 1)]), r"images\[1\] has id 1, which stands there twice"),
        ("coco", coco([(1, "a.jpg")], [(5, 1), (5, 1)]), r"annotations\[1\] has id 5, which stands there twice"),
        ("coco", karpathy(7, 7), r"images\[0\] sentences\[1\] has sentid 7, which stands there twice"),
        (
            "sugarcrepe",
            SUGARCREPE | {"val2017/a.jpg": "", "add_att.json": f'{{"0": {PAIR}, "1": {PAIR}, "0": {PAIR}}}'},
            r"add_att\.json' is not JSON: the key '0' stands twice",
        ),
    ],
)
def test_what_stands_twice_is_refused_and_named(
    tmp_path: Path, name: str, files: Mapping[str, str], message: str
) -> None:
    with pytest.raises(VlpipeError, match=message):
        build(name, lay(tmp_path / "set", files), tmp_path / "m")


@pytest.mark.parametrize("raw", ['"a dog"', "5", "not json", '{"a": "b"}'])
def test_captions_of_a_table_are_a_list(tmp_path: Path, raw: str) -> None:
    quoted = raw.replace('"', '""')
    table = f'raw,sentids,split,filename,img_id\n"{quoted}",[0],train,a.jpg,0\n'
    root = lay(tmp_path / "set", {"flickr30k-images/a.jpg": "", "flickr_annotations_30k.csv": table})
    with pytest.raises(VlpipeError, match="line 2: raw is no JSON list of captions; expected"):
        build("flickr30k", root, tmp_path / "m")


def test_json_that_is_too_deep_is_an_error_of_one_line(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    root = lay(tmp_path / "set", {"flickr30k-images/a.jpg": "", "dataset_flickr30k.json": deep})
    with pytest.raises(VlpipeError, match=r"dataset_flickr30k\.json' is not JSON: maximum recursion"):
        build("flickr30k", root, tmp_path / "m")


def pictures(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(root / name, format="PNG")
    return root


def test_what_systems_leave_in_folders_is_no_picture(tmp_path: Path) -> None:
    root = pictures(tmp_path / "set", "cat/a.jpg", "cat/b.JPG", "cat/b.jpg", "dog/a.jfif")
    litter = ("cat/._a.jpg", "cat/Thumbs.db", "cat/.DS_Store", "__MACOSX/cat/._a.jpg", "dog/__MACOSX/a.jpg")
    lay(root, dict.fromkeys(litter, "x"))
    manifest = build("image_folder", root, tmp_path / "m", {"templates": "none"})
    found = manifest.table("image")["image_id"].to_pylist()
    assert found == ["cat/a.jpg", "cat/b.JPG", "cat/b.jpg", "dog/a.jfif"]


def test_links_are_followed_but_never_round_and_round(tmp_path: Path) -> None:
    root = pictures(tmp_path / "set", "cat/a.jpg")
    pictures(tmp_path / "elsewhere", "b.jpg")
    (root / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    assert list(pictures_in(root)) == ["cat/a.jpg", "cat/more/b.jpg"]
    (root / "cat" / "up").symlink_to(root)
    with pytest.raises(VlpipeError, match=r"cat/up' is a link to '.*', which it lies in; remove the link"):
        list(pictures_in(root))


def shard(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_shards_that_were_packed_on_macos(tmp_path: Path) -> None:
    files = {"._0.jpg": b"q", "0.jpg": b"x", "._0.txt": b"q", "0.txt": b"hello\r\n", "a/._1.jpg": b"q"}
    shard(tmp_path / "set" / "00000.tar", files)
    (tmp_path / "set" / "._00000.tar").write_bytes(b"no tar")
    manifest = build("webdataset", tmp_path / "set", tmp_path / "m")
    assert manifest.table("text", ["text_id", "text"]).to_pylist() == [{"text_id": "00000/0#0", "text": "hello"}]
    assert manifest.count("image") == 1


@pytest.mark.parametrize(("value", "text"), [(2020, "2020"), (1.5, "1.5"), ("2020", "2020")])
def test_a_number_of_a_shards_json_is_its_digits(tmp_path: Path, value: Any, text: str) -> None:
    shard(tmp_path / "set" / "0.tar", {"0.jpg": b"x", "0.json": json.dumps({"caption": value}).encode()})
    manifest = build("webdataset", tmp_path / "set", tmp_path / "m", {"captions": ["json.caption"]})
    assert manifest.table("text")["text"].to_pylist() == [text]
