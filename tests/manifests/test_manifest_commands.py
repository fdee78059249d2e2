"""`vlpipe manifest` from the outside: outputs, notes, exit codes; and what `check` finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from vlpipe.foundation.errors import StaleError, UsageError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.check import check
from vlpipe.manifests.writer import write_manifest
from vlpipe.pipeline import manifest as command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4), "red").save(tmp_path / name)
    path = tmp_path / "pets.csv"
    path.write_text("image,caption,split\na.png,a cat,train\na.png,a red cat,train\nb.png,a dog,test\n")
    return path


def test_from_table_says_what_it_made(table: Path, tmp_path: Path) -> None:
    result = run("from-table", table, "--out", tmp_path / "m")
    assert result.exit_code == 0
    digest = json.loads(run("from-table", table, "--out", tmp_path / "m", "--json").stdout)["digest"]
    assert result.stdout == (
        f"pets: 2 images, 3 texts (test 1, train 1), digest {digest[:12]}, in {tmp_path / 'm'}\n"
    )
    assert result.stderr == ""


def test_missing_images_are_a_named_partial_result(table: Path, tmp_path: Path) -> None:
    (tmp_path / "b.png").unlink()
    result = run("from-table", table, "--out", tmp_path / "m", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["missing_images"] == 1
    assert "warning: 1 of 2 image files are not under" in result.stderr
    assert "b.png" in result.stderr
    (tmp_path / "a.png").unlink()
    result = run("from-table", table, "--out", tmp_path / "m")
    assert isinstance(result.exception, VlpipeError)
    assert "2 of 2 image files" in str(result.exception)
    assert "--image-root" in str(result.exception)


@pytest.mark.parametrize("arguments", [[], ["TABLE", "--texts", "x.csv"]])
def test_from_table_needs_one_form(table: Path, tmp_path: Path, arguments: Sequence[str]) -> None:
    given = [table if argument == "TABLE" else argument for argument in arguments]
    assert isinstance(run("from-table", *given, "--out", tmp_path / "m").exception, UsageError)


def test_notes_go_to_stderr(table: Path, tmp_path: Path) -> None:
    table.write_text("image,caption,width\na.png,a cat,4\nb.png,,4\n")
    result = run("from-table", table, "--out", tmp_path / "m", "--drop-blank")
    assert "note: 1 blank texts were left out" in result.stderr
    assert "that were not read: width" in result.stderr
    assert "1 texts" in result.stdout


def test_build_from_the_shelf(tmp_path: Path) -> None:
    (tmp_path / "set" / "images").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "set" / "images" / "a.jpg")
    (tmp_path / "set" / "captions.jsonl").write_text('{"image": "a.jpg", "split": "val", "captions": ["x"]}\n')
    result = run("build", "flickr8k", "--root", tmp_path / "set", "--out", tmp_path / "m", "--json")
    assert json.loads(result.stdout)["splits"]["images"] == {"val": 1}
    wrong = run("build", "flickr9k", "--root", tmp_path, "--out", tmp_path / "n").exception
    assert "did you mean 'flickr8k'" in str(wrong)
    other = run(
        "build", "flickr8k", "--root", tmp_path / "set", "--out", tmp_path / "m", "--set", "mnist=1"
    ).exception
    assert "no setting is named 'mnist'" in str(other)


def test_other_settings_are_refused_before_anything_is_read(table: Path, tmp_path: Path) -> None:
    run("from-table", table, "--out", tmp_path / "m")
    with pytest.raises(VlpipeError, match=r"holds 'pets' built with \{\}, asked is 'flickr8k'.*--overwrite"):
        build("flickr8k", tmp_path / "nowhere", tmp_path / "m")


def test_check_of_a_good_manifest(table: Path, tmp_path: Path) -> None:
    run("from-table", table, "--out", tmp_path / "m")
    result = run("check", tmp_path / "m", "--images", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    del found["digest"]
    assert found == {
        "images": 2,
        "texts": 3,
        "missing_images": 0,
        "unreadable_images": 0,
        "split_overlaps": 0,
        "captions_per_image_min": 1,
        "captions_per_image_median": 1.5,
        "captions_per_image_max": 2,
        "repeated_texts": 0,
        "longest_text_characters": len("a red cat"),
        "errors": [],
    }
    assert "captions_per_image_median  1.5\n" in run("check", tmp_path / "m").stdout


def image(name: str, path: str, split: str | None = "train") -> dict[str, Any]:
    return {"image_id": name, "path": path, "split": split}


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    for name in ("good.png", "cut.png", "html.jpg", "empty.jpg"):
        Image.new("RGB", (40, 40), "blue").save(tmp_path / name)
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    (tmp_path / "html.jpg").write_text("<html>")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    names = ("good.png", "cut.png", "html.jpg", "empty.jpg", "folder.jpg", "none.jpg")
    images = [image(name, name) for name in names] + [
        image("leak", "good.png", "test"),
        image("z", "good.png", None),
    ]
    texts = [
        {"text_id": "1", "text": "same", "image_id": "leak", "role": "caption", "split": "test"},
        {"text_id": "2", "text": "same", "image_id": "cut.png", "role": "caption", "split": "val"},
        {"text_id": "3", "text": "ünï", "role": "prompt", "split": "test"},
        {"text_id": "4", "text": "same", "image_id": "z", "role": "phrase", "split": "test"},
    ]
    manifest = write_manifest(
        tmp_path / "m", name="n", source="s", licence="l", image_root=tmp_path, images=images, texts=texts
    )
    report = check(manifest, every_image=True)
    assert report.numbers == {
        "images": 8,
        "texts": 4,
        "missing_images": 2,
        "unreadable_images": 3,
        "split_overlaps": 2,
        "captions_per_image_min": 0,
        "captions_per_image_median": 0,
        "captions_per_image_max": 1,
        "repeated_texts": 2,
        "longest_text_characters": 4,
    }
    assert [error.partition(": ")[2] for error in report.errors] == [
        "folder.jpg, none.jpg",
        "cut.png, html.jpg, empty.jpg",
        "cut.png, good.png",
    ]
    result = run("check", tmp_path / "m")
    assert isinstance(result.exception, VlpipeError)
    assert result.exception.exit_code == 1
    assert "2 image files are not under" in str(result.exception)
    assert "error: 2 images are in two splits: cut.png, good.png" in result.stderr


def test_check_of_an_edited_manifest_and_of_none(table: Path, tmp_path: Path) -> None:
    run("from-table", table, "--out", tmp_path / "m")
    path = tmp_path / "m" / "manifest.toml"
    path.write_text(path.read_text().replace('digest = "', 'digest = "0'))
    assert isinstance(run("check", tmp_path / "m").exception, StaleError)
    assert "vlpipe manifest build" in str(run("check", tmp_path / "n").exception)


def test_check_of_one_side(tmp_path: Path) -> None:
    described: dict[str, Any] = {"name": "n", "source": "s", "licence": "l", "image_root": tmp_path}
    prompt = {"text_id": "1", "text": "x", "role": "prompt"}
    only_texts = check(write_manifest(tmp_path / "t", images=[], texts=[prompt], **described))
    assert only_texts.errors == []
    assert only_texts.numbers["images"] == 0
    only_images = check(write_manifest(tmp_path / "i", images=[image("a", "a")], texts=[], **described))
    assert only_images.numbers["missing_images"] == 1
    assert only_images.numbers["captions_per_image_max"] == 0


def test_photos_that_were_asked_to_be_kept_without_files_are_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "images").mkdir(parents=True)
    line = {"image": "a.jpg", "split": "train", "captions": ["A dog."]}
    (root / "captions.jsonl").write_text(json.dumps(line))
    refused = run("build", "flickr8k", "--root", root, "--out", tmp_path / "m")
    assert refused.exit_code == 1
    assert "or --set 'absent=\"leave_out\"' for the rows of those that are there" in str(refused.exception)
    kept = run("build", "flickr8k", "--root", root, "--out", tmp_path / "m", "--set", 'absent="keep"')
    assert kept.exit_code == 0, kept.exception
    assert "warning: 1 of 1 image files are not under" in kept.stderr
    (root / "images").rmdir()
    assert (
        run("build", "flickr8k", "--root", root, "--out", tmp_path / "m", "--set", 'absent="keep"').exit_code == 0
    )
    assert "it has no images" in str(run("build", "flickr8k", "--root", root, "--out", tmp_path / "n").exception)
