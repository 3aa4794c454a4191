"""Why an operation is not moving: one paragraph from its state, its scope and who lives."""

from __future__ import annotations

from typing import assert_never

from forbear.rules.contract_report import duration
from forbear.rules.escalations import has_handle
from forbear.rules.model import DelaySource, Operation, State, Step, WaitingFor
from forbear.server.cli.home import NOBODY, senders
from forbear.server.clock import SystemClock
from forbear.server.credentials import MissingCredential
from forbear.server.providers import Contracts
from forbear.storage.brakes import COPY, EVERYTHING
from forbear.storage.store import Store
from forbear.tools.times import clock_time


async def reason_of(store: Store, op: Operation, contracts: Contracts) -> str:
    """What it waits for, until when, and whether anybody can go on with it."""
    now = SystemClock().now().wall
    told = await _by_state(store, op, now)
    if op.final or op.approve_by is not None:
        return told
    if op.state is State.ESCALATED:
        return f"{told} {await _difference(store, op, contracts)}".strip()
    if op.lease_owner is None and op.step is not Step.LOOKUP:
        told = await _paused(store, op, now) or told
    return f"{told} {await _by_processes(store, op, now, contracts)}".strip()


async def _paused(store: Store, op: Operation, now: int) -> str:
    """The pause that holds it, if one does: of everything, of its provider or of a scope there."""
    for pause in await store.read.pauses():
        target = str(pause["target"])
        held = target.startswith(f"{op.provider}/") and op.waiting_for is WaitingFor.SCOPE
        if target == COPY:
            return (
                f"This store is a copy ({pause['by']['why']}): nothing but lookups is sent. "
                "`forbear adopt` makes it the living one; the deadline stays "
                f"{clock_time(op.deadline_at, now)}."
            )
        if held or target in (EVERYTHING, op.provider):
            by = pause["by"].get("operator", "somebody")
            return (
                f"{by} paused {target} at {clock_time(pause['since'], now)}: nothing is sent. "
                f"`forbear resume {target}` lets it go on; the deadline stays "
                f"{clock_time(op.deadline_at, now)}."
            )
    return ""


async def _by_state(store: Store, op: Operation, now: int) -> str:
    match op.state:
        case State.QUEUED:
            return await _queued(store, op, now)
        case State.SENDING | State.WAITING if op.lease_owner is not None:
            return _out(op, now, alive=store.liveness.alive(op.lease_owner))
        case State.SENDING:
            return "Its request left; what came of it is not stored yet."
        case State.WAITING if op.waiting_for in (WaitingFor.SCOPE, WaitingFor.SLOT):
            return await _held(store, op, now)
        case State.WAITING if op.waiting_for is WaitingFor.CREDENTIAL:
            return await _no_key(store, op)
        case State.WAITING:
            last = f"it last said {op.provider_state!r}" if op.provider_state else "it took the job"
            used = f"{op.status_requests.used} of {op.status_requests.max} checks are used"
            end = f"the deadline is {clock_time(op.deadline_at, now)}"
            return f"The provider works: {last}. {_next(op, now, 'check')}; {used}, {end}."
        case State.DELAYED if op.waiting_for in (WaitingFor.SCOPE, WaitingFor.SLOT):
            return await _held(store, op, now)
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
            ended = f"It is over: {op.state} at {clock_time(op.updated_at, now)}"
            return f"{ended}{_said(op)}{await _decided(store, op, now)}."
        case _:
            assert_never(op.state)


def _out(op: Operation, now: int, *, alive: bool) -> str:
    what = "status request" if op.state is State.WAITING else "request"
    at = clock_time(op.updated_at, now)
    if alive:
        return f"A {what} is out since {at}; its outcome is not stored yet."
    return (
        f"A {what} left at {at}, and the process that sent it is gone: what came of it is not "
        "known, and the next process that can run it goes on from there."
    )


def _said(op: Operation) -> str:
    """What the last answer and the failure say, as far as they do."""
    failure = op.failure or {}
    told = [
        f"the last answer was {op.http_status}" if op.http_status is not None else "",
        f"code {failure['code']}" if failure.get("code") else "",
        f"{failure['message']}" if failure.get("message") else "",
    ]
    known = "; ".join(filter(None, told))
    return f": {known}" if known else ""


async def _decided(store: Store, op: Operation, now: int) -> str:
    """The person's decision that ended it, if one did."""
    decisions = [one.decision for one in await store.read.cases_of(op.id) if one.decision]
    if not decisions or op.state is not State.DISCARDED:
        return ""
    last = decisions[-1]
    at = last.get("at")
    when = f" at {clock_time(at, now)}" if isinstance(at, int) else ""
    comment = f', saying "{last["comment"]}"' if last.get("comment") else ""
    return f"; {last.get('operator')} decided {last.get('option')}{when}{comment}"


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
            return await _no_key(store, op)
        case _:
            return f"It is stored and not sent yet. {_next(op, now, 'attempt')}."


async def _held(store: Store, op: Operation, now: int) -> str:
    """Held by a limit that others share: which one, and until when."""
    mine = f"{op.provider}/"
    if op.paused:
        return "A person has paused it: `forbear ps` lists the pauses, `forbear resume` ends one."
    if op.delay_source is DelaySource.CIRCUIT_OPEN:
        for down in await store.read.outages():
            if str(down["scope"]).startswith(mine):
                return (
                    f"{down['host']} has not answered since {clock_time(down['open_since'], now)}; "
                    "one request at a time finds out whether it does again, and everything else "
                    f"waits and pays nothing. {_next(op, now, 'look')}."
                )
    why = await _tokenless(store, op)
    if why is not None:
        return f"There is no token for {op.provider} yet, from {why}. {_next(op, now, 'look')}."
    for scope in await store.read.scopes():
        blocked = int(scope["next_allowed_at"])
        if str(scope["key"]).startswith(mine) and blocked > now:
            source = str(scope["source"] or "a limit").replace("_", " ")
            return (
                f"The scope {scope['key']} admits nothing before {clock_time(blocked, now)} "
                f"({source}); everything on it waits. {_next(op, now, 'look')}. If the limit is "
                f"gone: `forbear scopes reset {scope['key']} --reason TEXT`."
            )
    what = "all its slots are in use" if op.waiting_for is WaitingFor.SLOT else "its rate is used"
    return f"The shared limit of {op.provider} holds it: {what}. {_next(op, now, 'look')}."


async def _tokenless(store: Store, op: Operation) -> str | None:
    """Why its provider's token endpoint gave no token, if that is what is wrong."""
    for one in await store.read.credentials():
        mine = (one["provider"], one["account"]) == (op.provider, op.account)
        if mine and one["token_note"] is not None:
            return str(one["token_note"])
    return None


async def _no_key(store: Store, op: Operation) -> str:
    why = await _tokenless(store, op)
    if why is not None:
        return (
            f"There is no token for {op.provider}, from {why}. Correct [auth] of its contract or "
            f"the client; if that was the provider's fault: `forbear credential accept "
            f"{op.provider}`."
        )
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


async def obstacle(store: Store, op: Operation, contracts: Contracts) -> str | None:
    """Why nobody alive could go on with an operation, or None if somebody could."""
    living = await senders(store)
    if any(op.binding in process.bindings for process in living):
        return None
    differs = await _difference(store, op, contracts)
    if not living:
        return f"{NOBODY} {differs}".strip()
    count = "The living process" if len(living) == 1 else f"None of the {len(living)} processes"
    cannot = "cannot" if len(living) == 1 else "can"
    return f"{count} {cannot} run it. {differs or await _keyless(op, contracts)}"


async def _difference(store: Store, op: Operation, contracts: Contracts) -> str:
    """What of the present contract is another than the operation was started under."""
    contract = contracts.contracts().get(op.provider)
    if contract is None:
        errors = contracts.errors().get(op.provider)
        if errors:
            return f"The contract of {op.provider} does not load: {errors[0]}."
        return f"There is no contract of {op.provider} any more: put its file back."
    action = contract.action(op.action)
    if action is None:
        return f"The contract of {op.provider} has no {op.action} any more: put it back."
    if action.binding == op.binding:
        return ""
    account = contract.account.get("id", "default")
    if account != op.account:
        return (
            f"It belongs to account {op.account}, and the contract now says {account}: only the "
            "contract of its own account goes on with it."
        )
    sent = await store.read.request_of(op.id)
    if sent is not None and not sent.url.startswith(contract.base_url):
        origin = "/".join(sent.url.split("/")[:3])
        told = f"It was started at {origin}, and the contract now says {contract.base_url}"
    else:
        told = (
            f"The contract now states other requests, headers or another key for {op.action} than "
            "it was started under"
        )
    return f"{told}: put back what it was{_rebinding(op)}."


def _rebinding(op: Operation) -> str:
    if not has_handle(op) or op.state is State.ESCALATED:
        return ""
    return (
        ", or wait: a minute after its next check is due a living process stops it with a case "
        "that offers `rebind`"
    )


async def _keyless(op: Operation, contracts: Contracts) -> str:
    """The contract is the same, so it is the key, or a file that was not read yet."""
    contract = contracts.contracts()[op.provider]
    missing = contracts.credential(contract)
    here = f", and here: {missing}" if isinstance(missing, MissingCredential) else ""
    return (
        f"The key of {op.provider} is missing there{here}. Give it to that process and start it "
        "again, or run `forbear worker` where the key is set."
    )


async def _by_processes(store: Store, op: Operation, now: int, contracts: Contracts) -> str:
    """Whether anybody alive goes on with it."""
    stuck = await obstacle(store, op, contracts)
    if stuck is not None:
        return stuck
    living = await senders(store)
    able = [process for process in living if op.binding in process.bindings]
    if op.lease_owner is not None:
        return "" if store.liveness.alive(op.lease_owner) else "Another takes over within seconds."
    first = f"Process {able[0].pid} ({able[0].role})"
    if op.next_at is not None and now - op.next_at > 15_000:
        return f"{first} could run it and should have by now."
    return f"{first} goes on with it."
