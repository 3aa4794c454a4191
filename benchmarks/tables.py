"""What a benchmark gives back, how variants take turns, and how a table is printed."""

from __future__ import annotations

import json
import os
import platform
import resource
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Row = Mapping[str, str | float | int | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that the project set itself a bound for."""

    name: str
    value: float | None
    """None if it could not be measured here."""
    at_least: float
    aim: float
    unit: str = "x"
    less_is_better: bool = False

    def holds(self) -> str:
        """`aim`, `yes` (at least the bound), `NO`, or `-` if there is no value."""
        if self.value is None:
            return "-"
        if self._reaches(self.aim):
            return "aim"
        return "yes" if self._reaches(self.at_least) else "NO"

    def _reaches(self, bound: float) -> bool:
        assert self.value is not None
        return self.value <= bound if self.less_is_better else self.value >= bound


@dataclass(frozen=True, slots=True)
class Table:
    """One benchmark's result. `notes` say what each line of it does."""

    name: str
    title: str
    rows: Sequence[Row]
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = field(default=())

    def text(self) -> str:
        parts = [f"## {self.name}: {self.title}", ""]
        parts += _grid(self.rows)
        if self.figures:
            parts += ["", *_grid([_bounds(figure) for figure in self.figures])]
        if self.notes:
            parts += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(parts)

    def data(self) -> dict[str, Any]:
        figures = [asdict(one) | {"holds": one.holds()} for one in self.figures]
        rows = [dict(row) for row in self.rows]
        return {
            "name": self.name,
            "title": self.title,
            "rows": rows,
            "figures": figures,
            "notes": list(self.notes),
        }


def _bounds(figure: Figure) -> Row:
    sign = "<= " if figure.less_is_better else ""
    return {
        "figure": figure.name,
        "measured": "-" if figure.value is None else f"{shown(figure.value)} {figure.unit}",
        "at least": f"{sign}{shown(figure.at_least)} {figure.unit}",
        "aim": f"{sign}{shown(figure.aim)} {figure.unit}",
        "holds": figure.holds(),
    }


def _grid(rows: Sequence[Row]) -> list[str]:
    """A table of Markdown; every row has the columns of the first."""
    names = list(rows[0])
    lines = [names, *([shown(row[name]) for name in names] for row in rows)]
    columns = range(len(names))
    widths = [max(len(line[i]) for line in lines) for i in columns]
    words = [any(isinstance(row[name], str) for row in rows) for name in names]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cells[i].ljust(widths[i]) if words[i] else cells[i].rjust(widths[i]) for i in columns
        ]
        return f"| {' | '.join(padded)} |"

    head, *body = lines
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return [line(head), rule, *(line(cells) for cells in body)]


def shown(value: object) -> str:
    """A number with about three digits that count; None as a dash."""
    match value:
        case None:
            return "-"
        case float():
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:,.{digits}f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


# --- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one variant."""

    count: int
    seconds: float
    cpu: float
    """Seconds of CPU of this process, all its threads."""
    times: tuple[float, ...] = ()
    """Milliseconds of each unit, where they are measured."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.count * 1e6


class Stopwatch:
    """Wall clock and CPU of this process from its making on."""

    def __init__(self) -> None:
        self._cpu = _cpu()
        self._started = time.perf_counter()

    def trial(self, count: int, times: Sequence[float] = ()) -> Trial:
        return Trial(count, time.perf_counter() - self._started, _cpu() - self._cpu, tuple(times))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


Trials = dict[str, list[Trial]]


async def in_turns(variants: Mapping[str, Callable[[], Awaitable[Trial]]], rounds: int) -> Trials:
    """Run all variants one after the other, and that so many times: A B C A B C ….

    Whatever else the machine does then hits all of them alike.
    """
    found: Trials = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            found[name].append(await variant())
    return found


def rate(trials: Sequence[Trial]) -> float:
    return statistics.median(one.rate for one in trials)


def cpu_us(trials: Sequence[Trial]) -> float:
    return statistics.median(one.cpu_us for one in trials)


def ratio(ours: Sequence[Trial], others: Sequence[Trial]) -> float:
    """How many times as fast ours is: the median over the rounds, each within itself."""
    return statistics.median(a.rate / b.rate for a, b in zip(ours, others, strict=True))


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def machine() -> dict[str, str]:
    """What kind of machine this run was on."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load at start": f"{os.getloadavg()[0]:.1f}",
    }


def summary(tables: Sequence[Table]) -> str:
    """All figures of a run under one another."""
    figures = [figure for table in tables for figure in table.figures]
    return "\n".join(["## All figures", "", *_grid([_bounds(one) for one in figures])])


def written(tables: Sequence[Table], on: Mapping[str, str]) -> str:
    """The whole run as JSON."""
    return json.dumps({"on": dict(on), "tables": [one.data() for one in tables]}, indent=1)
