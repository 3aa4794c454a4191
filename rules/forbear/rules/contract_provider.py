"""The sections of a contract that all its actions share, and the contract itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from forbear.rules.contract import (
    ACCOUNT_CHECK,
    CLASSES,
    Action,
    Call,
    ClassLimits,
    Contract,
    Example,
    Job,
    Retention,
    Scope,
    Template,
)
from forbear.rules.contract_actions import DAY, Around, call, job, rules
from forbear.rules.contract_auth import auth, check_carriers, check_hosts
from forbear.rules.contract_forms import Raw
from forbear.rules.contract_keys import (
    CALL,
    EXAMPLE_HEADERS,
    OPERATOR,
    PER,
    RESENDS,
    STATUS_CODE,
)
from forbear.rules.contract_kinds import Fault, Section, is_table, nearest, nested
from forbear.rules.contract_request_terms import (
    BASE_URL,
    CONSOLE,
    HOSTS,
    LINK,
    PLAIN_HEADERS,
    fill_base_url,
)
from forbear.rules.contract_requests import Names, surroundings
from forbear.rules.contract_terms import (
    COUNT,
    DATE,
    DURATION,
    DURATIONS,
    LITERAL,
    NAME,
    NAMED,
    POINTER,
    RATE,
    SHARE,
    SOURCE,
    STATUSES,
    TEXT,
    TEXTS,
    TIMED,
    WAIT,
)
from forbear.rules.model import JobClass, Reason, RequestClass
from forbear.rules.reminders import USUAL
from forbear.rules.replay import FOUND
from forbear.rules.signals import Meaning
from forbear.rules.toml_lines import Path

_EXPECTATIONS = frozenset(
    (FOUND, *(word.value for words in (Meaning, Reason, JobClass) for word in words))
)


def _stem(file: str) -> str:
    """The file's name without folders and without its ending, be it `.toml` or `.sample`."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return name.rpartition(".")[0] or name


def contract(
    section: Section, raw: Raw, file: str, digest: str, line_of: Callable[[Path], int]
) -> Contract:
    """The contract that a read file states; everything wrong with it is in the report."""
    provider = section.get("provider", NAMED, _stem(file))
    if NAME.fullmatch(provider) is None:
        section.place.complain(
            f"has a file name that is no provider name: {provider!r}",
            'add provider = "…" with letters, digits, - and _',
        )
    if not section.has("base_url"):
        section.place.complain("has no base_url", 'add base_url = "https://…"')
    account = _account(section.section("account"))
    authentication = auth(section.section("auth"), account)
    base_url = _base_url(section, account)
    allow_hosts = section.get("allow_hosts", HOSTS, ())
    headers = section.get("headers", PLAIN_HEADERS, ())
    around = Around(
        frozenset(account),
        rules(section.rows("rules")),
        surroundings(base_url, account, authentication, allow_hosts, headers),
        raw.get("rules"),
    )
    _check_rules(section, account)
    jobs = {
        name: job(name, inner, around, _raw(raw, "jobs", name))
        for name, inner in section.sections("jobs").items()
    }
    calls = {
        name: call(name, inner, around, _raw(raw, "calls", name))
        for name, inner in section.sections("calls").items()
    }
    _check_actions(section, jobs, calls)
    for name, one in jobs.items():
        check_carriers(section.place.at("jobs", name), one, authentication)
        check_hosts(section.place.at("jobs", name), one, allow_hosts)
    for name, each in calls.items():
        check_carriers(section.place.at("calls", name), each, authentication)
    check = _account_check(section.section("account"), around)
    if check is not None:
        check_carriers(section.place.at("account", "check"), check, authentication)
    escalation = section.section("escalation")
    return Contract(
        provider,
        section.get("title", TEXT, provider),
        base_url,
        allow_hosts,
        _console(section, account, [*jobs.values(), *calls.values()]),
        section.get("docs", LINK),
        section.get("checked", DATE),
        authentication,
        account,
        check,
        headers,
        _scopes(section, (*jobs, *calls, *([] if check is None else [check.name]))),
        _classes(section.section("classes")),
        section.get("resends_below", RESENDS, 0),
        escalation.get("remind", DURATIONS, USUAL),
        escalation.get("abandon_after", DURATION),
        escalation.get("operator", OPERATOR, "any") == "separate",
        _retention(section.section("retention"), [*jobs.values(), *calls.values()]),
        jobs,
        calls,
        _examples(section, jobs, calls, line_of),
        file,
        digest,
    )


def _raw(raw: Raw, kind: str, name: str) -> object:
    actions = raw.get(kind)
    return actions.get(name) if is_table(actions) else None


# --- account --------------------------------------------------------------------------------


def _account(section: Section) -> Mapping[str, str]:
    further = [key for key in section.values if key not in section.table.keys]
    for key in further:
        section.place.at(key).read(NAMED, key)
    return {
        "id": section.get("id", LITERAL, "default"),
        **{key: str(section.values[key]) for key in further},
    }


def _base_url(section: Section, account: Mapping[str, str]) -> str:
    stated = section.get("base_url", BASE_URL, "")
    try:
        return fill_base_url(stated, account)
    except Fault as fault:
        section.complain("base_url", fault.problem, fault.fix)
        return ""


_CALL = nested(CALL)


def _account_check(section: Section, around: Around) -> Call | None:
    """The read whose answer names the account; all else about it is as for any read."""
    check = section.section("check")
    path, at = check.get("path", TEXT), check.get("at", POINTER)
    if path is None or at is None:
        return None
    if not path.startswith("/"):
        check.complain("path", "is no path under base_url", 'write it as in "/me"')
        return None
    if not section.has("id"):
        section.complain("check", "has no id to compare with", 'add id = "…" below [account]')
        return None
    raw = {
        "title": "Whose the credential is",
        "class": "read",
        "method": "GET",
        "path": path,
        "require": [at.text],
        "echo": {at.text: "{account.id}"},
    }
    return call(ACCOUNT_CHECK, check.place.read(_CALL, raw), around, raw)


# --- limits ---------------------------------------------------------------------------------


def _scopes(section: Section, actions: tuple[str, ...]) -> tuple[Scope, ...]:
    """The scopes stated, and one per account for the actions that no scope names."""
    stated = tuple(
        _scope(name, inner, actions) for name, inner in section.sections("scopes").items()
    )
    covered = {action for scope in stated for action in scope.actions}
    if "*" in covered or (stated and covered.issuperset(actions)):
        return stated
    left = tuple(action for action in actions if action not in covered) if stated else ("*",)
    names = {scope.name for scope in stated}
    free = next(name for name in ("account", "default", "others", "rest") if name not in names)
    return (*stated, Scope(free, "account", left))


def _scope(name: str, section: Section, actions: tuple[str, ...]) -> Scope:
    covered = section.get("actions", TEXTS, ("*",))
    for index, action in enumerate(covered):
        if action != "*" and action not in actions:
            section.place.at("actions", index).complain(
                f"{action!r} is no action", nearest(action, ("*", *actions))
            )
    plain = Scope(name, section.get("per", PER, "account"))
    return Scope(
        name,
        plain.per,
        covered,
        section.get("rate", RATE, plain.rate),
        section.get("reserve", SHARE, plain.reserve),
        section.get("max_concurrent_requests", COUNT, plain.max_concurrent_requests),
        section.get("max_delayed_requests", COUNT, plain.max_delayed_requests),
        section.get("retry_budget", RATE),
        section.get("max_block", DURATION, plain.max_block),
        section.get("wait_until_reset", DURATION, plain.wait_until_reset),
        section.get("remaining", SOURCE),
        section.get("reset", TIMED),
    )


def _classes(section: Section) -> Mapping[RequestClass, ClassLimits]:
    return {known: _class(section.section(known.value), CLASSES[known]) for known in RequestClass}


def _class(section: Section, plain: ClassLimits) -> ClassLimits:
    return ClassLimits(
        section.get("max_attempts", COUNT, plain.max_attempts),
        section.get("max_wait", WAIT, plain.max_wait),
        section.get("base", DURATION, plain.base),
        section.get("max_delay", DURATION, plain.max_delay),
        section.get("rate_limited", DURATION, plain.rate_limited),
        section.get("retry_statuses", STATUSES, plain.retry_statuses),
    )


# --- what names actions ---------------------------------------------------------------------


def _check_rules(section: Section, account: Mapping[str, str]) -> None:
    """Rules of the whole provider know what every action has."""
    known = frozenset({"ref", "id", "submitted_at", *(f"account.{name}" for name in account)})
    for row in section.rows("rules"):
        Names(known).check(row)


def _check_actions(section: Section, jobs: Mapping[str, Job], calls: Mapping[str, Call]) -> None:
    if not jobs and not calls and not (section.has("jobs") or section.has("calls")):
        section.place.complain("has no action", "add [jobs.NAME] or [calls.NAME]")
    for name in calls:
        if name in jobs:
            section.place.at("calls", name).complain(
                "is the name of a job too", "give one of the two another name"
            )
    known = {"fetch_result", *jobs, *calls}
    for name, one in jobs.items():
        for index, action in enumerate(one.success.then):
            if action not in known:
                section.place.at("jobs", name, "success", "then", index).complain(
                    f"{action!r} is no action", nearest(action, known)
                )
    for name, each in calls.items():
        if each.instead_of_many is not None and each.instead_of_many not in calls:
            section.place.at("calls", name, "instead_of_many").complain(
                f"{each.instead_of_many!r} is no call", nearest(each.instead_of_many, calls)
            )


def _retention(section: Section, actions: Iterable[Action]) -> Retention:
    """How long things are kept: never shorter than they are needed to know a repetition."""
    usual = Retention()
    kept = Retention(
        section.get("payloads", DURATION, usual.payloads),
        section.get("identities", DURATION, usual.identities),
    )
    if kept.identities < kept.payloads:
        section.complain("identities", "is shorter than payloads", "make it the longer one")
    for action in actions:
        window = action.idempotency.window if action.idempotency is not None else 0
        needed = max(window, action.repeat_window)
        if kept.identities < needed:
            section.complain(
                "identities",
                f"is shorter than a repeat or key window of {action.name}",
                f"keep them for {-(-needed // DAY)}d at least",
            )
    return kept


def _console(
    section: Section, account: Mapping[str, str], actions: Iterable[Job | Call]
) -> Template | None:
    """Where a person can look; arguments are known if any action has them."""
    console = section.get("console", CONSOLE)
    if console is not None:
        arguments = {
            f"arg.{name}" for action in actions for name in action.input.get("properties", {})
        }
        known = frozenset({"id", "ref", *(f"account.{name}" for name in account), *arguments})
        Names(known).check_one(section.place.at("console"), console)
    return console


def _examples(
    section: Section,
    jobs: Mapping[str, Job],
    calls: Mapping[str, Call],
    line_of: Callable[[Path], int],
) -> tuple[Example, ...]:
    places = frozenset(_places(jobs, calls))
    return tuple(_example(row, places, line_of(row.place.path)) for row in section.rows("examples"))


def _places(jobs: Mapping[str, Job], calls: Mapping[str, Call]) -> Iterable[str]:
    """What `on` of an example may name."""
    for name, one in jobs.items():
        yield from (f"jobs.{name}.submit", f"jobs.{name}.status")
        if one.results:
            yield f"jobs.{name}.result"
        yield from (f"jobs.{name}.results.{result}" for result in one.results)
        if one.cancel is not None:
            yield f"jobs.{name}.cancel"
        if one.lookup is not None:
            yield f"jobs.{name}.lookup"
    for name, each in calls.items():
        yield f"calls.{name}"
        if each.lookup is not None:
            yield f"calls.{name}.lookup"


def _example(row: Section, places: frozenset[str], line: int) -> Example:
    on, expect = row.get("on", TEXT), row.get("expect", TEXT)
    if on is not None and on not in places:
        row.complain("on", f"{on!r} is no request of this contract", nearest(on, places))
    if expect is not None and expect not in _EXPECTATIONS:
        row.complain("expect", f"{expect!r} is nothing to conclude", nearest(expect, _EXPECTATIONS))
    return Example(
        on or "",
        row.get("http", STATUS_CODE, 200),
        row.get("headers", EXAMPLE_HEADERS, ()),
        row.get("body", LITERAL, "").encode(),
        expect or "",
        line,
    )
