"""What a contract leaves open: the report that is made whenever one is loaded.

Nothing here is wrong; each finding says what will happen at run time, and what would change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from urllib.parse import urlsplit

from forbear.rules.backoff import first_delay, poll_delay
from forbear.rules.contract import (
    Action,
    Call,
    Contract,
    Job,
    Means,
    Placeholder,
    Request,
    Template,
    Tree,
)
from forbear.rules.model import JobClass, RequestClass
from forbear.rules.reading import source_name
from forbear.rules.toml_lines import Path
from forbear.rules.values import elements, members

STALE_AFTER = 180
"""Days after which the facts of a contract should be checked again."""

RUNS = 200
"""Simulated schedules behind a statement about coverage."""

ENOUGH = 0.9
"""Share of the deadline that the middle of the simulated schedules has to reach."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `code` is stable; `warning` marks what should be mended."""

    code: str
    where: str
    text: str
    fix: str
    warning: bool = True

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.text} -> {self.fix}"
            if self.fix
            else (f"{self.where}: {self.text}")
        )


def report(contract: Contract, today: date, stated: Collection[Path] = ()) -> tuple[Finding, ...]:
    """All findings of a contract, warnings first; each kind for the whole file, then by action.

    `stated` are the keys of the file (`key_lines`): with them, what was left out is told apart from
    what was written.
    """
    found = [
        *_of_file(contract, today),
        *_of_silence(contract, stated),
        *_of_layers(contract),
        *(
            finding
            for name, job in contract.jobs.items()
            for finding in _of_job(contract, f"jobs.{name}", job)
        ),
        *(
            finding
            for name, call in contract.calls.items()
            for finding in _of_call(f"calls.{name}", call)
        ),
    ]
    return tuple(sorted(found, key=lambda finding: not finding.warning))


# --- what a budget covers -------------------------------------------------------------------


def covered(job: Job, uniforms: Iterator[float]) -> int:
    """Milliseconds from acceptance to the last check that the request budget allows.

    The schedule of behaviour.md, section 3, with answers that always parse and never hint. At most
    the deadline: from there the last check is planned at its end.
    """
    limits, requests = job.limits, job.limits.max_status_requests
    elapsed, used = first_delay(job.backoff, next(uniforms)), 1
    while used < requests and elapsed < limits.deadline:
        delay, _ = poll_delay(
            job.backoff, used, limits.deadline - elapsed, requests - used, next(uniforms)
        )
        elapsed += delay
        used += 1
    return min(elapsed, limits.deadline)


def coverage(job: Job) -> tuple[int, int, int]:
    """What the budget covers in 5, 50 and 95 of 100 runs, ms; the same on every call."""
    found = sorted(covered(job, _uniforms(run)) for run in range(RUNS))
    return found[RUNS // 20], found[RUNS // 2], found[-RUNS // 20]


def _uniforms(seed: int) -> Iterator[float]:
    """Numbers in [0, 1) that look random and never change (SplitMix64)."""
    state = seed * 0x9E3779B97F4A7C15 + 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        yield ((mixed ^ (mixed >> 31)) >> 11) / 2**53


def duration(ms: int) -> str:
    """A time span in the unit a person would choose: `45 s`, `38 m`, `2 h 30 m`, `7 d`."""
    seconds = round(ms / 1_000)
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


# --- findings -------------------------------------------------------------------------------


def _of_file(contract: Contract, today: date) -> Iterator[Finding]:
    if contract.account["id"] == "default":
        yield Finding(
            "default_account",
            "account",
            'the account is called "default", so two accounts of this provider look like one',
            'add [account] id = "…"',
        )
    if contract.checked is None:
        yield Finding(
            "unchecked",
            "checked",
            "nothing says when these facts were true",
            f"add checked = {today.isoformat()}, if they are today",
        )
    elif (age := (today - date.fromisoformat(contract.checked)).days) > STALE_AFTER:
        yield Finding(
            "stale",
            "checked",
            f"the facts were checked {age} days ago",
            "compare them with the provider's documentation and set checked",
        )
    unruled = [
        *(name for name, job in contract.jobs.items() if not _has_rule(job, "status", 429)),
        *(name for name, call in contract.calls.items() if not _has_rule(call, "call", 429)),
    ]
    if unruled:
        yield Finding(
            "no_rule_429",
            "rules",
            f"no rule for 429 ({', '.join(unruled)}): it is a rate limit, never an exhausted quota",
            'add a rule with http = 429 and means = "quota_exhausted" if quotas answer so',
            warning=False,
        )


def _of_layers(contract: Contract) -> Iterator[Finding]:
    """What a declared layer that sends again costs (requirement R33)."""
    if not contract.resends_below:
        return
    times = 1 + contract.resends_below
    left = ", ".join(
        f"{known} {contract.attempts(known)} of {limits.max_attempts}"
        for known, limits in contract.classes.items()
    )
    yield Finding(
        "resends_below",
        "resends_below",
        f"one attempt may reach the provider {times} times and counts as {times}: {left}",
        "remove the key when no layer sends again",
        warning=False,
    )
    for where, request in _unkeyed_writes(contract):
        yield Finding(
            "write_sent_again_below",
            where,
            f"a write without a key, and the layer below may send it {times} times",
            f"stop that layer from sending {request.method} again"
            + (
                ", or add [….idempotency] if the provider takes keys"
                if request.name in ("submit", "call")
                else ""
            ),
        )


def _unkeyed_writes(contract: Contract) -> Iterator[tuple[str, Request]]:
    """Writes that the provider cannot tell from their repetition, each with its place."""
    for name, job in contract.jobs.items():
        requests = [job.status, *([job.cancel] if job.cancel is not None else [])]
        requests += [] if job.idempotency is not None else [job.send]
        for request in (*requests, *job.results.values()):
            if request.request_class is RequestClass.UNCERTAIN_WRITE:
                yield f"jobs.{name}.{request.name}", request
    for name, call in contract.calls.items():
        unkeyed = call.idempotency is None
        if unkeyed and call.send.request_class is RequestClass.UNCERTAIN_WRITE:
            yield f"calls.{name}", call.send


def _of_silence(contract: Contract, stated: Collection[Path]) -> Iterator[Finding]:
    """What a file leaves out, where writing it may have been forgotten."""
    if not stated or ("use",) in stated:
        return
    if ("auth",) not in stated:
        yield Finding(
            "no_auth",
            "auth",
            "nothing says how to sign in, so no key is sent",
            'add auth = "bearer env:NAME", or auth = "none" if that is meant',
            warning=False,
        )
    for group, actions in (("jobs", contract.jobs), ("calls", contract.calls)):
        for name, action in actions.items():
            if (group, name, "input") in stated or action.label is None:
                continue
            used = _arguments_used(action)
            for only in sorted(action.label.names - used):
                if only.startswith("arg."):
                    yield Finding(
                        "label_only",
                        f"{group}.{name}.label",
                        f"{{{only}}} is in the label only, so it is asked for and sent nowhere",
                        "write the name of an argument that is sent"
                        + (f": {', '.join(sorted(used))}" if used else ""),
                    )


def _arguments_used(action: Action) -> frozenset[str]:
    """The `arg.x` of everything that is sent or compared."""
    requests = [action.send]
    if isinstance(action, Job):
        requests += [action.status, *action.results.values()]
        requests += [action.cancel] if action.cancel is not None else []
    matches = [rule.match for rule in action.rules if rule.match is not None]
    if action.lookup is not None:
        requests.append(action.lookup.request)
        matches.append(action.lookup.match)
    conditions = (condition.template for match in matches for _, condition in match.terms)
    return frozenset(
        name
        for template in (*(t for one in requests for t in _templates(one)), *conditions)
        if template is not None
        for name in template.names
        if name.startswith("arg.")
    )


def _templates(request: Request) -> Iterator[Template]:
    yield from (address for address in (request.path, request.url) if address is not None)
    for pairs in (request.query, request.headers, request.form, request.merge, request.echo):
        yield from (template for _, template in pairs)
    yield from _in_tree(request.body)
    free = request.approval.free
    if free is not None:
        yield Template("", (Placeholder(f"arg.{free['arg']}"),))


def _in_tree(tree: Tree) -> Iterator[Template]:
    if isinstance(tree, Template):
        yield tree
    for inner in (members(tree) or {}).values():
        yield from _in_tree(inner)
    for inner in elements(tree) or ():
        yield from _in_tree(inner)


def _of_job(contract: Contract, where: str, job: Job) -> Iterator[Finding]:
    yield _covers(where, job)
    yield from _of_schedule(where, job)
    if job.expiry.kept is not None and job.limits.deadline > job.expiry.kept:
        yield Finding(
            "deadline_outlives_retention",
            f"{where}.limits.deadline",
            f"the deadline of {duration(job.limits.deadline)} outlives the provider's retention of "
            f"{duration(job.expiry.kept)}",
            "shorten the deadline",
        )
    yield from _of_lost_answer(where, job)
    if not _has_rule(job, "status", 404):
        yield Finding(
            "no_rule_404",
            f"{where}.status",
            "no rule for 404: it is not yet visible for 30 s after submission, then not found",
            "add a rule with http = 404 if the provider means something else",
            warning=False,
        )
    if job.status.evidence is None:
        yield Finding(
            "no_evidence",
            f"{where}.status",
            f"no page is named that shows that asking for the state is {job.status.effect.value!r}",
            'add evidence = "https://…" to the status',
        )
    if any(set(row.words) == {"*"} for row in job.states.rows):
        yield Finding(
            "unknown_words_wait",
            f"{where}.states.waiting",
            "every unknown word is waited for, until deadline or budget ends it",
            "name the words if the provider lists them",
            warning=False,
        )
    for name, result in job.results.items():
        place = f"{where}.{_result_key(job, name)}"
        yield from _of_result(contract, place, job, result)
        yield from _of_need(where, place, job, result)


_GOES_ON = frozenset({Means.NOT_YET_VISIBLE, Means.RETRY_LATER, Means.IN_FLIGHT})


def _of_schedule(where: str, job: Job) -> Iterator[Finding]:
    if job.limits.deadline <= job.backoff.rate_limited:
        yield Finding(
            "deadline_within_one_429",
            f"{where}.limits.deadline",
            f"one 429 without a hint waits {duration(job.backoff.rate_limited)}, which is all of "
            f"the deadline of {duration(job.limits.deadline)}",
            "raise the deadline, or lower backoff.rate_limited",
        )
    waits = any(row.means is JobClass.WAITING for row in job.states.rows)
    if not waits and not any(rule.means in _GOES_ON for rule in job.rules):
        yield Finding(
            "nothing_waits",
            f"{where}.states.waiting",
            "no word is waited for, so the first check must bring the end or it asks a person",
            'name the words of work in progress: waiting = ["…"]',
        )


def _result_key(job: Job, name: str) -> str:
    return "result" if set(job.results) == {"result"} else f"results.{name}"


def _of_call(where: str, call: Call) -> Iterator[Finding]:
    yield from _of_lost_answer(where, call)


def _covers(where: str, job: Job) -> Finding:
    least, middle, most = coverage(job)
    deadline = job.limits.deadline
    short = middle < ENOUGH * deadline
    ends = dict.fromkeys((duration(least), duration(most)))
    span = " to ".join(ends)
    return Finding(
        "budget_short" if short else "budget",
        f"{where}.limits",
        f"{job.limits.max_status_requests} status requests cover {span} of the deadline of "
        f"{duration(deadline)}",
        "raise max_status_requests, backoff.base or backoff.first" if short else "",
        warning=short,
    )


def _of_lost_answer(where: str, action: Action) -> Iterator[Finding]:
    """A write that nothing can find again and nothing makes repeatable (requirement R15)."""
    if (
        action.send.request_class is RequestClass.UNCERTAIN_WRITE
        and action.idempotency is None
        and action.lookup is None
    ):
        yield Finding(
            "lost_answer_needs_a_person",
            where,
            f"a lost answer of {action.name} ends with a person",
            f"add [{where}.lookup] or [{where}.idempotency] if the provider has either",
        )


def _has_rule(action: Action, request: str, status: int) -> bool:
    return any(
        rule.http is not None and status in rule.http and (rule.on is None or request in rule.on)
        for rule in action.rules
    )


def _of_need(where: str, place: str, job: Job, result: Request) -> Iterator[Finding]:
    """Fields of the success answer that a result takes, and that success does not require."""
    required = {one.at for one in (*job.success.require, *job.success.require_any)}
    used = frozenset(name for template in _templates(result) for name in template.names)
    for name, source in job.success.take:
        if f"result.{name}" in used and source not in required and "succeeded" in result.when:
            at = source_name(source)
            yield Finding(
                "result_not_required",
                f"{where}.success.require",
                f"{place} needs {{result.{name}}} from {at}, and a success without it counts",
                f'add require = {{ "{at}" = "present" }} to [{where}.success]',
            )


def _of_result(contract: Contract, where: str, job: Job, result: Request) -> Iterator[Finding]:
    """Whether the host of a result can be reached at all."""
    if result.url is None:
        return
    allowed = {*contract.allow_hosts, *result.hosts}
    first = result.url.parts[0] if result.url.parts else ""
    if not isinstance(first, str):
        if not allowed:
            # Where the state is asked at the same address, that host is no question any more.
            if result.url != job.status.url:
                yield Finding(
                    "result_host",
                    where,
                    "the address comes out of an answer, and only base_url's own host is allowed",
                    'add hosts = ["files.…"] if results are kept elsewhere',
                )
            if contract.auth.scheme != "none" and not result.authenticate:
                yield _without_key(where, job, first.name)
        return
    stated, base = urlsplit(first), urlsplit(contract.base_url)
    if stated.netloc.lower() != base.netloc.lower() and not any(
        _allows(host, stated.netloc.lower()) for host in allowed
    ):
        yield Finding(
            "result_host_refused",
            where,
            f"the host {stated.netloc} is not allowed, so this result can never be fetched",
            f'add hosts = ["{stated.netloc}"]',
        )


def _without_key(where: str, job: Job, name: str) -> Finding:
    """How the key goes with a result at an address out of an answer, in lines that load."""
    taken, path = name.removeprefix("result."), dict(job.success.take).get(name[7:])
    lines = [f'{where.rpartition(".")[2]} = {{ method = "GET", url = "{{{name}}}", auth = true }}']
    if name.startswith("result.") and path is not None:
        at = source_name(path)
        lines.append(
            f'success = {{ take = {{ {taken} = "{at}" }}, require = {{ "{at}" = "url" }} }}'
        )
    return Finding(
        "result_without_key",
        where,
        "the key is not sent to an address out of an answer, as signed addresses need none",
        f"if this one needs the key, write instead: {'; and: '.join(lines)}",
    )


def _allows(pattern: str, host: str) -> bool:
    """Whether an entry of a host list covers a host; `*.` stands for one label."""
    if pattern.startswith("*."):
        return host.partition(".")[2] == pattern[2:]
    return host.removesuffix(":443") == pattern.removesuffix(":443")
