"""What an agent can do here: the listing, each action in detail, and the call as it should be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forbear.rules.contract import Action, Call, Contract, Job, Scope
from forbear.rules.escalations import length
from forbear.rules.model import Refusal, RequestClass
from forbear.tools import refusals, samples
from forbear.tools.arguments import written
from forbear.tools.book import Book
from forbear.tools.scopes import in_words
from forbear.tools.untrusted import clip

DETAILED = 8
"""At most so many actions of one provider are listed in full; more need a name or a query."""

DAY = 86_400_000
"""Milliseconds."""

Data = dict[str, Any]


# --- listing --------------------------------------------------------------------------------


def listing(book: Book, *, query: str | None, cursor: str | None, limit: int) -> Data:
    """One line per action, sorted by name; the contracts that do not load with file and line.

    `next_cursor` is there if more follow; it stays good when contracts come and go.
    """
    found = [
        (f"{provider}.{action.name}", contract, action)
        for provider, contract in sorted(book.contracts().items())
        for action in _actions(contract)
        if _matches(query, contract, action)
    ]
    found.sort(key=lambda one: one[0])
    following = [one for one in found if cursor is None or one[0] > cursor]
    answer: Data = {
        "actions": [_line(book, contract, action) for _, contract, action in following[:limit]]
    }
    if len(following) > limit:
        answer["next_cursor"] = following[limit - 1][0]
    broken = _broken(book)
    if broken:
        answer["broken_contracts"] = broken
    if not found and query is not None:
        answer["advice"] = "Nothing matches the query; call list_actions() without it."
    elif not found:
        answer["advice"] = "There is no contract yet. Tell the user to run `forbear init`."
    return answer


def _actions(contract: Contract) -> Iterator[Action]:
    yield from contract.jobs.values()
    yield from contract.calls.values()


def _matches(query: str | None, contract: Contract, action: Action) -> bool:
    """Whether every word of the query occurs somewhere in what describes the action."""
    if query is None:
        return True
    described = " ".join(
        (contract.provider, contract.title, action.name, action.title, action.description)
    ).casefold()
    return all(word in described for word in query.casefold().split())


def _broken(book: Book) -> list[Data]:
    return [
        {
            "provider": provider,
            "error": clip(str(errors[0]), 300),
            "errors": len(errors),
            "fix": "Tell the user to run `forbear contract check` in a terminal.",
        }
        for provider, errors in sorted(book.errors().items())
        if errors
    ]


def _line(book: Book, contract: Contract, action: Action) -> Data:
    line: Data = {
        "provider": contract.provider,
        "name": action.name,
        "kind": _kind(action),
        "tool": tool_of(action),
        "title": clip(action.title, 120),
    }
    note = _not_ready(book, contract, action)
    return line | ({"ready": True} if note is None else {"ready": False, "note": note})


def _kind(action: Action) -> str:
    return "job" if isinstance(action, Job) else "call"


def tool_of(action: Action) -> str:
    """The tool that runs an action: by kind, and a call by its class."""
    if isinstance(action, Job):
        return "submit_job"
    return "read_api" if _reads(action) else "write_api"


def _reads(action: Action) -> bool:
    return action.send.request_class is RequestClass.READ


def _not_ready(book: Book, contract: Contract, action: Action) -> str | None:
    """Why an action cannot be run now, or None."""
    holding = book.holding(contract.provider, action.name)
    if holding is None or holding.credential is None:
        return "No usable key: tell the user to run `forbear doctor`."
    return None


# --- details --------------------------------------------------------------------------------


def details(
    book: Book, contract: Contract, *, action: str | None, query: str | None
) -> Data | Refusal:
    """Schema, limits, approval and a complete example call of one provider's actions."""
    if action is not None:
        named = contract.action(action)
        if named is None:
            return _unknown(contract, action)
        return {"actions": [_detail(book, contract, named)]}
    found = [one for one in _actions(contract) if _matches(query, contract, one)]
    if len(found) > DETAILED:
        return {
            "actions": [_line(book, contract, one) for one in found],
            "advice": f'Call list_actions(provider="{contract.provider}", action="…") with one '
            "of these names for its schema and an example.",
        }
    if not found:
        known = ", ".join(one.name for one in _actions(contract))
        return {"actions": [], "advice": f"Nothing matches the query; there are: {known}."}
    return {"actions": [_detail(book, contract, one) for one in found]}


def described(book: Book, contract: Contract, standing: Sequence[Mapping[str, Any]]) -> Data:
    """A whole contract in words for an agent; nothing in it says where a key comes from.

    `standing` is what is known of each shared limit, as `scopes.known` tells it.
    """
    whole: Data = {
        "provider": contract.provider,
        "title": clip(contract.title, 120),
        "account": contract.account.get("id", "default"),
        "address": contract.base_url,
        "docs": contract.docs,
        "checked": contract.checked,
        "limits": [_limit(contract, scope, standing) for scope in contract.scopes],
        "kept_days": contract.retention.payloads // DAY,
        "actions": [_detail(book, contract, action) for action in _actions(contract)],
    }
    return {name: value for name, value in whole.items() if value is not None}


def _limit(contract: Contract, scope: Scope, standing: Sequence[Mapping[str, Any]]) -> Data:
    """A shared limit, and how it stands wherever it was used."""
    prefix, suffix = f"{contract.provider}/", f"/{scope.name}"
    now = [one for one in standing if one["scope"].startswith(prefix)]
    requests, span = scope.rate
    return {
        "name": scope.name,
        "shared_per": scope.per,
        "actions": list(scope.actions),
        "rate": f"{requests} requests in {length(span)}",
        "at_once": scope.max_concurrent_requests,
        "may_wait": scope.max_delayed_requests,
        "now": {one["scope"]: in_words(one) for one in now if one["scope"].endswith(suffix)},
    }


def _detail(book: Book, contract: Contract, action: Action) -> Data:
    detail = _line(book, contract, action)
    detail |= {
        "description": clip(action.description, 500),
        "account": contract.account.get("id", "default"),
        "request_class": str(action.send.request_class),
        "input": dict(action.input),
        "approval": action.send.approval.mode,
    }
    if not _reads(action):
        detail |= _write(action)
    match action:
        case Job():
            detail |= _job(action)
        case Call():
            detail |= _call_bounds(action)
        case _:
            pass
    arguments = {**_named(contract, action), "arguments": samples.of(action.input)}
    if not _reads(action):
        arguments["purpose"] = "<what this is for>"
    arguments["task"] = "<one name for your whole assignment>"
    detail["example"] = {"tool": tool_of(action), "arguments": arguments}
    return {name: value for name, value in detail.items() if value not in (None, "")}


def _write(action: Action) -> Data:
    """What is done about a repeated request, and about one whose answer is lost."""
    return {
        "repeat": {
            "policy": action.repeat,
            "window_seconds": action.repeat_window // 1_000,
        },
        "key": action.idempotency is not None,
        "lookup": action.lookup is not None,
    }


def _call_bounds(call: Call) -> Data:
    limits: Data = {"deadline_seconds": call.deadline // 1_000}
    if call.page is not None:
        limits["max_pages"] = call.page.max_pages
    if call.walk_limit is not None:
        limits["walk_limit"] = call.walk_limit
    return {"limits": limits, "instead_of_many": call.instead_of_many}


def _job(job: Job) -> Data:
    limits = job.limits
    stated: Data = {
        "usual_seconds": None if limits.usual is None else limits.usual // 1_000,
        "deadline_seconds": limits.deadline // 1_000,
        "max_status_requests": limits.max_status_requests,
        "useful_for_seconds": None if limits.useful_for is None else limits.useful_for // 1_000,
    }
    times = limits.extension.times
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    told: Data = {
        "limits": {name: value for name, value in stated.items() if value is not None},
        "budget": f"{limits.max_status_requests} status requests until the deadline of "
        f"{length(limits.deadline)}; a person may extend it {often}",
        "results": list(job.results),
    }
    if job.cancel is not None:
        told["cancel"] = {"approval": job.cancel.approval.mode}
        if job.cancel.consequence is not None:
            told["cancel"]["consequence"] = clip(job.cancel.consequence, 200)
    else:
        told["cancel"] = "The provider documents no cancel."
    return told


# --- refusals -------------------------------------------------------------------------------


def no_such_job(
    contract: Contract, job: str, arguments: Mapping[str, Any] | None = None
) -> Refusal:
    """The refusal for a name that is no job: the right tool for a call, else the nearest action."""
    if job in contract.calls:
        return use_other_tool(contract, contract.calls[job], arguments, tool="submit_job")
    return _unknown(contract, job, "submit_job", arguments)


def no_such_call(
    contract: Contract, name: str, tool: str, arguments: Mapping[str, Any] | None = None
) -> Refusal:
    """The refusal for a name that is no call; `tool` is `read_api` or `write_api`."""
    if name in contract.jobs:
        return use_other_tool(contract, contract.jobs[name], arguments, tool=tool)
    return _unknown(contract, name, tool, arguments)


def use_other_tool(
    contract: Contract,
    action: Action,
    arguments: Mapping[str, Any] | None,
    *,
    tool: str | None = None,
) -> Refusal:
    """`use_instead`: the same with the tool that runs `action`.

    `tool` is the one that was called; without it, the other one of `read_api` and `write_api`.
    """
    right = tool_of(action)
    asked = tool or ("write_api" if right == "read_api" else "read_api")
    kind = "a job" if isinstance(action, Job) else "a read" if _reads(action) else "a write"
    named = f"{contract.provider}.{action.name}"
    return refusals.use_other_tool(named, kind, asked, right, _call(contract, action, arguments))


def use_one_call(contract: Contract, call: Call, items: int) -> Refusal:
    """`use_instead`: a walk over single items of `call` is over its limit."""
    instead = contract.action(call.instead_of_many or "")
    return refusals.use_one_call(
        f"{contract.provider}.{call.name}",
        items,
        "a list, search or export" if instead is None else instead.name,
        None if instead is None else _call(contract, instead, None),
    )


def better_call(contract: Contract, action: Action, items: int) -> str | None:
    """Advice from the second item of a walk on: the complete call to use instead."""
    instead = contract.action(action.instead_of_many or "") if isinstance(action, Call) else None
    if instead is None or items < 2:
        return None
    return f"item {items} one by one in 10 minutes; for many use {_call(contract, instead, None)}"


def _unknown(
    contract: Contract,
    name: str,
    tool: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Refusal:
    """The nearest names, and the complete call of the nearest that `tool` runs."""
    actions = {action.name: action for action in _actions(contract)}
    near = nearest(name, list(actions))
    likely = sorted(near, key=lambda one: tool is not None and tool_of(actions[one]) != tool)
    call = _call(contract, actions[likely[0]], arguments) if likely else None
    return refusals.unknown_action(contract.provider, name, near, call)


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known names that a wrong one may mean, the likeliest first."""
    plain = {one.casefold().replace("-", "_"): one for one in known}
    wanted = name.casefold().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(wanted, plain, n=3, cutoff=0.5)
    inside = [one for one in plain if one in wanted or wanted in one]
    return [plain[one] for one in dict.fromkeys((*close, *inside))][:3]


def objections(contract: Contract, action: Action, arguments: Mapping[str, Any]) -> Refusal | None:
    """What the action's schema has against the arguments, with the call as it should be."""
    if samples.fault(action.input) is not None:
        return refusals.contract_error(contract.provider, contract.file)
    found = samples.problems(action.input, arguments)
    if not found:
        return None
    return refusals.invalid_arguments(found, _call(contract, action, arguments))


def _call(contract: Contract, action: Action, arguments: Mapping[str, Any] | None) -> str:
    """The whole call as an agent writes it, with the arguments that were meant, else a sample."""
    kept: tuple[str, ...] = ()
    if arguments is None or samples.fault(action.input) is not None:
        meant = samples.of(action.input)
    else:
        meant = samples.mended(action.input, arguments)
        kept = ("arguments",) if meant == dict(arguments) else ()
    return written(tool_of(action), {**_named(contract, action), "arguments": meant}, kept)


def _named(contract: Contract, action: Action) -> Data:
    return {"provider": contract.provider, _kind(action): action.name}
