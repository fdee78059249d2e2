from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.datasets.unrelated import Unrelated, UnrelatedConfig


def made(folder: Path, **settings: object) -> Unrelated:
    return Unrelated(UnrelatedConfig.model_validate(settings), None, folder)


def test_noise_is_white_and_seeded(tmp_path: Path) -> None:
    rows = list(made(tmp_path, count=3, size=64).images())
    pictures = [np.asarray(Image.open(tmp_path / row["path"])).astype(float) for row in rows]
    assert len({row["image_id"] for row in rows}) == 3
    for picture in pictures:
        assert picture.shape == (64, 64, 3)
        assert picture.mean() == pytest.approx(127.5, abs=3)
        assert picture.std() == pytest.approx(73.9, abs=2)  # of 0 to 255, evenly
        flat = picture - picture.mean()
        assert (
            abs((flat[:, 1:] * flat[:, :-1]).mean()) < 0.05 * flat.var()
        )  # neighbours know nothing of each other
    assert abs(np.corrcoef(pictures[0].ravel(), pictures[1].ravel())[0, 1]) < 0.05
    again = list(made(tmp_path / "again", count=3, size=64).images())
    assert [(tmp_path / r["path"]).read_bytes() for r in rows] == [
        (tmp_path / "again" / r["path"]).read_bytes() for r in again
    ]


def test_sentences_are_all_different_and_belong_to_no_image(tmp_path: Path) -> None:
    rows = list(made(tmp_path, count=4096).texts())
    assert len({row["text"] for row in rows}) == 4096
    assert all("image_id" not in row and row["role"] == "caption" for row in rows)
    few = [row["text"] for row in made(tmp_path, count=10).texts()]
    assert few != [row["text"] for row in made(tmp_path, count=10, seed=1).texts()]
    with pytest.raises(VlpipeError, match=r"4096 different texts .* expected 4097"):
        made(tmp_path, count=4097)


def test_lines_of_a_book(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    lines = ["In my younger and  more vulnerable years", "", "too short", "a line that comes twice"] * 2
    book.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    texts = [row["text"] for row in made(tmp_path, count=2, book=str(book)).texts()]
    assert texts == ["In my younger and more vulnerable years", "a line that comes twice"]
    with pytest.raises(VlpipeError, match=r"cannot be read"):
        made(tmp_path, book=str(tmp_path / "gone.txt"))
