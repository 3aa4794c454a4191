"""The words of each refusal: what is wrong, and the one thing to do instead.

A refusal stored nothing and sent nothing. Each `next_step` has at most `texts.LIMIT` characters for
any names, and names only tools that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from forbear.rules.model import Code, Kind, Option, Refusal, State
from forbear.rules.taskbudget import OPEN_OPERATIONS
from forbear.storage.errors import StoreError, StoreTooNew
from forbear.tools.phrases import LIMIT, call_text
from forbear.tools.times import clock_time
from forbear.tools.untrusted import clip, word


def unknown_operation(operation_id: str) -> Refusal:
    return _refuse(
        Code.UNKNOWN_OPERATION,
        f"No operation {clip(operation_id, 64)}.",
        "Call operation_status() to find it. Do not submit again before that.",
    )


def unknown_provider(provider: str, known: Sequence[str]) -> Refusal:
    """The agent named an API that no contract describes."""
    names = ", ".join(clip(name, 32) for name in known[:10]) or "none yet"
    return _refuse(
        Code.UNKNOWN_ACTION,
        f"Forbear does not manage {clip(provider, 32)}; known: {names}.",
        "Call list_actions() to see what exists. Do not reach this API through another provider.",
    )


def unknown_action(provider: str, name: str, nearest: Sequence[str], call: str | None) -> Refusal:
    """`call` is the complete call with the nearest action, if one is near."""
    listed = ", ".join(clip(near, 32) for near in nearest[:3])
    hint = f"; nearest: {listed}" if listed else ""
    listing = f'list_actions(provider="{clip(provider, 32)}")'
    return _refuse(
        Code.UNKNOWN_ACTION,
        f"{clip(provider, 32)} has no {clip(name, 32)}{hint}.",
        f"Call {call} if that is meant." if call is not None else f"Call {listing}.",
        otherwise=f"Call {listing}.",
    )


def use_other_tool(action: str, is_a: str, tool: str, right: str, call: str) -> Refusal:
    """`action` (`provider.name`) is no matter of `tool`; `call` is the whole call with `right`."""
    return _refuse(
        Code.USE_INSTEAD,
        f"{clip(action, 65)} is {is_a}, which {tool} does not do. Nothing was stored or sent.",
        f"Call {call} instead. Do not try {tool} for it again.",
        otherwise=f"Call {right} with the same provider, name and arguments. Do not try {tool} "
        "for it again.",
    )


def use_one_call(action: str, items: int, instead: str, call: str | None) -> Refusal:
    """A walk over single items is over its limit; `call` does the same with action `instead`."""
    named = clip(instead, 32)
    return _refuse(
        Code.USE_INSTEAD,
        f"{clip(action, 65)} was asked for {items} items one by one; more are refused. Nothing "
        "was sent.",
        f"Call {call} for all of them. Do not go on item by item."
        if call is not None
        else f"Use {named} for all of them. Do not go on item by item.",
        otherwise=f"Use {named} for all of them. Do not go on item by item.",
    )


def invalid_arguments(problems: Sequence[str], call: str | None) -> Refusal:
    """`problems` are `/pointer: what is wrong`; `call` is the whole call, mended, if it can be."""
    shown = [clip(problem, 200) for problem in problems[:5]]
    if len(problems) > 5:
        shown.append(f"and {len(problems) - 5} more")
    mend = "Mend exactly that and call again with everything else as it was."
    return _refuse(
        Code.INVALID_ARGUMENTS,
        "; ".join(shown),
        mend if call is None else f"Call again exactly so: {call}",
        otherwise=mend,
    )


def unknown_option(operation_id: str, option: str, reason: str) -> Refusal:
    """No option has this name; the nearest is put in its place."""
    near = get_close_matches(option, list(Option), n=1, cutoff=0.4) or [Option.EXTEND]
    arguments = f'operation_id="{clip(operation_id, 64)}", option="{near[0]}"'
    call = f'request_decision({arguments}, reason="{clip(reason, 60)}")'
    return invalid_arguments([f"/option: no option {clip(option, 40)}"], call)


def key_conflict(operation_id: str) -> Refusal:
    return _refuse(
        Code.KEY_CONFLICT,
        f"This idempotency_key belongs to {clip(operation_id, 64)}, which has other arguments.",
        f"Look at {call_text('operation_status', operation_id)}; for a different request leave "
        "idempotency_key out. Do not invent a new key for the same request.",
        operation_id,
    )


def possible_duplicate(
    operation_id: str | None,
    state: State,
    at: int,
    as_of: int,
    kind: Kind = Kind.JOB,
    *,
    keyed: bool = False,
) -> Refusal:
    """`operation_id` is None where the earlier operation belongs to somebody else, of which no more
    than that is told. `keyed`: the contract takes a key of the agent's own for a new one.
    """
    wanted = (
        "If the user wants it twice on purpose, a person must allow it; do not change the key or "
        "the wording to get past this."
    )
    if keyed:
        wanted = (
            "Only if the user wants it once more, as after a change, call again with an "
            "idempotency_key of your own."
        )
    if operation_id is None:
        return _refuse(
            Code.POSSIBLE_DUPLICATE,
            "The same was asked for by somebody else on this store. Nothing was sent now.",
            f"Tell the user and end your turn. {wanted}",
        )
    done = state is State.SUCCEEDED and kind is Kind.JOB
    tool = "fetch_result" if done else "check_status"
    return _refuse(
        Code.POSSIBLE_DUPLICATE,
        f"The same was asked for at {clock_time(at, as_of)}: {clip(operation_id, 64)}, {state}. "
        "Nothing was sent now.",
        f"Use that one: {call_text(tool, operation_id)}. {wanted}",
        operation_id,
    )


def not_ready(operation_id: str) -> Refusal:
    return _refuse(
        Code.NOT_READY,
        f"{clip(operation_id, 64)} has not succeeded yet.",
        f"Call {call_text('check_status', operation_id)}; it waits for you. Do not go on with "
        "anything that needs it.",
        operation_id,
    )


def nothing_new(
    operation_id: str, waits: int, minutes: int, next_check_at: int | None, as_of: int
) -> Refusal:
    later = f"; next check {clock_time(next_check_at, as_of)}" if next_check_at is not None else ""
    return _refuse(
        Code.NOTHING_NEW,
        f"Asked {waits} times in {minutes} min and nothing changed{later}.",
        "Stop calling: give the user the operation_id and end your turn. Forbear goes on by "
        "itself; do not submit it again.",
        operation_id,
    )


def not_allowed_in_state(
    tool: str, operation_id: str, state: State, allowed: Sequence[str]
) -> Refusal:
    """`allowed` are the tools that would do something now."""
    call = call_text(allowed[0] if allowed else "operation_status", operation_id)
    others = f" (or {', '.join(allowed[1:4])})" if len(allowed) > 1 else ""
    return _refuse(
        Code.NOT_ALLOWED_IN_STATE,
        f"{tool} is not possible in state {state}.",
        f"Call {call}{others}. Do not try {tool} again before the state changed.",
        operation_id,
    )


def no_such_result(operation_id: str, name: str, there: Sequence[str]) -> Refusal:
    """The job has other results, `there`: its contract does not know this one, or the provider's
    answers had no address for it.
    """
    told = f"/name: this job has no result {clip(name, 64)}; it has {', '.join(there)}"
    return invalid_arguments([told], call_text("fetch_result", operation_id, name=there[0]))


def no_longer_kept(operation_id: str, since: int, as_of: int) -> Refusal:
    return _refuse(
        Code.NOT_ALLOWED_IN_STATE,
        f"What was sent and answered is no longer kept since {clock_time(since, as_of)}.",
        "Tell the user that the result is gone, and end your turn; only the user can want the job "
        "done anew. Do not submit it again by yourself.",
        operation_id,
    )


def not_known(operation_id: str) -> Refusal:
    return _refuse(
        Code.NOT_ALLOWED_IN_STATE,
        "What was asked for is not known any more: it is no longer kept, or its key is lost.",
        "Tell the user, and end your turn; only the user can want it done anew. Do not submit it "
        "again by yourself.",
        operation_id,
    )


def scope_full(name: str, waiting: int, until: int | None, as_of: int) -> Refusal:
    """`name` is the key of the scope whose waiting requests have reached their limit; `until` is
    about when the first of them leaves."""
    when = clock_time(until, as_of) if until is not None else None
    return _refuse(
        Code.SCOPE_FULL,
        f"{clip(name, 65)} already has {waiting} requests waiting"
        f"{f', the first until about {when}' if when else ''}. Not stored, not sent.",
        f"Do other work and try once{f' after {when}' if when else ' later'}, or end your turn. "
        "Every other route, key or tool shares this limit.",
    )


def task_full(task: str, what: str, used: int, most: int) -> Refusal:
    """The task's own budget is used up; `what` is `seconds of waiting`, …"""
    if what == OPEN_OPERATIONS:
        return _refuse(
            Code.SCOPE_FULL,
            f"Task {clip(task, 64)} has {used} of at most {most} {what}. Not stored, not sent.",
            f'Look at operation_status(task="{clip(task, 64)}") and ask again once one of them is '
            "over. Do not go on under another task name.",
        )
    return _refuse(
        Code.SCOPE_FULL,
        f"Task {clip(task, 64)} has used {used} of its {most} {what}. Not stored, not sent.",
        "Tell the user that the task's budget is used up, and end your turn. Do not go on under "
        "another task name.",
    )


def circuit_open(times: int, code: str | None, until: int, as_of: int) -> Refusal:
    """The failure breaker: the same request failed the same way `times` times."""
    known = word(code)
    return _refuse(
        Code.CIRCUIT_OPEN,
        f"The same request failed {times} times{f' with {known}' if known else ''}; it is blocked "
        f"until {clock_time(until, as_of)}, also when reworded.",
        "Change what the error names, or report it to the user and end your turn. Do not repeat "
        "the same request.",
    )


def paused(name: str) -> Refusal:
    return _refuse(
        Code.PAUSED,
        f"A person has paused {clip(name, 32)}. Nothing was stored, nothing was sent.",
        "Tell the user that `forbear resume` ends the pause, then end your turn. Do not end it "
        "yourself or go another way.",
    )


def copied() -> Refusal:
    return _refuse(
        Code.PAUSED,
        "This store is a copy of another one and takes no new work. Nothing was stored, nothing "
        "was sent.",
        "Tell the user: `forbear adopt`, run by a person, makes it the one that goes on. Then end "
        "your turn. Do not adopt it yourself or go another way.",
    )


def task_ended(task: str, at: int, as_of: int) -> Refusal:
    return _refuse(
        Code.TASK_ENDED,
        f"Task {clip(task, 64)} was ended at {clock_time(at, as_of)}.",
        "End your turn; only if the user wants more work, call again with a new task name.",
    )


def egress_refused(host: str) -> Refusal:
    return _refuse(
        Code.EGRESS_REFUSED,
        f"The contract does not allow {clip(host, 64)}.",
        "Report it to the user and end your turn. Do not open the address yourself.",
    )


def credential_missing(provider: str) -> Refusal:
    return _refuse(
        Code.CREDENTIAL_MISSING,
        f"There is no usable key for {clip(provider, 32)}.",
        "Tell the user to run `forbear doctor` in a terminal and end your turn. Never ask for the "
        "key here.",
    )


def contract_error(provider: str, place: str) -> Refusal:
    """`place` is `file:line`."""
    return _refuse(
        Code.CONTRACT_ERROR,
        f"The contract of {clip(provider, 32)} has an error ({clip(place, 100)}).",
        "Tell the user to run `forbear contract check` in a terminal. Other providers work; do "
        "not call this one another way.",
    )


def _store_too_new() -> Refusal:
    return _refuse(
        Code.STORE_UNAVAILABLE,
        "A newer forbear upgraded the store, and this server is of an older one. Nothing was "
        "stored, nothing was sent.",
        "Tell the user to restart this server (close and reopen the client), then end your turn. "
        "Calling again before that changes nothing.",
    )


def store_unavailable(error: StoreError | None = None) -> Refusal:
    if isinstance(error, StoreTooNew):
        return _store_too_new()
    return _refuse(
        Code.STORE_UNAVAILABLE,
        "The store cannot be used. Nothing was stored, so nothing was sent.",
        "Tell the user to run `forbear doctor` in a terminal and end your turn. It is safe to "
        "call this once more later, not at once.",
    )


def _refuse(
    code: Code,
    message: str,
    next_step: str,
    operation_id: str | None = None,
    *,
    otherwise: str | None = None,
) -> Refusal:
    """`otherwise` stands in for a next step that names would make too long."""
    if otherwise is not None and len(next_step) > LIMIT:
        next_step = otherwise
    return Refusal(code, message, next_step, operation_id)
