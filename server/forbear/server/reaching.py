"""One harmless read of a provider, on the way of every other request: reserved, budgeted, told."""

from __future__ import annotations

from dataclasses import dataclass

from forbear.rules.contract import Call, Contract, Pointer
from forbear.rules.model import Case, Operation, Refusal, RequestClass, State
from forbear.rules.reading import source_name
from forbear.rules.timing import read_http_date
from forbear.rules.values import Unreadable, decode, locate, text_of
from forbear.server.app import App
from forbear.server.cli.wanted import Wanted
from forbear.storage.queries import Exchange
from forbear.tools import samples
from forbear.tools.accounts import Accounts
from forbear.tools.intake import Intake

LOOK = 0.1
"""Seconds between two looks at the store."""

PATIENCE = 60_000
"""How long an answer is waited for, ms; the operation goes on by its own deadline."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What one read brought."""

    provider: str
    request: str
    operation: Operation
    status: int | None
    took: int | None
    """From the reservation to the answer, ms."""
    account: str | None
    """The account that the answer names, where an answer should."""
    account_read_at: str | None
    behind: int | None
    """How much later the provider's clock is than ours, ms; whole seconds, as a Date field is."""
    case: Case | None

    @property
    def ok(self) -> bool:
        return self.operation.state is State.SUCCEEDED


def harmless(contract: Contract, *, account_only: bool = False) -> Call | None:
    """The read that may be sent to see whether a provider answers, or None.

    `[account] check` if there is one, else a call of class read that needs no argument, no approval
    and no further page.
    """
    if contract.account_check is not None or account_only:
        return contract.account_check
    return next((call for call in contract.calls.values() if _is_harmless(call)), None)


def _is_harmless(call: Call) -> bool:
    reads = call.send.request_class is RequestClass.READ and call.page is None
    free = call.send.approval.mode == "none"
    return reads and free and not samples.problems(call.input, {})


async def reach(app: App, contract: Contract, call: Call) -> Reached | Refusal:
    """Send one read through the ledger and the worker of `app`, and wait for what comes of it."""
    op = await _asked(app, contract, call)
    if isinstance(op, Refusal):
        return op
    end = app.clock.now().boot + PATIENCE
    while True:
        op = await app.store.read.operation(op.id) or op
        case = await app.store.read.open_case(op.id)
        if op.final or op.state is State.ESCALATED or app.clock.now().boot >= end:
            break
        await app.clock.sleep(LOOK)
    answered = [one for one in await app.store.read.exchanges_of(op.id) if one.attempt.status]
    last = answered[-1] if answered else None
    at = _names_account(contract, call)
    template = call.send.path or call.send.url
    return Reached(
        contract.provider,
        f"{call.send.method} {'' if template is None else template.text}",
        op,
        None if last is None else last.attempt.status,
        None if last is None else _took(last),
        None if last is None or at is None else _account(contract, op, last, at),
        None if at is None else source_name(at),
        None if last is None else _behind(last),
        case,
    )


async def _asked(app: App, contract: Contract, call: Call) -> Operation | Refusal:
    if call is contract.account_check:
        accounts = Accounts(app.store, app.contracts, Intake(app.store), app.clock, app.random)
        return await accounts.ask(contract.provider)
    record = await Wanted(contract.provider, call.name, {}).once(app)
    return record if isinstance(record, Refusal) else record.operation


def _names_account(contract: Contract, call: Call) -> Pointer | None:
    """Where the answer names the account, if the read is the one that asks for it."""
    if call is not contract.account_check:
        return None
    return next((one.at for one in call.send.require if isinstance(one.at, Pointer)), None)


def _account(contract: Contract, op: Operation, exchange: Exchange, at: Pointer) -> str | None:
    if op.state is State.SUCCEEDED:
        return contract.account["id"]  # which is what a success of this read means
    if not 200 <= (exchange.attempt.status or 0) < 300:
        return None  # a refusal, a redirect or a failure is no word about the account
    try:
        return text_of(locate(decode(exchange.body), at))
    except Unreadable:
        return None


def _took(exchange: Exchange) -> int | None:
    closed = exchange.attempt.closed_at
    return None if closed is None else closed - exchange.attempt.reserved_at


def _behind(exchange: Exchange) -> int | None:
    dates = [value for name, value in exchange.headers if name.lower() == "date"]
    closed = exchange.attempt.closed_at
    if not dates or closed is None:
        return None
    theirs = read_http_date(dates[0], closed)
    return None if theirs is None else theirs - closed // 1_000 * 1_000
