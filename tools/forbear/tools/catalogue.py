"""What an agent can do here: the listing, each action in detail, and the call as it should be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forbear.rules.contract import Action, Call, Contract, Job
from forbear.rules.escalations import length
from forbear.rules.model import Code, Refusal
from forbear.tools import refusals, samples
from forbear.tools.arguments import written
from forbear.tools.book import Book
from forbear.tools.untrusted import clip

DETAILED = 8
"""At most so many actions of one provider are listed in full; more need a name or a query."""

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
        "title": clip(action.title, 120),
    }
    note = _not_ready(book, contract, action)
    return line | ({"ready": True} if note is None else {"ready": False, "note": note})


def _kind(action: Action) -> str:
    return "job" if isinstance(action, Job) else "call"


def _not_ready(book: Book, contract: Contract, action: Action) -> str | None:
    """Why an action cannot be run now, or None."""
    if not isinstance(action, Job):
        return "Calls are not carried out by this version."
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


def _detail(book: Book, contract: Contract, action: Action) -> Data:
    detail = _line(book, contract, action)
    detail |= {
        "description": clip(action.description, 500),
        "account": contract.account.get("id", "default"),
        "request_class": str(action.send.request_class),
        "input": dict(action.input),
        "approval": action.send.approval.mode,
        "repeat": {
            "policy": action.repeat,
            "window_seconds": action.repeat_window // 1_000,
        },
    }
    match action:
        case Job():
            detail |= _job(action)
            detail["example"] = {
                "tool": "submit_job",
                "arguments": {
                    "provider": contract.provider,
                    "job": action.name,
                    "arguments": samples.of(action.input),
                    "purpose": "<what this is for>",
                    "task": "<one name for your whole assignment>",
                },
            }
        case Call():
            detail["limits"] = {"deadline_seconds": action.deadline // 1_000}
        case _:
            pass
    return {name: value for name, value in detail.items() if value not in (None, "")}


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


def no_such_job(contract: Contract, job: str) -> Refusal:
    """The refusal for a name that is no job: a call says what it is, else the nearest jobs."""
    if job in contract.calls:
        return Refusal(
            Code.UNKNOWN_ACTION,
            f"{clip(contract.provider, 32)}.{clip(job, 32)} is a call, not a job; this version "
            "carries out jobs only.",
            "Tell the user. Do not make the call another way.",
        )
    return _unknown(contract, job)


def _unknown(contract: Contract, name: str) -> Refusal:
    near = nearest(name, [action.name for action in _actions(contract)])
    job = next((contract.jobs[one] for one in near if one in contract.jobs), None)
    call = None if job is None else _call(contract, job, samples.of(job.input))
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
    return refusals.invalid_arguments(
        found, _call(contract, action, samples.mended(action.input, arguments))
    )


def _call(contract: Contract, action: Action, arguments: Mapping[str, Any]) -> str:
    """The whole call as an agent writes it."""
    return written(
        "submit_job",
        {"provider": contract.provider, "job": action.name, "arguments": dict(arguments)},
    )
