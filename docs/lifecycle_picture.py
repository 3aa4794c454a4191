"""The state machine as a picture. Only where things stand is decided here: states, arrows and words
come from the table, and a move without a place on the paper is an error."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from forbear.rules.lifecycle import TRANSITIONS, Event
from forbear.rules.model import FINAL, State

S = State
WIDE, HIGH = 960, 600
BOX = (168, 84)

CENTRES = {
    S.QUEUED: (130, 60),
    S.SENDING: (480, 60),
    S.WAITING: (830, 60),
    S.DELAYED: (130, 290),
    S.UNCLEAR: (655, 290),
    S.ESCALATED: (480, 530),
}
"""The middle of each state that is not final."""

ROUTES = {
    (S.QUEUED, S.SENDING): [(214, 48), (396, 48)],
    (S.QUEUED, S.DELAYED): [(130, 102), (130, 248)],
    (S.QUEUED, S.UNCLEAR): [(214, 74), (571, 276)],
    (S.QUEUED, S.ESCALATED): [(46, 60), (20, 60), (20, 530), (396, 530)],
    (S.SENDING, S.WAITING): [(564, 60), (746, 60)],
    (S.SENDING, S.DELAYED): [(400, 102), (200, 248)],
    (S.SENDING, S.UNCLEAR): [(520, 102), (625, 248)],
    (S.SENDING, S.ESCALATED): [(480, 102), (480, 488)],
    (S.WAITING, S.UNCLEAR): [(800, 102), (690, 248)],
    (S.WAITING, S.ESCALATED): [(880, 102), (880, 530), (564, 530)],
    (S.DELAYED, S.UNCLEAR): [(214, 290), (571, 290)],
    (S.DELAYED, S.ESCALATED): [(170, 332), (410, 488)],
    (S.UNCLEAR, S.ESCALATED): [(625, 332), (530, 488)],
}
"""The line between two states, from the first to the second; moves may go either way."""

LABELS = {
    (S.QUEUED, S.SENDING): (305, 40, "middle"),
    (S.QUEUED, S.DELAYED): (124, 180, "end"),
    (S.QUEUED, S.UNCLEAR): (300, 112, "start"),
    (S.QUEUED, S.ESCALATED): (30, 548, "start"),
    (S.SENDING, S.WAITING): (655, 52, "middle"),
    (S.SENDING, S.DELAYED): (270, 216, "start"),
    (S.SENDING, S.UNCLEAR): (548, 128, "start"),
    (S.SENDING, S.ESCALATED): (472, 400, "end"),
    (S.WAITING, S.UNCLEAR): (756, 176, "start"),
    (S.WAITING, S.ESCALATED): (872, 430, "end"),
    (S.DELAYED, S.UNCLEAR): (392, 308, "middle"),
    (S.DELAYED, S.ESCALATED): (214, 350, "start"),
    (S.UNCLEAR, S.ESCALATED): (616, 384, "start"),
}

STYLE = """\
svg { color: #24292f; background: #fff; font: 14px system-ui, sans-serif; }
text { fill: currentColor; }
.name { font-weight: 600; font-size: 17px; }
.ends, .move { font-size: 13px; }
rect { fill: #eef1fb; stroke: #3f51b5; stroke-width: 1.5; }
.asks rect { fill: #fff1e0; stroke: #b25a00; }
.line { fill: none; stroke: #57606a; stroke-width: 1.5; }
#head path { fill: #57606a; }
.move { paint-order: stroke; stroke: #fff; stroke-width: 5px; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e6ec; background: #1e2129; }
  rect { fill: #2b3050; stroke: #9fa8da; }
  .asks rect { fill: #4a3318; stroke: #ffb74d; }
  .line { stroke: #a8b0bd; }
  #head path { fill: #a8b0bd; }
  .move { stroke: #1e2129; }
}"""


def svg() -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
            f'width="{WIDE}" height="{HIGH}" role="img">',
            "<title>The states of an operation and the events between them</title>",
            f"<style>\n{STYLE}\n</style>",
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker>',
            *_lines(),
            *_boxes(),
            *_words(),
            "</svg>",
            "",
        ]
    )


def _moves(source: State, target: State) -> list[Event]:
    return [event for (state, event), to in TRANSITIONS.items() if (state, to) == (source, target)]


def _lines() -> Iterator[str]:
    drawn = {(a, b) for a, b in ROUTES if _moves(a, b)} | {
        (b, a) for a, b in ROUTES if _moves(b, a)
    }
    there = {
        (state, to)
        for (state, _), to in TRANSITIONS.items()
        if state != to and state not in FINAL and to not in FINAL
    }
    if drawn != there:
        raise ValueError(f"give these moves a line in ROUTES: {sorted(there - drawn)}")
    for (source, target), points in ROUTES.items():
        ends = f"{_head('start', target, source)}{_head('end', source, target)}"
        path = " ".join(f"{x},{y}" for x, y in points)
        yield f'<polyline class="line" points="{path}"{ends}/>'


def _head(end: str, source: State, target: State) -> str:
    return f' marker-{end}="url(#head)"' if _moves(source, target) else ""


def _boxes() -> Iterator[str]:
    wide, high = BOX
    for state, (x, y) in CENTRES.items():
        ends = [
            *dict.fromkeys(
                str(to)
                for (source, _), to in TRANSITIONS.items()
                if source is state and to in FINAL
            )
        ]
        told = [", ".join(ends[row : row + 2]) for row in range(0, len(ends), 2)]
        kind = ' class="asks"' if state is S.ESCALATED else ""
        yield f'<g{kind}><rect x="{x - wide / 2:g}" y="{y - high / 2:g}" width="{wide}" '
        yield f'height="{high}" rx="8"/><text class="name" x="{x}" y="{y - 20}" '
        yield f'text-anchor="middle">{state}</text>'
        for row, line in enumerate(told):
            yield f'<text class="ends" x="{x}" y="{y - 1 + 16 * row}" text-anchor="middle">'
            yield f"{escape(line)}</text>"
        yield "</g>"


def _words() -> Iterator[str]:
    for (source, target), (x, y, anchor) in LABELS.items():
        told = [*_moves(source, target), *_moves(target, source)]
        for row, event in enumerate(dict.fromkeys(told)):
            yield f'<text class="move" x="{x}" y="{y + 16 * row}" text-anchor="{anchor}">{event}'
            yield "</text>"
