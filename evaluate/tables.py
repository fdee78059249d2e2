"""Results as a table on a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from vlpipe.evaluate.bootstrap import Spread
from vlpipe.evaluate.contracts import TASKS, Task
from vlpipe.evaluate.results import Entry, Line, Provenance, by_run, intervals_of
from vlpipe.foundation import console
from vlpipe.foundation.errors import UnknownNameError, UsageError
from vlpipe.foundation.files import canonical_json

if TYPE_CHECKING:
    from vlpipe.evaluate.answers import Evaluation

Number = Entry | Spread
LEFT_OUT = "left out"
SIDE_BY_SIDE = 3  # runs that fit a terminal of 80 to 100 characters


def is_share(metric: str) -> bool:
    """Whether a metric is kept as a share in [0, 1] and shown in percent."""
    return any(word in metric for word in ("recall", "accuracy", "drop", "rsms", "_score"))


def columns_of(
    lines: Sequence[Line], every: bool = False, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Metrics to show, with titles: the tasks' headlines, or every number that the lines hold.

    `known` are titles of numbers that are in no headline.
    """
    titles: dict[str, str] = {}
    for task in _tasks(lines):
        titles |= task.headline
    held = dict.fromkeys(metric for line in lines for metric in line.numbers)
    if every or not any(metric in titles for metric in held):
        titles = {**(known or {}), **titles}
        return {metric: titles.get(metric, metric) for metric in held}
    return {metric: title for metric, title in titles.items() if metric in held}


def _tasks(lines: Sequence[Line]) -> list[type[Task]]:
    """The tasks of the lines, each once."""
    found = [_task(name) for name in dict.fromkeys(line.task for line in lines)]
    return [task for task in found if task is not None]


def _task(name: str) -> type[Task] | None:
    """None for a task of another version or from outside that is not here."""
    try:
        return TASKS.load(name)
    except (UnknownNameError, UsageError):
        return None


def shown(metric: str, number: Number | None) -> tuple[str, str]:
    """A number and its uncertainty as text: '55.2' and '50.8 to 59.6', or '± 0.4 (n = 3)'.

    With one decimal; with three where it is no share and below 1, as coefficients are.
    """
    if number is None:
        return "", ""
    value = number.mean if isinstance(number, Spread) else number.value
    scale, digits = (100.0, 1) if is_share(metric) else (1.0, 3 if abs(value) < 1 else 1)
    main = f"{value * scale:.{digits}f}"
    if isinstance(number, Spread):
        std = number.std
        return main, "n = 1" if std is None else f"± {std * scale:.{digits}f} (n = {number.n})"
    if number.interval is None:
        return main, ""
    low, high = number.interval
    return main, f"{low * scale:.{digits}f} to {high * scale:.{digits}f}"


def caption(lines: Sequence[Line]) -> str:
    """What the numbers and what stands beside them are: the tasks' legends, then what the entries say."""
    numbers = [number for line in lines for number in line.numbers.values()]
    parts = [task.legend for task in _tasks(lines) if task.legend]
    if any(isinstance(number, Spread) for number in numbers):
        parts.append("± sample standard deviation over seeds")
    entries = [number for number in numbers if isinstance(number, Entry) and number.interval is not None]
    if entries:
        parts.append(f"{intervals_of(entries)}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


def marks(lines: Sequence[Line]) -> list[dict[str, str]]:
    """By line, by title: the options, heads' settings, split rules and manifests in which lines differ, and rows
    left out.
    """
    told = [_told(line.made) for line in lines]
    values: dict[str, set[str]] = {}
    for one in told:
        for title, value in one.items():
            values.setdefault(title, set()).add(value)
    titles = [title for title, found in values.items() if len(found) > 1 or title == LEFT_OUT]
    return [{title: one.get(title, "") for title in titles} for one in told]


def _told(made: Provenance) -> dict[str, str]:
    told = {name: canonical_json(value) for name, value in made.options.items()}
    told |= {f"{made.kind} {name}": canonical_json(value) for name, value in made.config.items() if name != "seed"}
    told |= {"split rule": made.split_rule, "manifest": made.manifest[:12]}
    left = [f"{number} {what}" for what, number in made.left_out.items() if number]
    return told | ({LEFT_OUT: ", ".join(left)} if left else {})


def _evaluated(lines: Sequence[Line]) -> list[str]:
    """By line: task and split, and under them what tells it from the others."""
    return [
        "\n".join([line.task, line.split, *(f"{title}: {value}" for title, value in own.items() if value)])
        for line, own in zip(lines, marks(lines), strict=True)
    ]


def print_table(lines: Sequence[Line], every: bool = False, known: Mapping[str, str] | None = None) -> None:
    """The table on stdout: a few runs side by side, of many a line each; `known` as in `columns_of`."""
    titles = columns_of(lines, every, known)
    fill = _side_by_side if len(lines) <= SIDE_BY_SIDE else _line_by_line
    table = Table(caption=caption(lines), caption_justify="left")
    fill(table, lines, titles)
    console.print_table(table)


def print_evaluations(made: Sequence[Evaluation], every: bool = False) -> None:
    """The table of evaluations of one task, with the titles that their rows tell."""
    lines = by_run([entry for evaluation in made for entry in evaluation.entries.values()])
    print_table(lines, every, made[0].made_by.titles([evaluation.rows for evaluation in made]))


def _side_by_side(table: Table, lines: Sequence[Line], titles: Mapping[str, str]) -> None:
    table.add_column("")
    for line, evaluated in zip(lines, _evaluated(lines), strict=True):
        table.add_column(f"{line.name}\n{evaluated}", justify="right")
    for metric, title in titles.items():
        table.add_row(title, *(_in_line(*shown(metric, line.numbers.get(metric))) for line in lines))


def _line_by_line(table: Table, lines: Sequence[Line], titles: Mapping[str, str]) -> None:
    """Each number over its uncertainty."""
    table.add_column("run", overflow="fold")
    table.add_column("task, split")
    for title in titles.values():
        table.add_column(title, justify="right")
    for line, evaluated in zip(lines, _evaluated(lines), strict=True):
        cells = ["\n[dim]".join(filter(None, shown(m, line.numbers.get(m)))) for m in titles]
        table.add_row(line.name, evaluated, *cells)


def markdown(lines: Sequence[Line], every: bool = False) -> str:
    """The same table in Markdown."""
    titles, beside = columns_of(lines, every), marks(lines)
    head = ["run", "task", "split", *(beside[0] if beside else ())]
    rule = ["---"] * len(head) + ["---:"] * len(titles)
    text = ["| " + " | ".join(row) + " |" for row in ([*head, *titles.values()], rule)]
    for line, own in zip(lines, beside, strict=True):
        cells = [_in_line(*shown(m, line.numbers.get(m))) for m in titles]
        text.append("| " + " | ".join([line.name, line.task, line.split, *own.values(), *cells]) + " |")
    return "\n".join([*text, "", caption(lines)]).rstrip()


def _in_line(value: str, beside: str) -> str:
    if not beside:
        return value
    return f"{value} {beside}" if beside.startswith("±") else f"{value} ({beside})"
