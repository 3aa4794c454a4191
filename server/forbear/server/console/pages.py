"""What each page holds, once as data and once as what its templates show; nothing here changes
anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from markupsafe import Markup

from forbear.rules import escalations
from forbear.rules.escalations import length
from forbear.rules.model import Case, Operation, Option, Reason, Refusal, State
from forbear.server import standing
from forbear.server.app import App
from forbear.server.cli.home import NOBODY, senders
from forbear.server.cli.reasons import obstacle
from forbear.server.console.choices import Choice, choice_of, choices
from forbear.server.console.facts import case_lines, facts
from forbear.server.console.picture import story_svg
from forbear.storage.deciding import Decided
from forbear.tools import inbox as inboxes
from forbear.tools import scopes
from forbear.tools.answers import full, short
from forbear.tools.office import TOGETHER
from forbear.tools.times import rfc3339
from forbear.tools.untrusted import inert_tree

ROWS = 25
"""Operations on one page."""

EVENTS = 50
"""Events on one page of the audit trail."""

Outcome = tuple[inboxes.Entry, Decided | Refusal]
"""A case of a group, and what became of a decision on it."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its templates are `name`.html and `name`.txt."""

    name: str
    title: str
    data: Mapping[str, Any]
    """The page as JSON."""
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the templates need beside the data; times in it are epoch ms."""
    status: int = 200
    live: bool = False
    """Whether it shows the course of things, so that it is worth loading again by itself."""


# --- inbox ------------------------------------------------------------------------------------


async def inbox(app: App, *, group: str | None) -> Page:
    """Open cases, a group as one line unless it is `group`; scopes, pauses, and who can send."""
    now = app.clock.now().wall
    entries = await app.office.inbox()
    living, paused = await senders(app.store), await app.store.read.pauses()
    known = await scopes.known(app.store, now)
    data = {
        "as_of": rfc3339(now),
        "cases": [entry.as_json() for entry in entries],
        "scopes": known,
        "paused": [
            {"target": row["target"], "since": rfc3339(row["since"]), "by": row["by"]}
            for row in paused
        ],
        "processes": [
            {"role": one.role, "pid": one.pid, "started_at": rfc3339(one.started_at)}
            for one in living
        ],
    }
    data["standing"] = answers = standing.listed(app.settings.standing, now)
    rows = _rows(entries, group)
    shown = {
        "standing": answers,
        "rows": rows,
        "group": group,
        "lines": inboxes.lines(rows) if rows else [],
        "scopes": [(one["scope"], scopes.in_words(one)) for one in known],
        "paused": paused,
        "living": living,
        "nobody": None if living else NOBODY,
    }
    title = f"Inbox ({len(entries)})" if entries else "Inbox"
    return Page("inbox", title, data, shown, live=True)


def _rows(
    entries: Sequence[inboxes.Entry], opened: str | None
) -> list[inboxes.Entry | inboxes.Together]:
    """Cases, those of a group as one row; of the group that is opened, each."""
    rows: list[inboxes.Entry | inboxes.Together] = []
    for row in inboxes.collapsed(entries):
        whole = isinstance(row, inboxes.Together) and row.case.group == opened
        rows += row.entries if isinstance(row, inboxes.Together) and whole else [row]
    return rows


# --- operations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filters:
    """Which operations are listed; every one may be left out."""

    state: str | None = None
    provider: str | None = None
    task: str | None = None
    text: str | None = None
    after: str | None = None
    """Where the page begins: `rank.number` of the last one before it."""

    @property
    def cursor(self) -> tuple[int, int] | None:
        rank, dot, number = (self.after or "").partition(".")
        plain = dot and rank in ("0", "1") and number.isascii() and number.isdecimal()
        return (int(rank), int(number)) if plain and len(number) <= 18 else None

    @property
    def query(self) -> dict[str, str]:
        """The filters as they stand in an address, without the page."""
        stated = {
            "state": self.state,
            "provider": self.provider,
            "task": self.task,
            "text": self.text,
        }
        return {name: value for name, value in stated.items() if value}


async def operations(app: App, filters: Filters) -> Page:
    """A page of operations, active ones first."""
    now = app.clock.now().wall
    found = await app.store.read.find(**filters.query, after=filters.cursor, limit=ROWS + 1)
    listed, more = found[:ROWS], len(found) > ROWS
    following = f"{int(listed[-1].final)}.{listed[-1].number}" if more else None
    records = [await app.desk.record(op) for op in listed]
    about = [{"provider": op.provider, "action": op.action, "label": op.label} for op in listed]
    data = {
        "as_of": rfc3339(now),
        "filters": filters.query,
        "operations": [short(record) | named for record, named in zip(records, about, strict=True)],
        "next": following,
    }
    shown = {
        "filters": filters,
        "operations": listed,
        "states": [str(state) for state in State],
        "next": following,
    }
    return Page("operations", "Operations", data, shown)


async def operation(
    app: App, operation_id: str, *, said: str | None = None, status: int = 200
) -> Page | None:
    """One operation whole: its facts, its story as picture and text, what belongs to it.

    `said` is why the last decision was not carried out.
    """
    op = await app.store.read.operation(operation_id)
    if op is None:
        return None
    record = await app.desk.record(op, story_told=True)
    children = [
        await app.desk.record(child, story_told=True)
        for child in await app.store.read.children(op.id)
    ]
    cases = await app.store.read.cases_of(op.id)
    events = await app.store.read.events_of(op.id)
    attempts = await app.store.read.attempts_of(op.id)
    data = full(record) | {
        "cases": [_case_data(case) for case in cases],
        "children": [full(child) for child in children],
    }
    shown = {
        "record": record,
        "op": op,
        "unasked": [] if record.case else _unasked(app, op, record.as_of),
        "said": said,
        "facts": facts(record),
        "next_step": data["next_step"],
        "picture": Markup(story_svg(op, events, attempts, record.as_of)),
        "children": children,
        "cases": cases,
    }
    return Page("operation", _name(op), data, shown, status, live=True)


def _unasked(app: App, op: Operation, now: int) -> list[Choice]:
    """What may be decided although no case asks: to cancel what runs, to do anew what is over."""
    contract = app.contracts.contracts().get(op.provider)
    asked = Option.RESUBMIT if op.final else Option.CANCEL_AT_PROVIDER
    offered = escalations.offers(op, Reason.REQUESTED, contract, now, asked=asked)
    return [choice_of(each, op) for each in offered if each.option is asked]


def _name(op: Operation) -> str:
    return op.label or f"{op.provider}.{op.action}"


# --- cases ------------------------------------------------------------------------------------


async def case(app: App, name: str, *, said: str | None = None, status: int = 200) -> Page | None:
    """One case with its options as forms, or, once it is closed, with what came of it.

    `said` is why the last decision was not carried out.
    """
    found = [one for one in await app.store.read.case_by(name) if name in (one.id, str(one.number))]
    if not found:
        return None
    one = found[0]
    op = await app.store.read.operation(one.operation_id)
    if op is None:
        return None
    record = replace(await app.desk.record(op), case=one)
    took = await app.store.figures.durations(op.provider, op.action)
    open_now = one.closed_at is None
    offered = choices(one, op) if open_now else []
    members = [] if one.group is None else await _members(app, one.group)
    stuck = None if op.final else await obstacle(app.store, op, app.contracts)
    data = {
        "as_of": rfc3339(record.as_of),
        "case": _case_data(one),
        "operation": short(record),
        "usual_seconds": round(median(took) / 1_000) if took else None,
        "longest_seconds": round(max(took) / 1_000) if took else None,
        "error": said,
    }
    shown = {
        "record": record,
        "op": op,
        "case": one,
        "lines": case_lines(record, one, usual(took), await app.store.read.request_of(op.id)),
        "choices": offered,
        "others": len(members) - 1 if open_now else 0,
        "together": TOGETHER,
        "open_case": None if open_now else await app.store.read.open_case(op.id),
        "said": said,
        "stuck": stuck,
    }
    return Page("case", f"Case {one.number}: {_name(op)}", data, shown, status)


async def _members(app: App, group: str) -> list[inboxes.Entry]:
    """The open cases of a group."""
    return [entry for entry in await app.office.inbox() if entry.case.group == group]


def group(name: str, option: Option, outcomes: Sequence[Outcome]) -> Page:
    """What one decision did to each case of a group, and where it was not possible."""
    told = [
        (entry, outcome.message if isinstance(outcome, Refusal) else None)
        for entry, outcome in outcomes
    ]
    data = {
        "group": name,
        "option": str(option),
        "cases": [
            {"case": entry.case.id, "operation_id": entry.operation.id, "error": why}
            for entry, why in told
        ],
    }
    shown = {"group": name, "option": option, "outcomes": told}
    return Page("group", f"Group {name}", data, shown)


def usual(took: Sequence[int]) -> str:
    """How long the action takes as a rule, from what succeeded here."""
    if not took:
        return "none has succeeded here yet"
    count = "the one" if len(took) == 1 else f"the last {len(took)}"
    return (
        f"usually {length(round(median(took)))}, longest {length(max(took))} "
        f"({count} that succeeded here)"
    )


def _case_data(one: Case) -> dict[str, Any]:
    closed = None if one.closed_at is None else rfc3339(one.closed_at)
    return {
        "id": one.id,
        "number": one.number,
        "operation_id": one.operation_id,
        "reason": str(one.reason),
        "urgency": one.urgency,
        "group": one.group,
        "text": one.text,
        "options": [inert_tree(option) for option in one.options],
        "opened_at": rfc3339(one.opened_at),
        "revision": one.revision,
        "closed_at": closed,
        "closed_because": one.closed_because,
        "decision": None if one.decision is None else inert_tree(one.decision),
    }


# --- audit ------------------------------------------------------------------------------------


async def audit(app: App, *, operation_id: str | None, before: int | None) -> Page:
    """Events, newest first: what happened and when. Their bodies are told as stories."""
    now = app.clock.now().wall
    found = await app.store.figures.headings(
        operation_id=operation_id, before=before, limit=EVENTS + 1
    )
    listed = found[:EVENTS]
    following = listed[-1].sequence if len(found) > EVENTS else None
    data = {
        "as_of": rfc3339(now),
        "operation_id": operation_id,
        "events": [
            {
                "sequence": one.sequence,
                "at": rfc3339(one.at),
                "code": one.code,
                "operation_id": one.operation_id,
            }
            for one in listed
        ],
        "next": following,
    }
    shown = {"events": listed, "operation_id": operation_id, "next": following}
    return Page("audit", "Audit trail", data, shown)
