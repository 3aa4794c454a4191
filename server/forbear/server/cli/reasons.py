"""Why an operation is not moving: one paragraph from its state, its scope and who lives."""

from __future__ import annotations

from typing import assert_never

from forbear.rules.contract_report import duration
from forbear.rules.model import Operation, State, WaitingFor
from forbear.server.cli.home import senders
from forbear.server.clock import SystemClock
from forbear.storage.store import Store
from forbear.tools.times import clock_time


async def reason_of(store: Store, op: Operation) -> str:
    """What it waits for, until when, and whether anybody can go on with it."""
    now = SystemClock().now().wall
    told = await _by_state(store, op, now)
    if op.final or op.state is State.ESCALATED or op.approve_by is not None:
        return told
    return f"{told} {await _by_processes(store, op, now)}".strip()


async def _by_state(store: Store, op: Operation, now: int) -> str:
    match op.state:
        case State.QUEUED:
            return await _queued(store, op, now)
        case State.SENDING:
            since = f" since {clock_time(op.updated_at, now)}"
            return f"A request is out{since}; its outcome is not stored yet."
        case State.WAITING if op.lease_owner is not None:
            return "A status request is out at this moment."
        case State.WAITING if op.waiting_for in (WaitingFor.SCOPE, WaitingFor.SLOT):
            return await _held(store, op, now)
        case State.WAITING if op.waiting_for is WaitingFor.CREDENTIAL:
            return _no_key(op)
        case State.WAITING:
            last = f"it last said {op.provider_state!r}" if op.provider_state else "it took the job"
            used = f"{op.status_requests.used} of {op.status_requests.max} checks are used"
            end = f"the deadline is {clock_time(op.deadline_at, now)}"
            return f"The provider works: {last}. {_next(op, now, 'check')}; {used}, {end}."
        case State.DELAYED:
            answer = f" ({op.http_status})" if op.http_status is not None else ""
            return (
                f"The last attempt{answer} certainly did nothing. {_next(op, now, 'attempt')}; "
                f"{op.attempts.used} of {op.attempts.max} attempts are used."
            )
        case State.UNCLEAR:
            return f"The write may have been applied. {_next(op, now, 'lookup')}."
        case State.ESCALATED:
            return await _stopped(store, op, now)
        case State.SUCCEEDED:
            return f"It is over: it succeeded at {clock_time(op.updated_at, now)}."
        case State.FAILED | State.CANCELLED | State.EXPIRED | State.DISCARDED:
            message = (op.failure or {}).get("message") or (op.failure or {}).get("code")
            because = f": {message}" if message else ""
            return f"It is over: {op.state} at {clock_time(op.updated_at, now)}{because}."
        case _:
            assert_never(op.state)


async def _queued(store: Store, op: Operation, now: int) -> str:
    if op.approve_by is not None:
        case = await store.read.open_case(op.id)
        number = case.number if case is not None else "…"
        return (
            f"A person must approve it before {clock_time(op.approve_by, now)}; nothing was sent. "
            f"`forbear decide {number} approve` or `forbear decide {number} reject`."
        )
    match op.waiting_for:
        case WaitingFor.SCOPE | WaitingFor.SLOT:
            return await _held(store, op, now)
        case WaitingFor.CREDENTIAL:
            return _no_key(op)
        case _:
            return f"It is stored and not sent yet. {_next(op, now, 'attempt')}."


async def _held(store: Store, op: Operation, now: int) -> str:
    """Held by a limit that others share: which one, and until when."""
    mine = f"{op.provider}/"
    for scope in await store.read.scopes():
        blocked = int(scope["next_allowed_at"])
        if str(scope["key"]).startswith(mine) and blocked > now:
            source = str(scope["source"] or "a limit").replace("_", " ")
            return (
                f"The scope {scope['key']} admits nothing before {clock_time(blocked, now)} "
                f"({source}); everything on it waits. {_next(op, now, 'look')}."
            )
    what = "all its slots are in use" if op.waiting_for is WaitingFor.SLOT else "its rate is used"
    return f"The shared limit of {op.provider} holds it: {what}. {_next(op, now, 'look')}."


def _no_key(op: Operation) -> str:
    return (
        f"No usable key for {op.provider} is at hand. `forbear doctor` names it; it goes on by "
        "itself afterwards."
    )


async def _stopped(store: Store, op: Operation, now: int) -> str:
    case = await store.read.open_case(op.id)
    if case is None:
        return "It stopped and asks a person, but its case is closed; `forbear show` tells more."
    options = ", ".join(str(option["id"]) for option in case.options)
    return (
        f"It stopped at {clock_time(case.opened_at, now)}: {case.reason}. Nothing is sent until a "
        f"person decides: `forbear decide {case.number} OPTION` with one of {options}."
    )


def _next(op: Operation, now: int, what: str) -> str:
    if op.next_at is None:
        return f"No {what} is planned"
    source = f" ({str(op.delay_source).replace('_', ' ')})" if op.delay_source is not None else ""
    if op.next_at <= now:
        return f"The next {what} has been due for {duration(now - op.next_at)}{source}"
    return f"The next {what} is at {clock_time(op.next_at, now)}{source}"


async def obstacle(store: Store, op: Operation) -> str | None:
    """Why nobody alive could go on with an operation, or None if somebody could."""
    living = await senders(store)
    if not living:
        return "No process is alive that could send: start `forbear worker`."
    if not any(op.binding in process.bindings for process in living):
        return (
            f"None of the {len(living)} living processes can run it: its contract changed or its "
            "key is missing there. `forbear contract check` and `forbear doctor` tell which."
        )
    return None


async def _by_processes(store: Store, op: Operation, now: int) -> str:
    """Whether anybody alive goes on with it."""
    stuck = await obstacle(store, op)
    if stuck is not None:
        return f"But that does not happen now. {stuck}"
    living = await senders(store)
    able = [process for process in living if op.binding in process.bindings]
    if not able:
        return ""
    owner = next((one for one in living if one.owner == op.lease_owner), None)
    if op.lease_owner is not None and owner is None:
        return "The process that held it is gone; another takes over within seconds."
    if op.next_at is not None and now - op.next_at > 15_000:
        return f"Process {able[0].pid} ({able[0].role}) could run it and should have by now."
    return f"Process {able[0].pid} ({able[0].role}) goes on with it."
