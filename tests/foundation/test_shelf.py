from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.foundation.shelf import Shelf, class_name


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    folder = tmp_path / "hats"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "bowler.py").write_text("class Bowler:\n    pass\n")
    (folder / "top_hat.py").write_text("raise RuntimeError('imported')\n")
    (folder / "_lining.py").write_text("")
    (tmp_path / "outside.py").write_text("class Mine:\n    pass\nnumber = 3\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("hats", "hats.bowler", "outside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Shelf("hats", "hat")


def test_names_are_the_files_and_import_none(shelf: Shelf) -> None:
    assert shelf.names() == ["bowler", "top_hat"]  # the file that raises was not imported


def test_a_file_holds_the_class_of_its_name(shelf: Shelf) -> None:
    assert shelf.load("bowler").__name__ == "Bowler"
    assert [class_name(n) for n in ("open_clip", "flickr8k", "hf")] == ["OpenClip", "Flickr8k", "Hf"]


def test_an_outside_class_by_its_dotted_name(shelf: Shelf) -> None:
    assert shelf.load("outside:Mine").__name__ == "Mine"


def test_an_unknown_name_names_the_nearest(shelf: Shelf) -> None:
    with pytest.raises(
        UnknownNameError, match=r"no hat is named 'boler'; did you mean 'bowler'\? known: bowler, top_hat"
    ):
        shelf.load("boler")
    assert UnknownNameError.exit_code == 2


@pytest.mark.parametrize("name", ["nowhere:X", "outside:None", "outside:number", ":x", "outside:", "broken:X"])
def test_what_cannot_be_imported_is_told_in_one_line(shelf: Shelf, name: str) -> None:
    with pytest.raises(UsageError, match=r"importable\.module:Class"):
        shelf.load(name)
