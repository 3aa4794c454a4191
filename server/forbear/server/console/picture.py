"""The story of one operation as a picture: a time axis with what was sent, and why it waited.

The same moments are laid out twice, and the style sheet shows one of them: along a horizontal axis
where there is room, down a vertical one on a phone. Colours come from classes of `picture.css`
alone, so the picture needs neither style attributes nor scripts. All times are UTC.

A quiet stretch that would push the rest together is drawn shorter, with a break on the axis.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate, groupby, pairwise
from math import inf

from forbear.rules.model import Attempt, AuditEvent, Operation
from forbear.server.console.moments import (
    Decision,
    Line,
    Moments,
    Outcome,
    Request,
    Rule,
    Source,
    Wait,
    joined,
    moments,
)
from forbear.tools.story import TIMES, receipt
from forbear.tools.times import clock_time, rfc3339
from forbear.tools.untrusted import clip

WIDE, NARROW = 960.0, 328.0
"""Widths of the two layouts in their own units: the pixels for which they are made."""

SIZE = 13.0
"""Height of all text, in the same units."""

EMS = 0.6
"""Most that an ordinary letter or digit of a plain sans-serif is wide, on the average of a word."""

_SHAPES = {
    Outcome.OK: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
    Outcome.LIMITED: "M0-7L7 5.5H-7z",
    Outcome.REFUSED: "M-5.5-5.5h11v11h-11z",
    Outcome.BROKEN: "M0-7.5L7.5 0 0 7.5-7.5 0z",
    Outcome.SILENT: "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0z",
    Outcome.UNSENT: "M-5-5L5 5M5-5L-5 5",
    Outcome.OPEN: "M-5.5-6.5h11L-5.5 6.5h11z",
}
_PERSON = "M0-1a3.2 3.2 0 1 0-.01 0zM-6 7a6 6 0 0 1 12 0z"
_LETTERS = dict(zip(Source, "RHLBPDCSQAKMTUO", strict=True))
"""What stands on a wait that is too short for its name."""


def story_svg(
    op: Operation, events: Sequence[AuditEvent], attempts: Sequence[Attempt], now: int
) -> str:
    """The picture as markup for the body of a page: well-formed, inert, without style or script.

    `events` and `attempts` are all of the operation, in their order; `now` is in milliseconds since
    the epoch and counts only while the operation runs. Show it with `picture.css`.
    """
    shown = moments(op, events, attempts, now)
    name = clip(op.label or f"{op.provider}.{op.action}", 80)
    told = f"{op.state}. {receipt(events)}. " + ", ".join(
        f"{line.words} {rfc3339(line.at)}" for line in shown.lines
    )
    layouts = (("wide", WIDE, _wide), ("narrow", NARROW, _narrow))
    drawn = (_svg(kind, width, draw(shown), name, told) for kind, width, draw in layouts)
    return f'<div class="story">{"".join(drawn)}</div>'


def text_width(words: str) -> float:
    """About how wide a text is, rather too much than too little."""
    full = sum(unicodedata.east_asian_width(letter) in "WF" for letter in words)
    return SIZE * (EMS * (len(words) - full) + 1.05 * full)


def fit(words: str, room: float) -> str:
    """The text, or as much of its beginning as there is room for."""
    if text_width(words) <= room:
        return words
    while words and text_width(words) + SIZE > room:
        words = words[:-1]
    return f"{words.rstrip()}…" if words else ""


# --- marks on paper -------------------------------------------------------------------------


@dataclass
class _Sheet:
    """What has been drawn, and how far down it goes."""

    height: float = 0.0
    parts: list[str] = field(default_factory=list[str])

    def text(
        self, x: float, y: float, words: str, look: str = "", anchor: str = "start", room: float = 0
    ) -> None:
        """A text whose middle is at `y`."""
        fitted = fit(words, room) if room else words
        named = f' class="{look}"' if look else ""
        at = f'x="{x:.1f}" y="{y + SIZE * 0.36:.1f}"'
        self.parts.append(f'<text {at}{named} text-anchor="{anchor}">{_inert(fitted)}</text>')
        self.height = max(self.height, y + SIZE)

    def icon(self, x: float, y: float, shape: str, look: str, words: str = "") -> None:
        title = f"<title>{_inert(words)}</title>" if words else ""
        self.parts.append(
            f'<g class="mark {look}" transform="translate({x:.1f} {y:.1f})">{title}'
            f'<path d="{shape}"/></g>'
        )
        self.height = max(self.height, y + SIZE)

    def outcome(self, x: float, y: float, outcome: Outcome, words: str = "") -> None:
        self.icon(x, y, _SHAPES[outcome], f"story-{outcome.name.lower()}", words)

    def stroke(self, path: str, look: str, words: str = "") -> None:
        title = f"<title>{_inert(words)}</title>" if words else ""
        self.parts.append(f'<path class="{look}" d="{path}">{title}</path>')

    def bar(
        self, x: float, y: float, width: float, height: float, source: Source, words: str
    ) -> None:
        self.parts.append(
            f'<rect class="wait story-{source.name.lower()}" x="{x:.1f}" y="{y:.1f}" '
            f'width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}">'
            f"<title>{_inert(words)}</title></rect>"
        )


def _svg(kind: str, width: float, sheet: _Sheet, name: str, told: str) -> str:
    ids = f"story-{kind}-title", f"story-{kind}-desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="story-{kind}" role="img" '
        f'aria-labelledby="{ids[0]} {ids[1]}" font-size="{SIZE:g}" '
        f'viewBox="0 0 {width:g} {sheet.height + 4:.1f}">'
        f'<title id="{ids[0]}">Story of {_inert(name)}</title><desc id="{ids[1]}">{_inert(told)}'
        f"</desc>{''.join(sheet.parts)}</svg>"
    )


def _inert(words: str) -> str:
    """Text that XML can hold; what others wrote is already free of controls."""
    return escape(clip(words, 1_000).translate({0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}))


# --- the axis -------------------------------------------------------------------------------

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS = (
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)),
)
_SHARE = 0.3
"""How much of the axis one quiet stretch may take."""
_SHORTEST = 2_000
"""Milliseconds below which no stretch is cut."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Times to places along an axis; each stretch between two times of the story is even."""

    times: Sequence[int]
    places: Sequence[float]
    cuts: frozenset[int]
    """Stretches, by the index of their beginning, that are shorter than their time."""
    unit: float
    """Length of a millisecond where nothing is cut."""

    def __call__(self, at: int) -> float:
        index = min(max(bisect_right(self.times, at) - 1, 0), len(self.times) - 2)
        begin, end = self.times[index : index + 2]
        share = min(max((at - begin) / (end - begin), 0.0), 1.0)
        return self.places[index] + share * (self.places[index + 1] - self.places[index])

    def ticks(self, apart: float) -> list[int]:
        """Round times at least `apart` from each other, of those that no cut swallows."""
        step = next((each for each in _STEPS if each * self.unit >= apart), _STEPS[-1])
        found: list[int] = []
        for index, (begin, end) in enumerate(pairwise(self.times)):
            for at in (
                range(-(-begin // step) * step, end + 1, step) if index not in self.cuts else ()
            ):
                if not found or self(at) - self(found[-1]) >= apart:
                    found.append(at)
        return found or [self.times[0]]

    def breaks(self) -> Iterator[float]:
        return (sum(self.places[index : index + 2]) / 2 for index in sorted(self.cuts))


def _scale(times: Sequence[int], begin: float, length: float) -> _Scale:
    times = times if len(times) > 1 else (times[0], times[0] + _SECOND)
    gaps = [after - before for before, after in pairwise(times)]
    cap, shortest = _cap(gaps)
    cuts = frozenset(index for index, gap in enumerate(gaps) if gap >= shortest)
    kept = [cap if index in cuts else gap for index, gap in enumerate(gaps)]
    unit = length / sum(kept)
    return _Scale(times, [begin + unit * each for each in accumulate(kept, initial=0)], cuts, unit)


def _cap(gaps: Sequence[int]) -> tuple[float, float]:
    """The length that long stretches are cut to, and how long a stretch is that is cut.

    As few are cut as leave no other twice as long as they are shown.
    """
    longest = sorted(gaps, reverse=True)
    rest = float(sum(gaps))
    cap = shortest = inf
    for number, gap in enumerate(longest[:3], start=1):
        rest -= gap
        shown = max(_SHORTEST, _SHARE * rest / (1 - _SHARE * number))
        if rest <= 0 or gap <= 2 * min(shown, cap):
            break
        cap, shortest = shown, gap
    return cap, shortest


# --- what stands close together -------------------------------------------------------------

_MARK = 16.0
"""Width that a mark needs."""


@dataclass
class _Cluster:
    """Marks that would overlap, drawn as one with their number."""

    first: float
    last: float
    words: list[str]

    @property
    def count(self) -> str:
        return f"{TIMES}{len(self.words)}" if len(self.words) > 1 else ""

    @property
    def width(self) -> float:
        return _MARK + text_width(self.count) + (4 if self.count else 0)

    def left(self, begin: float, end: float) -> float:
        middle = (self.first + self.last) / 2
        return max(begin, min(middle - self.width / 2, end - self.width))


def _clusters(marks: Iterable[tuple[float, str]], begin: float, end: float) -> list[_Cluster]:
    """Marks in their order along a row from `begin` to `end`; no two clusters touch."""
    found: list[_Cluster] = []
    for place, words in marks:
        found.append(_Cluster(place, place, [words]))
        while len(found) > 1:
            before, after = found[-2:]
            if before.left(begin, end) + before.width + 2 <= after.left(begin, end):
                break
            found[-2:] = [_Cluster(before.first, after.last, [*before.words, *after.words])]
    return found


def _all(words: Sequence[str]) -> str:
    """What a mark says when it is pointed at."""
    return words[0] if len(words) == 1 else f"{len(words)} of them: {words[0]} … {words[-1]}"


class _Lanes:
    """Rows for texts that must not meet."""

    def __init__(self) -> None:
        self.taken: list[list[tuple[float, float]]] = []

    def place(self, begin: float, end: float) -> int:
        for number, lane in enumerate(self.taken):
            if all(end + 8 <= other or right + 8 <= begin for other, right in lane):
                lane.append((begin, end))
                return number
        self.taken.append([(begin, end)])
        return len(self.taken) - 1


# --- along a horizontal axis ----------------------------------------------------------------

_ROW = 26.0
_LANE = 20.0
_LEFT, _RIGHT = 136.0, WIDE - 12
_NAMED = 6
"""More decisions than this are marks without their words."""


def _wide(shown: Moments) -> _Sheet:
    sheet, rows = _Sheet(), _Sheet()
    scale = _scale(shown.times, _LEFT + 8, _RIGHT - _LEFT - 16)
    tops = _line_labels(rows, shown.lines, scale)
    y = _decisions_row(rows, shown.decisions, scale, max(tops, default=0) + _LANE)
    y = _request_rows(rows, shown.requests, scale, y)
    rows.text(4, y + _ROW / 2, "waits", "quiet")
    named = _wait_bars(rows, shown.waits, scale, y + 4)
    y += _ROW + 6
    _axis(rows, scale, y)
    for line, top in zip(shown.lines, tops, strict=True):
        path = f"M{scale(line.at):.1f} {top + _LANE - 3:.1f}V{y:.1f}"
        sheet.stroke(path, f"rule story-{line.rule.name.lower()}", _titled(line.at, line.words))
    sheet.parts += rows.parts
    sheet.height = max(rows.height, y + 40)
    _wait_legend(sheet, shown.waits, named)
    return sheet


def _titled(at: int, words: str) -> str:
    return f"{rfc3339(at)} {words}"


def _line_labels(sheet: _Sheet, lines: Sequence[Line], scale: _Scale) -> list[float]:
    """The names of the lines above them; where each label begins, from the top."""
    lanes, tops = _Lanes(), list[float]()
    for line in lines:
        x = scale(line.at)
        words = f"{line.words} {clock_time(line.at, scale.times[0])}"
        width = text_width(words)
        ends = x + width > WIDE - 4
        top = lanes.place(x - width if ends else x, x if ends else x + width) * _LANE
        sheet.text(x, top + _LANE / 2, words, "line", "end" if ends else "start")
        tops.append(top)
    return tops


def _decisions_row(sheet: _Sheet, decisions: Sequence[Decision], scale: _Scale, y: float) -> float:
    if not decisions:
        return y
    sheet.text(4, y + _LANE / 2, "decisions", "quiet")
    if len(decisions) > _NAMED:
        marks = ((scale(each.at), _titled(each.at, each.words)) for each in decisions)
        for cluster in _clusters(marks, _LEFT, _RIGHT):
            _counted(sheet, cluster, y + _LANE / 2, _PERSON, "story-person")
        return y + _ROW
    lanes = _Lanes()
    for each in decisions:
        x = scale(each.at)
        width = text_width(each.words) + 12
        ends = x + width > WIDE - 4
        begin, end = (x - width, x + 8) if ends else (x - 8, x + width)
        middle = y + lanes.place(begin, end) * _LANE + _LANE / 2
        sheet.icon(x, middle, _PERSON, "story-person", _titled(each.at, each.words))
        sheet.text(
            x - 12 if ends else x + 12, middle, each.words, "line", "end" if ends else "start"
        )
    return y + len(lanes.taken) * _LANE + 4


def _counted(sheet: _Sheet, cluster: _Cluster, y: float, shape: str, look: str) -> None:
    left = cluster.left(_LEFT, _RIGHT)
    if cluster.count:
        sheet.stroke(f"M{cluster.first:.1f} {y:.1f}H{cluster.last:.1f}", f"reach {look}")
    sheet.icon(left + _MARK / 2, y, shape, look, _all(cluster.words))
    if cluster.count:
        sheet.text(left + _MARK + 2, y, cluster.count, "line")


def _request_rows(sheet: _Sheet, requests: Sequence[Request], scale: _Scale, y: float) -> float:
    """One row for each outcome there was, named by its shape and in words: rows are the legend."""
    if not requests:
        sheet.text(4, y + _ROW / 2, "requests", "quiet")
        sheet.text(_LEFT + 8, y + _ROW / 2, "nothing was sent", "quiet")
        return y + _ROW
    for outcome in Outcome:
        those = [each for each in requests if each.outcome is outcome]
        if not those:
            continue
        middle = y + _ROW / 2
        sheet.outcome(12, middle, outcome)
        sheet.text(26, middle, outcome, "quiet")
        sheet.stroke(f"M{_LEFT:.1f} {middle:.1f}H{_RIGHT:.1f}", "row")
        marks = ((scale(each.at), _titled(each.at, each.words)) for each in those)
        for cluster in _clusters(marks, _LEFT, _RIGHT):
            _counted(sheet, cluster, middle, _SHAPES[outcome], f"story-{outcome.name.lower()}")
        y += _ROW
    return y


def _wait_bars(sheet: _Sheet, waits: Sequence[Wait], scale: _Scale, y: float) -> frozenset[Source]:
    """Waits as bars; the sources whose full name could not stand on one of them."""
    short: set[Source] = set()
    for wait in _legible(waits, scale):
        x, width = scale(wait.begin), scale(wait.end) - scale(wait.begin)
        words = f"{rfc3339(wait.begin)} {wait.words}"
        sheet.bar(x, y, width, 18, wait.source, words)
        choices = (wait.words, str(wait.source), _LETTERS[wait.source])
        name = next((each for each in choices if text_width(each) + 8 <= width), "")
        if name:
            sheet.text(x + width / 2, y + 9, name, "on", "middle")
        if name in ("", choices[-1]):
            short.add(wait.source)
    return frozenset(short)


def _legible(waits: Sequence[Wait], scale: _Scale) -> Iterator[Wait]:
    """Neighbours of one source become one bar where a bar of their own had no room for a name."""
    for _, run in groupby(waits, key=lambda wait: wait.source):
        whole = list(run)
        room = text_width(whole[0].source) + 8
        if any(scale(wait.end) - scale(wait.begin) < room for wait in whole):
            together = whole[0]
            for wait in whole[1:]:
                together = joined(together, wait)
            whole = [together]
        yield from whole


def _axis(sheet: _Sheet, scale: _Scale, y: float) -> None:
    sheet.text(4, y + 12, "UTC", "quiet")
    sheet.stroke(f"M{_LEFT:.1f} {y:.1f}H{_RIGHT:.1f}", "axis")
    for x in scale.breaks():
        sheet.stroke(f"M{x - 6:.1f} {y + 6:.1f}l6-12h6l-6 12z", "gap")
        sheet.stroke(f"M{x - 6:.1f} {y + 6:.1f}l6-12M{x:.1f} {y + 6:.1f}l6-12", "axis")
    day = ""
    for at in scale.ticks(112):
        x = scale(at)
        stamp = rfc3339(at)
        sheet.stroke(f"M{x:.1f} {y:.1f}v5", "axis")
        middle = min(x, WIDE - 44)
        sheet.text(middle, y + 14, stamp[11:19], "quiet", "middle")
        if stamp[:10] != day:
            day = stamp[:10]
            sheet.text(middle, y + 30, day, "quiet", "middle")


def _wait_legend(sheet: _Sheet, waits: Sequence[Wait], short: frozenset[Source]) -> None:
    """Names for the bars that show a letter, or only their colour."""
    x, y = _LEFT, sheet.height + 10
    for source in Source:
        if source not in short:
            continue
        total = sum(wait.total for wait in waits if wait.source is source)
        count = sum(wait.source is source for wait in waits)
        words = Wait(0, 0, source, count, total).words
        width = 30 + text_width(words)
        if x + width > WIDE - 4:
            x, y = _LEFT, y + _LANE
        sheet.bar(x, y - 9, 22, 18, source, words)
        sheet.text(x + 11, y, _LETTERS[source], "on", "middle")
        sheet.text(x + 28, y, words, "quiet")
        x += width + 16


# --- down a vertical axis -------------------------------------------------------------------

_STEP = 24.0
"""Least height of a row."""
_SPINE, _TEXT = 72.0, 88.0
_ROOM = NARROW - _TEXT - 4
_ABREAST = 3
"""Marks with numbers that have room beside each other."""


@dataclass
class _Stop:
    """One row: requests that came close together, a decision, or a line."""

    at: int
    items: list[Request | Decision | Line]
    waits: list[Wait] = field(default_factory=list[Wait])
    """What was waited for after it, one for each source."""

    @property
    def groups(self) -> list[tuple[Outcome, list[str]]]:
        """Its requests by outcome, with what they say."""
        requests = [item for item in self.items if isinstance(item, Request)]
        said = {outcome: list[str]() for outcome in Outcome}
        for each in requests:
            said[each.outcome].append(_titled(each.at, each.words))
        return [(outcome, words) for outcome, words in said.items() if words]

    @property
    def rows(self) -> int:
        """How many rows it takes with its waits."""
        return max(1, -(-len(self.groups) // _ABREAST)) + len(self.waits)


def _narrow(shown: Moments) -> _Sheet:
    sheet = _Sheet()
    many = len(shown.requests) + len(shown.lines) + len(shown.decisions)
    scale = _scale(shown.times, _STEP, min(760.0, _STEP * many))
    stops = _stops(shown, scale)
    places = _places(stops, scale)
    sheet.stroke(f"M{_SPINE:.1f} {places[0]:.1f}V{places[-1]:.1f}", "axis")
    for stop, y, until in zip(stops, places, [*places[1:], places[-1]], strict=True):
        _waited(sheet, stop.waits, y + _STEP * (stop.rows - len(stop.waits) - 1), until)
    sheet.text(4, places[0] - 1.5 * _STEP + 8, f"{rfc3339(stops[0].at)[:10]} UTC", "quiet")
    day = _day(stops[0])
    for stop, y in zip(stops, places, strict=True):
        if _day(stop) != day:
            day = _day(stop)
            sheet.text(4, y - _STEP, day, "quiet")
        _told(sheet, stop, y)
    _mark_legend(sheet, shown)
    return sheet


def _day(stop: _Stop) -> str:
    return rfc3339(stop.at)[:10]


def _stops(shown: Moments, scale: _Scale) -> list[_Stop]:
    items: list[Request | Decision | Line] = [*shown.lines, *shown.requests, *shown.decisions]
    items.sort(key=lambda each: (each.at, isinstance(each, Line) and each.rule is not Rule.ASKED))
    stops: list[_Stop] = []
    for item in items:
        near = stops and scale(item.at) - scale(stops[-1].at) < _STEP
        if near and isinstance(item, Request) and isinstance(stops[-1].items[0], Request):
            stops[-1].items.append(item)
        else:
            stops.append(_Stop(item.at, [item]))
    times = [stop.at for stop in stops]
    for wait in shown.waits:
        after = stops[max(bisect_right(times, wait.begin) - 1, 0)].waits
        same = next((each for each in after if each.source is wait.source), None)
        if same is None:
            after.append(wait)
        else:
            after[after.index(same)] = joined(same, wait)
    return stops


def _places(stops: Sequence[_Stop], scale: _Scale) -> list[float]:
    """Where each row is: at its time, or further down where the rows before it need the room."""
    places = [1.5 * _STEP]
    for before, stop in pairwise(stops):
        rows = before.rows + (_day(before) != _day(stop))
        places.append(max(places[-1] + rows * _STEP, scale(stop.at)))
    return places


def _waited(sheet: _Sheet, waits: Sequence[Wait], y: float, until: float) -> None:
    begin, end = y + _STEP / 2, until - _STEP / 2
    for number, wait in enumerate(waits):
        height = (max(end, begin + _STEP * len(waits)) - begin) / len(waits)
        top = begin + number * height
        sheet.bar(_SPINE - 4, top + 1, 8, height - 2, wait.source, wait.words)
        sheet.text(_TEXT, top + height / 2, wait.words, "quiet", room=_ROOM)


def _told(sheet: _Sheet, stop: _Stop, y: float) -> None:
    sheet.text(4, y, rfc3339(stop.at)[11:19], "quiet")
    first = stop.items[0]
    match first:
        case Line():
            sheet.stroke(
                f"M{_SPINE - 8:.1f} {y:.1f}H{NARROW - 4:.1f}",
                f"rule story-{first.rule.name.lower()}",
            )
            sheet.text(_TEXT, y, first.words, "line", room=_ROOM)
        case Decision():
            sheet.icon(_SPINE, y, _PERSON, "story-person", _titled(first.at, first.words))
            sheet.text(_TEXT, y, first.words, room=_ROOM)
        case Request() if len(stop.items) == 1:
            sheet.outcome(_SPINE, y, first.outcome, _titled(first.at, first.words))
            sheet.text(_TEXT, y, _beginning(first.words), room=_ROOM)
        case Request():
            _together(sheet, stop.groups, y)


def _beginning(words: str) -> str:
    """The first clauses of a sentence, as many as there is room for."""
    told, *clauses = words.split(", ")
    for clause in clauses:
        if clause.startswith("next ") or text_width(f"{told}, {clause}") > _ROOM:
            break
        told += f", {clause}"
    return told


def _together(sheet: _Sheet, groups: Sequence[tuple[Outcome, Sequence[str]]], y: float) -> None:
    """Marks that came close together: one for each outcome, with its number."""
    x = _SPINE
    for index, (outcome, words) in enumerate(groups):
        if index and index % _ABREAST == 0:
            x, y = _SPINE, y + _STEP
        count = f"{TIMES}{len(words)}" if len(words) > 1 else ""
        sheet.outcome(x, y, outcome, _all(words))
        if count:
            sheet.text(x + 12, y, count)
        x += 26 + text_width(count)


def _mark_legend(sheet: _Sheet, shown: Moments) -> None:
    x, y = 12.0, sheet.height + 18
    present = {each.outcome for each in shown.requests}
    entries = [(outcome, _SHAPES[outcome]) for outcome in Outcome if outcome in present]
    looks = [(str(outcome), shape, f"story-{outcome.name.lower()}") for outcome, shape in entries]
    if shown.decisions:
        looks.append(("decision", _PERSON, "story-person"))
    for words, shape, look in looks:
        width = 16 + text_width(words)
        if x + width > NARROW - 4:
            x, y = 12.0, y + _STEP
        sheet.icon(x, y, shape, look)
        sheet.text(x + 12, y, words, "quiet")
        x += width + 18
