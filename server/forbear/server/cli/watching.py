"""`watch`: what is active, as it changes; in place on a terminal, as lines where it is piped."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from forbear.server.cli.home import NOBODY, is_new, opened, remark_if_nobody_sends, run, settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import remark, say, style_of

if TYPE_CHECKING:
    from rich.live import Live

    from forbear.rules.model import Operation
    from forbear.storage.store import Store

_MOST = 200
_LABEL = 40
_BESIDE_LABEL = 70
"""Columns of a line beside its label: id, state, the provider's word, and what comes next."""
_NOTHING = "Nothing is active. What agents start shows up here."


def register(app: typer.Typer) -> None:
    app.command()(watch)


def watch(as_json: AsJson = False) -> None:
    """Show what is active as it changes, until Ctrl-C. With --json one object per line."""
    home = settings()
    if is_new(home):
        say(_NOTHING)
        remark(NOBODY)
        return
    live = sys.stdout.isatty() and not as_json

    async def watched() -> None:
        async with opened(home) as store:
            await remark_if_nobody_sends(store)
            if live:
                await _in_place(store)
            else:
                await _line_by_line(store, as_json=as_json)

    try:
        run(watched)
    except KeyboardInterrupt:
        return


async def _active(store: Store) -> list[Operation]:
    return [op for op in await store.read.find(limit=_MOST) if not op.final]


async def _line_by_line(store: Store, *, as_json: bool) -> None:
    """One line for each operation that is active, and one whenever one of them changes."""
    from forbear.server.clock import SystemClock
    from forbear.tools.times import rfc3339

    clock = SystemClock()
    known: dict[str, tuple[str, str]] = {}
    while True:
        active = {op.id: op for op in await _active(store)}
        ended = [await store.read.operation(gone) for gone in known.keys() - active.keys()]
        for op in [*reversed(active.values()), *filter(None, ended)]:
            told = _news(op)
            if known.get(op.id) == told:
                continue
            known[op.id] = told
            now = clock.now().wall
            if as_json:
                say(json.dumps({"at": rfc3339(now), "operation_id": op.id, **_fields(op)}))
            else:
                say(f"{rfc3339(now)[11:]}  {_line(op, now)}", style_of(str(op.state)))
            if op.final:
                del known[op.id]
        sys.stdout.flush()
        await clock.sleep(0.5)


async def _in_place(store: Store) -> None:
    """The list of what is active, drawn again at each change and each second."""
    from rich.console import Console
    from rich.live import Live

    from forbear.server.clock import SystemClock

    clock = SystemClock()
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            _draw(live, await _active(store), clock.now().wall)
            await clock.sleep(0.5)


def _draw(live: Live, active: list[Operation], now: int) -> None:
    from rich.text import Text

    from forbear.tools.times import rfc3339
    from forbear.tools.untrusted import inert

    room = max(1, live.console.size.height - 3)
    label = min(_LABEL, max(8, live.console.size.width - _BESIDE_LABEL))
    drawn = Text(f"{rfc3339(now)} · {len(active)} active · Ctrl-C ends\n", overflow="ellipsis")
    drawn.no_wrap = True
    for op in active[:room]:
        drawn.append(f"{inert(_line(op, now, label))}\n", style_of(str(op.state)) or "")
    if not active:
        drawn.append(_NOTHING)
    elif active[room:]:
        drawn.append(f"… and {len(active) - room} more: forbear ls --limit {len(active)}")
    live.update(drawn, refresh=True)


def _news(op: Operation) -> tuple[str, str]:
    """What must differ for another line: a new time of the next look is none."""
    return str(op.state), f"{op.waiting_for} {op.provider_state} {op.progress}"


def _fields(op: Operation) -> dict[str, str | None]:
    return {
        "state": str(op.state),
        "waiting_for": None if op.waiting_for is None else str(op.waiting_for),
        "provider_state": op.provider_state,
        "label": op.label,
    }


def _line(op: Operation, now: int, label: int = _LABEL) -> str:
    from forbear.rules.model import State
    from forbear.tools.story import span
    from forbear.tools.times import clock_time
    from forbear.tools.untrusted import clip

    state = f"{op.state}{f', {op.waiting_for}' if op.waiting_for is not None else ''}"
    what = clip(op.label or f"{op.provider}.{op.action}", label)
    if op.state is State.ESCALATED or op.approve_by is not None:
        last = "needs you"
    elif op.final:
        last = f"after {span(op.updated_at - op.created_at)}"
    elif op.next_at is not None and op.next_at > now:
        last = f"next {clock_time(op.next_at, now)}"
    else:
        last = ""
    said = f"  {clip(op.provider_state, 20)}" if op.provider_state is not None else ""
    return f"{op.id}  {state:<20} {what:<{label}}{said}  {last}".rstrip()
