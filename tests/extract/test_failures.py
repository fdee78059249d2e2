"""The list of failed rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vlpipe.extract.failures import FailureFile


def record(name: str, reason: str = "r") -> dict[str, str]:
    return {"id": name, "text": "é\u2028 in two\nlines", "reason": reason}


@pytest.fixture
def listed(tmp_path: Path) -> FailureFile:
    return FailureFile(tmp_path / "s.zarr")


def test_no_file_no_look_up(listed: FailureFile) -> None:
    listed.keep(lambda ids: pytest.fail("nothing is listed"))
    listed.add([])
    assert not listed.path.exists()
    assert listed.read() == []


def test_what_has_not_failed_any_more_is_dropped(listed: FailureFile) -> None:
    listed.add([record(name) for name in "abc"])
    listed.keep(lambda ids: {*ids} - {"b"})
    assert listed.read() == [record("a"), record("c")]
    before = listed.path.stat()
    listed.keep(set)
    assert listed.path.stat() == before
    listed.keep(lambda ids: set())
    assert not listed.path.exists()


def test_the_commonest_reason(listed: FailureFile) -> None:
    assert listed.commonest() is None
    listed.add(
        [record("a", "gone"), record("b", "cut"), record("c", "cut"), record("d", "gone"), record("e", "x")]
    )
    assert listed.commonest() == ("gone", 2)
    listed.keep(lambda ids: {*ids} - {"a"})
    assert listed.commonest() == ("cut", 2)
    with listed.path.open("a") as file:  # somebody's own
        file.write('{"id": "f", "reason": ["cut"]}\n')
    assert listed.commonest() == ("cut", 2)


def test_of_two_reasons_the_later_is_kept(listed: FailureFile) -> None:
    listed.add([record("a", "old"), record("b")])
    listed.add([record("a", "new")])
    listed.keep(set)
    assert listed.read() == [record("a", "new"), record("b")]


def test_a_line_that_a_kill_cut_short_is_not_there(listed: FailureFile) -> None:
    listed.add([record("a")])
    whole = listed.path.stat().st_size
    for size in range(2 * whole):
        listed.path.unlink()
        listed.add([record("a")])
        listed.add([record("b")])
        os.truncate(listed.path, size)
        left = [record("a")] if size >= whole else []
        assert listed.read() == left
        listed.add([record("c")])
        assert listed.read() == [*left, record("c")]


def test_many_blocks_of_failures_cost_no_more_than_one(
    listed: FailureFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed.add([record("a")])
    monkeypatch.setattr(listed, "read", lambda: pytest.fail("read again"))
    listed.add([record("b")])
