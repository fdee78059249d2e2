from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.manifests.build import build
from vlpipe.manifests.datasets.mad import SPLITS, VALUES, Mad, MadConfig, caption, draw
from vlpipe.manifests.digits import shipped_digits
from vlpipe.manifests.manifest import Manifest

SMALL: dict[str, Any] = {"digits": 12, "images_per_digit": 2}


@pytest.fixture(scope="module")
def mad(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return build("mad", None, tmp_path_factory.mktemp("mad"), SMALL)


def drawn(**settings: Any) -> list[Any]:
    config = MadConfig(**{**SMALL, **settings})
    return list(draw(config, "train", shipped_digits()["train"].first(config.digits)))


def test_the_paper_counts_26_values_of_six_attributes() -> None:
    assert len(VALUES) == 6
    assert sum(map(len, VALUES.values())) == 26
    assert len({value for values in VALUES.values() for value in values}) == 26


def test_the_manifest_holds_what_was_asked_for(mad: Manifest) -> None:
    images, texts = mad.table("image").to_pylist(), mad.table("text").to_pylist()
    assert Counter(row["split"] for row in images) == dict.fromkeys(SPLITS, 24)
    assert len(texts) == 5 * len(images)
    assert {row["role"] for row in texts} == {"caption"}
    first = images[3]
    assert first["image_id"] == "mad-train-00001-01"
    assert first["path"] == "drawing-1/train/00001-01.png"
    attributes = dict(first["attributes"])
    assert attributes.keys() == VALUES.keys()
    assert all(attributes[name] in VALUES[name] for name in VALUES)
    assert first["label"] == attributes["digit"] == "1"


def test_prompts_are_the_values_and_belong_to_no_image(mad: Manifest, tmp_path: Path) -> None:
    asked = build("mad", None, tmp_path, SMALL | {"prompts": True})
    texts = asked.table("text").to_pylist()
    prompts = [row for row in texts if row["role"] == "prompt"]
    assert [row for row in texts if row["role"] != "prompt"] == mad.table("text").to_pylist()
    assert [row["text"] for row in prompts] == [value for values in VALUES.values() for value in values]
    assert all(row["image_id"] is None for row in prompts)
    told = [dict(row["attributes"]) for row in prompts]
    assert all(row["class"] in VALUES[row["attribute"]] for row in told)


def test_pictures_are_rgb_files_of_their_colour(mad: Manifest) -> None:
    channels = {
        "gray": "RGB",
        "red": "R",
        "green": "G",
        "blue": "B",
        "cyan": "GB",
        "magenta": "RB",
        "yellow": "RG",
    }
    for row in mad.table("image").to_pylist():
        with Image.open(mad.image_root / row["path"]) as picture:
            assert (picture.size, picture.mode, picture.format) == ((28, 28), "RGB", "PNG")
            pixels = np.asarray(picture)
        lit = {name for name, channel in zip("RGB", pixels.transpose(2, 0, 1), strict=True) if channel.any()}
        assert lit == set(channels[dict(row["attributes"])["colour"]])


def test_captions_name_the_digit_and_three_others_of_their_image(mad: Manifest) -> None:
    attributes = {row["image_id"]: dict(row["attributes"]) for row in mad.table("image").to_pylist()}
    kind = {value: name for name, values in VALUES.items() for value in values}
    places: Counter[int] = Counter()
    for row in mad.table("text").to_pylist():
        words = row["text"].split("-")
        own = attributes[row["image_id"]]
        assert len(words) == len({kind[word] for word in words}) == 4
        assert all(own[kind[word]] == word for word in words)
        assert own["digit"] in words
        assert row["text_id"].rpartition("-c")[0] == row["image_id"]
        places[words.index(own["digit"])] += 1
    assert min(places.values()) > 60  # of 360 captions, in any of four places


def test_every_attribute_is_drawn_evenly_and_on_its_own() -> None:
    rows = [_attributes for _attributes, *_ in _all_words(MadConfig(images_per_digit=50, digits=200))]
    for name, values in VALUES.items():
        counts = Counter(row[name] for row in rows)
        for value in values:
            assert counts[value] / len(rows) == pytest.approx(1 / len(values), abs=0.02)
    both = Counter((row["swelling"], row["fracture"]) for row in rows)
    assert all(count / len(rows) == pytest.approx(0.25, abs=0.02) for count in both.values())


def _all_words(config: MadConfig) -> list[tuple[dict[str, str], list[str]]]:
    from vlpipe.manifests.datasets.mad import _words

    digits = shipped_digits()["train"].first(config.digits)
    return [(attributes, captions) for _, attributes, captions in _words(config, "train", digits)]


def test_a_share_of_captions_names_fewer() -> None:
    rows = _all_words(MadConfig(images_per_digit=40, digits=100, partial=0.15))
    lengths = Counter(len(text.split("-")) for _, captions in rows for text in captions)
    assert set(lengths) == {1, 2, 3, 4}
    assert 1 - lengths[4] / sum(lengths.values()) == pytest.approx(0.15, abs=0.01)
    assert {len(text.split("-")) for _, captions in _all_words(MadConfig(**SMALL)) for text in captions} == {4}


def test_caption_order_is_random() -> None:
    attributes = {name: values[0] for name, values in VALUES.items()}
    rng = np.random.default_rng(0)
    texts = Counter(caption(attributes, 0.0, rng) for _ in range(5000))
    assert len(texts) == 240  # 10 choices of three out of five, 24 orders
    assert "thickening-0-swelling-large" in texts


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    one, again, other = drawn(seed=3), drawn(seed=3), drawn(seed=4)
    for a, b in zip(one, again, strict=True):
        assert (a.id, a.attributes, a.captions) == (b.id, b.attributes, b.captions)
        assert a.picture.tobytes() == b.picture.tobytes()
    assert [a.captions for a in one] != [c.captions for c in other]
    assert any(a.picture.tobytes() != c.picture.tobytes() for a, c in zip(one, other, strict=True))


def test_building_again_gives_the_same_manifest(mad: Manifest, tmp_path: Path) -> None:
    again = build("mad", None, tmp_path / "again", SMALL)
    assert again.digest == mad.digest
    row = mad.table("image").to_pylist()[0]
    assert (mad.image_root / row["path"]).read_bytes() == (again.image_root / row["path"]).read_bytes()
    assert build("mad", None, tmp_path / "other", {**SMALL, "seed": 1}).digest != mad.digest


def test_a_smaller_set_is_the_beginning_of_a_larger_one() -> None:
    small, large = drawn(digits=3), drawn(digits=5)
    assert [d.id for d in large[:6]] == [d.id for d in small]
    assert all((a.picture == b.picture).all() for a, b in zip(small, large, strict=False))


def test_copies_of_a_digit_differ() -> None:
    copies = drawn(digits=1, images_per_digit=6)
    assert all(a.picture.tobytes() != b.picture.tobytes() for a, b in pairwise(copies))
    assert {d.attributes["digit"] for d in copies} == {"0"}


def test_splits_share_no_digit_whatever_the_seed(tmp_path: Path) -> None:
    pictures = [
        {picture.tobytes() for picture in digits.pictures}
        for seed in (0, 1)
        for digits in Mad(MadConfig(seed=seed), None, tmp_path).digits.values()
    ]
    assert pictures[:3] == pictures[3:]
    assert len(set.union(*pictures[:3])) == sum(map(len, pictures[:3])) == 5000


def test_mnist_is_read_where_it_is_asked_for(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "mnist"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/mnist")
    for mad in (
        Mad(MadConfig(mnist=str(folder)), None, tmp_path),
        Mad(MadConfig(digits=20), folder, tmp_path),
    ):
        assert mad.digits["train"].labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert {len(digits) for digits in mad.digits.values()} == {20}


def test_bad_settings_and_folders_are_refused(tmp_path: Path) -> None:
    for settings in ({"images_per_digit": 0}, {"partial": 1.5}, {"captions": 0}, {"digits": 0}, {"seed": -1}):
        with pytest.raises(UsageError, match=next(iter(settings))):
            build("mad", None, tmp_path / "x", settings)
    with pytest.raises(VlpipeError, match="has no train-images-idx3-ubyte"):
        build("mad", None, tmp_path / "x", {"mnist": str(tmp_path)})
    assert not (tmp_path / "x" / "manifest.toml").exists()
