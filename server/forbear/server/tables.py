"""The tables of `config.toml` that tell people and answer for them, and the way out.

    [notify]        the signed webhook that is told of open cases
    [[standing]]    an answer that an operator gives in advance
    [[handover]]    a workflow that may decide what its list holds
    [proxy]         what requests go through

What is wrong raises ValueError with the place, the mistake and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from typing import Any, cast

from forbear.rules.contract import Auth
from forbear.rules.decisions import Wish, objection
from forbear.rules.escalations import OPTIONS, URGENCIES
from forbear.rules.model import Case, Operation, Option, Reason
from forbear.server.egress import read_origin
from forbear.server.proxy import Proxy
from forbear.tools.wishes import BadWish, wish_of

NOTIFY: Mapping[str, str] = {
    "webhook": "Address that is told, as Standard Webhooks say; plain http on this machine only.",
    "secret": "Reference to what signs it: env:NAME or file:/path; 24 bytes or more.",
    "urgency": "The least that is sent: note, today or now; default today.",
}
STANDING: Mapping[str, str] = {
    "reason": "The question that is answered.",
    "option": "The answer: hold, extend, check_again, reconcile or abandon.",
    "parameters": "Of the option, such as { minutes = 15 }.",
    "provider": "Only of this provider; default: of all.",
    "action": "Only of this action; default: of all.",
    "times": "How often for one operation; default 1.",
    "until": "The last day, UTC, or a moment with its offset.",
    "operator": "Whose decision it is.",
}
HANDOVER: Mapping[str, str] = {
    "name": "The workflow's name, for `forbear handover` and `decide --as-principal`.",
    "reasons": "The questions that it may decide.",
    "options": "The options that it may choose.",
}
PROXY: Mapping[str, str] = {
    "url": "http://host:port.",
    "user": "Only if it asks for a login, which it gets unencrypted.",
    "password": "Reference to the password: env:, file: or keyring:.",
    "no_proxy": "Hosts reached directly, such as *.in.example; this machine always is.",
}
"""The keys of each table, with one line about each."""

IN_ADVANCE = (Option.HOLD, Option.EXTEND, Option.CHECK_AGAIN, Option.RECONCILE, Option.ABANDON)
"""What may be answered in advance: no effect outside, or within what the contract grants."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SECRET = re.compile(r"(env|file):.+")
_PASSWORD = re.compile(r"(env|file|keyring):.+")
_HOST = re.compile(r"(\*\.)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Notify:
    """Where open cases are told of, and what signs it."""

    webhook: str = field(repr=False)
    """The whole address; some services put a secret into its path."""
    secret: str
    """A reference, `env:NAME` or `file:/path`, never the secret itself."""
    urgency: str = "today"
    """The least urgency that is sent."""

    def wants(self, case: Case) -> bool:
        return URGENCIES.index(case.urgency) >= URGENCIES.index(self.urgency)

    @property
    def place(self) -> str:
        """The host alone, to be shown."""
        origin = read_origin(self.webhook)
        return origin if isinstance(origin, str) else origin.host


@dataclass(frozen=True, slots=True)
class Standing:
    """An answer given in advance to one kind of question, so often and until then."""

    reason: Reason
    option: Option
    operator: str
    until: int
    """The first moment, ms, at which it is given no more."""
    times: int = 1
    """So often at most for one operation."""
    provider: str | None = None
    action: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def answers(self, case: Case, op: Operation, now: int) -> bool:
        """Whether it is about this question, and still given."""
        offered = any(option["id"] == str(self.option) for option in case.options)
        return (
            offered
            and now < self.until
            and case.reason is self.reason
            and self.provider in (None, op.provider)
            and self.action in (None, op.action)
        )

    def wish(self, now: int) -> Wish:
        """What it chooses now.

        Raises ValueError for parameters that are none of its option.
        """
        try:
            wish = wish_of(now, str(self.option), **self.parameters)
        except (BadWish, TypeError) as error:
            raise ValueError(str(error)) from error
        wrong = objection(wish, now)
        if wrong is not None:
            raise ValueError(wrong)
        return wish

    def title(self) -> str:
        """It in one line: `extend (minutes 15) for deadline_exceeded of exp.export, …`."""
        given = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        of = ".".join((self.provider or "any provider", self.action or "any action"))
        last = datetime.fromtimestamp(self.until / 1_000, UTC).strftime("%Y-%m-%d %H:%MZ")
        often = "once" if self.times == 1 else f"{self.times} times"
        return (
            f"{self.option}{f' ({given})' if given else ''} for {self.reason} of {of}, at most "
            f"{often} per operation, until {last}, by {self.operator}"
        )


@dataclass(frozen=True, slots=True)
class Handover:
    """A workflow that decides in a person's place, and what it may decide."""

    name: str
    reasons: tuple[Reason, ...]
    options: tuple[Option, ...]


# --- reading --------------------------------------------------------------------------------


def read_notify(section: object, webhook: str | None, secret: str | None) -> Notify | None:
    """`[notify]`; `webhook` and `secret` are those of the environment, which win."""
    table = Table("notify", section if section is not None else {})
    table.only(*NOTIFY)
    urgency = table.word("urgency", URGENCIES) or "today"
    address = webhook or table.text("webhook")
    reference = secret or table.text("secret")
    if address is None:
        if reference is not None:
            raise ValueError('notify: a secret without a webhook; add webhook = "https://…"')
        return None
    origin = read_origin(address)
    if isinstance(origin, str):
        raise ValueError(f"notify.webhook: the address {origin}")
    if origin.scheme != "https" and not origin.loopback:
        raise ValueError("notify.webhook: plain http is for this machine alone; write https://…")
    if reference is None:
        raise ValueError(
            'notify: what is sent is signed; add secret = "env:NAME" or secret = "file:/path"'
        )
    if not _SECRET.fullmatch(reference):
        raise ValueError("notify.secret: write env:NAME or file:/path, never the secret itself")
    return Notify(address, reference, urgency)


def read_standing(section: object) -> tuple[Standing, ...]:
    """`[[standing]]`."""
    return tuple(_standing(table) for table in tables("standing", section))


def read_handover(section: object) -> tuple[Handover, ...]:
    """`[[handover]]`."""
    found: dict[str, Handover] = {}
    for table in tables("handover", section):
        table.only(*HANDOVER)
        name = table.must("name")
        if not _NAME.fullmatch(name) or name in found:
            raise ValueError(f"{table.at('name')}: {name!r} is taken or no plain name")
        reasons = tuple(Reason(word) for word in table.words("reasons", tuple(Reason)))
        options = tuple(Option(word) for word in table.words("options", tuple(Option)))
        found[name] = Handover(name, reasons, options)
    return tuple(found.values())


def read_proxy(section: object) -> Proxy | None:
    """`[proxy]`."""
    if section is None:
        return None
    table = Table("proxy", section)
    table.only(*PROXY)
    address = table.must("url").removesuffix("/")
    origin = read_origin(address)
    if "@" in address:
        raise ValueError(f"{table.at('url')}: write user and password beside it, not into it")
    if isinstance(origin, str) or address != f"http://{address.rpartition('/')[2]}":
        raise ValueError(f"{table.at('url')}: write http://host:port, and nothing behind it")
    user, password = table.text("user"), table.text("password")
    if (user is None) != (password is None):
        raise ValueError("proxy: user and password belong together; write both or none")
    if password is not None and not _PASSWORD.fullmatch(password):
        raise ValueError(
            f"{table.at('password')}: write env:NAME, file:/path or keyring:service/user, never "
            "the password itself"
        )
    auth = Auth("none") if password is None else Auth("basic", user=user, password=password)
    return Proxy(origin.host, origin.port, auth, tuple(_hosts(table, "no_proxy")))


def _hosts(table: Table, name: str) -> Iterator[str]:
    stated = table.stated.get(name, [])
    if not isinstance(stated, list):
        raise ValueError(f"{table.at(name)} must be a list, such as ['api.exp.example']")
    for host in cast(list[object], stated):
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ValueError(
                f"{table.at(name)}: {host!r} is no host; write host, host:port or *.host"
            )
        yield host


def _standing(table: Table) -> Standing:
    table.only(*STANDING)
    reason = Reason(table.must("reason", tuple(Reason)))
    option = Option(table.must("option", IN_ADVANCE))
    if option not in OPTIONS[reason]:
        known = ", ".join(one for one in OPTIONS[reason] if one in IN_ADVANCE) or "nothing"
        raise ValueError(
            f"{table.at('option')}: {option} is never offered for {reason}; "
            f"in advance there is {known}"
        )
    parameters: object = table.stated.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError(f"{table.at('parameters')}: must be a table, such as {{ minutes = 15 }}")
    times: object = table.stated.get("times", 1)
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"{table.at('times')}: {times!r} is no number of 1 or more")
    standing = Standing(
        reason,
        option,
        table.must("operator"),
        _end(table),
        times,
        table.text("provider"),
        table.text("action"),
        cast(dict[str, Any], parameters),
    )
    try:
        standing.wish(0)
    except ValueError as error:
        raise ValueError(f"{table.at('parameters')}: {error}") from error
    return standing


def _end(table: Table) -> int:
    """The end of a stated day (UTC), or a moment with its offset."""
    stated: object = table.stated.get("until")
    match stated:
        case datetime() if stated.tzinfo is not None:
            return round(stated.timestamp() * 1_000)
        case date() if not isinstance(stated, datetime):
            after = datetime(stated.year, stated.month, stated.day, tzinfo=UTC) + timedelta(days=1)
            return round(after.timestamp() * 1_000)
        case _:
            raise ValueError(f"{table.at('until')}: write the last day, such as 2027-01-31")


def tables(name: str, section: object) -> Iterator[Table]:
    """The tables of a list of tables; none if there is no such list."""
    if section is None:
        return
    if not isinstance(section, list):
        raise ValueError(f"{name} is a list of tables: [[{name}]]")
    for number, entry in enumerate(cast(list[object], section), 1):
        yield Table(f"{name}[{number}]", entry)


class Table:
    """One table of the file, with its place for messages."""

    def __init__(self, place: str, section: object) -> None:
        if not isinstance(section, dict):
            raise ValueError(f"{place} must be a table")
        self._place = place
        self.stated = cast(dict[str, object], section)

    def at(self, name: str) -> str:
        return f"{self._place}.{name}"

    def only(self, *names: str) -> None:
        for name in self.stated:
            if name not in names:
                near = get_close_matches(name, names, 1, 0.6)
                fix = f"write {near[0]}" if near else f"there are {', '.join(names)}"
                raise ValueError(f"{self.at(name)} is no setting; {fix}")

    def text(self, name: str) -> str | None:
        value = self.stated.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ValueError(f"{self.at(name)} must be a text")
        return value

    def word(self, name: str, known: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise ValueError(f"{self.at(name)}: {value!r} is none of {', '.join(known)}")
        return value

    def must(self, name: str, known: tuple[str, ...] = ()) -> str:
        value = self.word(name, known) if known else self.text(name)
        if value is None:
            raise ValueError(f"{self.at(name)} is missing")
        return value

    def words(self, name: str, known: tuple[str, ...]) -> list[str]:
        values = self.stated.get(name)
        if not isinstance(values, list) or not values:
            raise ValueError(f"{self.at(name)} must be a list, such as [{known[0]!r}]")
        for value in cast(list[object], values):
            if value not in known:
                raise ValueError(f"{self.at(name)}: {value!r} is none of {', '.join(known)}")
        return [str(value) for value in cast(list[object], values)]
