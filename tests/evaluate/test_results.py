from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlpipe.evaluate.bootstrap import Spread
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.results import Entry, Provenance, append, by_run, latest, over_seeds, read
from vlpipe.evaluate.saved import Saved, read_rows, write_rows
from vlpipe.evaluate.tables import caption, markdown, print_table
from vlpipe.foundation.errors import VlpipeError


def entry(run: str = "tpc-1", metric: str = "i2t_recall@1", value: float = 0.5, **other: Any) -> Entry:
    made = {"evaluation": "e", "kind": "tpc", "config": {"seed": 0, "lr": 0.1}, "sources": {}, "fingerprints": "f"}
    made |= {"but_seeds": "b", "code": 1, "split_rule": "column", "content": {"image": "c"}}
    made |= {"manifest": "m", "options": {"ks": [1]}, "bootstrap": {"level": 0.95}} | other
    return Entry(
        run=run,
        task="retrieval",
        split="test",
        metric=metric,
        value=value,
        interval=[value - 0.1, value + 0.1],
        rows=10,
        provenance=Provenance(**made),
        version="1",
        commit=None,
        time="2026-01-01T00:00:00+00:00",
    )


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    ledger = tmp_path / "runs" / "results.jsonl"
    assert read(ledger) == []
    append(ledger, [entry(), entry(value=0.25)])
    append(ledger, [entry("ridge-ü")])
    assert read(ledger) == [entry(), entry(value=0.25), entry("ridge-ü")]


def test_the_latest_of_each_key_counts() -> None:
    other = entry(value=0.9, options={"ks": [2]})
    assert latest([entry(value=0.1), other, entry(value=0.2)]) == [entry(value=0.2), other]
    assert len(latest([entry(), entry("x"), entry(metric="rank_std"), entry(manifest="n")])) == 4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"run": "a"}', "task: Field required"),
        ("not json", "Invalid JSON"),
        ("", "Invalid JSON"),
        (json.dumps(entry().model_dump() | {"value": "0.5"}), "value: Input should be a valid number"),
        (json.dumps(entry().model_dump() | {"value": float("nan")}), "value: Input should be a finite number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    ledger = tmp_path / "results.jsonl"
    append(ledger, [entry()])
    with ledger.open("a") as file:
        file.write(line + "\n")
    append(ledger, [entry()])
    with pytest.raises(VlpipeError, match=f"line 2 is not a result .*{why}"):
        read(ledger)


def torn(ledger: Path, bytes_kept: int) -> int:
    """A second entry whose writer was killed; returns how long the whole line is."""
    append(ledger, [entry("tpc-ü"), entry("tpc-ü", value=0.1)])
    whole = ledger.read_bytes()
    start = whole.index(b"\n") + 1
    ledger.write_bytes(whole[: start + bytes_kept])
    return len(whole) - start


@pytest.mark.parametrize("kept", [1, 13, 14, 100, -2])  # 13: inside the two bytes of the name's last letter
def test_a_torn_last_line_is_told_and_dropped(
    tmp_path: Path, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "results.jsonl"
    kept = kept if kept > 0 else torn(tmp_path / "other.jsonl", 1) + kept
    torn(ledger, kept)
    assert read(ledger) == [entry("tpc-ü")]
    warning = f"warning: {ledger} line 2 is torn"
    assert capsys.readouterr().err.startswith(warning)
    append(ledger, [entry(value=0.2)])
    assert read(ledger) == [entry("tpc-ü"), entry(value=0.2)]
    assert capsys.readouterr().err == ""


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path: Path) -> None:
    ledger = tmp_path / "results.jsonl"
    length = torn(ledger, 1)
    ledger.unlink()
    torn(ledger, length - 1)
    assert len(read(ledger)) == 2
    append(ledger, [entry(value=0.2)])
    assert len(read(ledger)) == 3


def test_a_last_line_that_is_json_and_no_result_is_named(tmp_path: Path) -> None:
    ledger = tmp_path / "results.jsonl"
    append(ledger, [entry()])
    ledger.write_bytes(ledger.read_bytes() + b'{"run": "a"}')
    for _ in range(2):
        with pytest.raises(VlpipeError, match=r"line 2 is not a result .*mend or delete this line"):
            read(ledger)
        append(ledger, [entry()])


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85", "\r", "\n"])
def test_no_character_inside_an_entry_ends_its_line(tmp_path: Path, odd: str) -> None:
    ledger = tmp_path / "results.jsonl"
    entries = [entry(f"a{odd}b"), entry()]
    append(ledger, entries)
    assert read(ledger) == entries


def test_two_contents_are_not_two_seeds() -> None:
    entries = [entry("tpc-0"), entry("tpc-1"), entry("tpc-2", content={"image": "d"})]
    assert [line.name for line in over_seeds(entries)] == ["tpc, 2 seeds", "tpc-2"]


def test_captions_say_what_the_entries_say() -> None:
    retrieval = "Recall in percent, ranks from 1, ties count against the query"
    ninety = entry("b", bootstrap={"level": 0.9})
    assert caption(by_run([entry()])) == f"{retrieval}; 95 % bootstrap intervals over images."
    assert caption(by_run([ninety, entry()])) == f"{retrieval}; 90 % and 95 % bootstrap intervals over images."
    none = entry().model_copy(update={"interval": None})
    assert caption(by_run([none])) == f"{retrieval}."
    assert caption(over_seeds([entry()])) == f"{retrieval}; ± sample standard deviation over seeds."
    other = ninety.model_copy(update={"task": "mylab:Task"})
    assert caption(by_run([other])) == "90 % bootstrap intervals over images."
    assert markdown(by_run([none.model_copy(update={"task": "mylab:Task"})])).endswith("|")


def test_lines_of_runs_and_over_seeds() -> None:
    entries = [
        entry(f"tpc-{seed}", metric, value + seed / 10, config={"seed": seed, "lr": 0.1})
        for seed in (0, 1, 2)
        for metric, value in (("i2t_recall@1", 0.2), ("rank_std", 3.0))
    ]
    entries.append(entry("tpc-9", but_seeds="other"))
    assert [line.name for line in by_run(entries)] == ["tpc-0", "tpc-1", "tpc-2", "tpc-9"]
    three, alone = over_seeds(entries)
    assert three.name == "tpc, 3 seeds"
    assert three.numbers["i2t_recall@1"] == Spread(pytest.approx(0.3), pytest.approx(0.1), 3)
    assert alone.numbers == {"i2t_recall@1": Spread(0.5, None, 1)}


def test_tables_show_percent_and_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    lines = by_run([entry(), entry(metric="rank_std", value=3.25), entry(metric="t2i_median_rank", value=7.0)])
    text = markdown(lines)
    assert "| run | task | split | I→T R@1 | T→I median rank | RankStd |" in text
    assert "| tpc-1 | retrieval | test | 50.0 (40.0 to 60.0) | 7.0 (6.9 to 7.1) | 3.2 (3.1 to 3.4) |" in text
    lines.append(by_run([entry(metric="i2t_recall@3")])[0])
    assert "i2t_recall@3" not in markdown(lines)
    assert "i2t_recall@3" in markdown(lines, every=True)
    for shown in (lines, lines * 2):  # side by side, and a line each
        print_table(shown)
        printed = capsys.readouterr().out
        assert "50.0" in printed
        assert "40.0 to 60.0" in printed
    assert "± 0.0 (n = 2)" in markdown(over_seeds([entry(), entry("tpc-2", config={"seed": 1, "lr": 0.1})]))


def test_settings_in_which_runs_of_one_kind_differ_are_told() -> None:
    """Of two jam runs the objective; a tpc run, whose settings are others, differs from them by its name alone."""
    parts: list[dict[str, Any]] = [
        {"kind": "jam", "config": {"seed": 1, "objective": name, "lr": 0.1}, "but_seeds": name}
        for name in ("con", "spread")
    ]
    found = [entry("jam-1", **parts[0]), entry("jam-2", **parts[1]), entry("tpc-1", config={"seed": 0, "lr": 0.5})]
    head, _, *lines = markdown(over_seeds(found)).splitlines()[:5]
    assert "| jam objective |" in head
    assert " lr " not in head
    assert [line.split(" | ")[3] for line in lines] == ['"con"', '"spread"', ""]


def test_numbers_of_an_unknown_task_are_shown_whole() -> None:
    odd = entry(metric="depth").model_copy(update={"task": "mylab:Task"})
    assert "| depth |" in markdown(by_run([odd]))


def test_rows_survive_storage(tmp_path: Path) -> None:
    rows = Rows(
        np.array(["a", "b,\n", "ü"], dtype=object),
        np.array([2, 0, 2]),
        {"rank": np.array([1, 5, 2]), "score": np.array([0.5, 1e-30, 2.0])},
    )
    write_rows(tmp_path / "rows.parquet", Saved(rows, {"task": "t"}, ["ü, one"]), ["i0", "i1", "i2"])
    saved = read_rows(tmp_path / "rows.parquet")
    assert (saved.identity, saved.notes) == ({"task": "t"}, ["ü, one"])
    found = saved.rows
    assert found.query_ids.tolist() == ["a", "b,\n", "ü"]
    assert found.image.tolist() == [0, 1, 0]
    assert {name: v.tolist() for name, v in found.values.items()} == {
        name: v.tolist() for name, v in rows.values.items()
    }


def test_rows_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(VlpipeError, match="delete it and evaluate again"):
        read_rows(tmp_path / "rows.parquet")
