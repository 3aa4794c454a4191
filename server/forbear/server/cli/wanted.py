"""What `try` asks for: one action with its arguments, once or, if a person says so, again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forbear.rules.contract import Action, Call, Contract, ContractError
from forbear.rules.model import (
    Certainty,
    Code,
    Operation,
    Priority,
    Refusal,
    RequestClass,
    State,
)
from forbear.server.app import App
from forbear.server.cli.terminal import Failure
from forbear.server.credentials import MissingCredential
from forbear.server.providers import Contracts
from forbear.storage.transitions import Holding
from forbear.tools.book import Book
from forbear.tools.caller import LOCAL, Caller
from forbear.tools.desk import Desk, Setting
from forbear.tools.record import Record
from forbear.tools.times import clock_time

CLIENT = "terminal"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One action as it was typed."""

    provider: str
    action: str
    arguments: Mapping[str, Any]
    purpose: str | None = None
    task: str | None = None
    key: str | None = None

    async def once(self, app: App) -> Record | Refusal:
        """As an agent would ask: the same again joins, or is refused."""
        return await self._ask(app, app.desk, self._in(app.contracts))

    async def again(self, app: App) -> Record | Refusal:
        """As a new action, which the contract or a person has allowed.

        What may have been applied, or still runs, is not repeated by this either.
        """
        book = _Repeatable(app.contracts, self.provider, self.action)
        setting = Setting(console=app.settings.console_url)
        desk = Desk(app.store, book, app.clock, app.random, setting)
        return await self._ask(app, desk, self._in(app.contracts))

    def contract_allows(self, app: App) -> bool:
        """Whether the contract lets whoever asks on purpose do the same again."""
        action = self._in(app.contracts)
        return action is not None and action.repeat in ("key", "free")

    def _in(self, book: Book) -> Action | None:
        contract = book.contracts().get(self.provider)
        return contract.action(self.action) if contract is not None else None

    async def _ask(self, app: App, desk: Desk, action: Action | None) -> Record | Refusal:
        caller = Caller(LOCAL, CLIENT, app.store.liveness.owner)
        if not isinstance(action, Call):
            return await desk.submit_job(
                provider=self.provider,
                job=self.action,
                arguments=self.arguments,
                purpose=self.purpose,
                task=self.task,
                idempotency_key=self.key,
                depends_on=(),
                deadline_seconds=None,
                max_status_requests=None,
                useful_for_seconds=None,
                priority=Priority.INTERACTIVE,
                wait_seconds=0,
                caller=caller,
                report=None,
            )
        if action.send.request_class is RequestClass.READ:
            if self.key is not None or self.purpose is not None:
                raise Failure(
                    f"{self.provider}.{self.action} reads; leave --key and --purpose out."
                )
            return await desk.read_api(
                provider=self.provider,
                call=self.action,
                arguments=self.arguments,
                task=self.task,
                depends_on=(),
                deadline_seconds=None,
                useful_for_seconds=None,
                priority=Priority.INTERACTIVE,
                wait_seconds=0,
                caller=caller,
                report=None,
            )
        return await desk.write_api(
            provider=self.provider,
            call=self.action,
            arguments=self.arguments,
            purpose=self.purpose,
            task=self.task,
            idempotency_key=self.key,
            depends_on=(),
            deadline_seconds=None,
            useful_for_seconds=None,
            priority=Priority.INTERACTIVE,
            wait_seconds=0,
            caller=caller,
            report=None,
        )


@dataclass(frozen=True, slots=True)
class _Repeatable:
    """The contracts of a home, with one action that may be done again."""

    book: Book
    provider: str
    action: str

    def contracts(self) -> Mapping[str, Contract]:
        held = self.book.contracts()
        return {**held, self.provider: self._loosened(held[self.provider])}

    def errors(self) -> Mapping[str, Sequence[ContractError]]:
        return self.book.errors()

    async def arrived(self, provider: str) -> None:
        await self.book.arrived(provider)

    def holding(self, provider: str, action: str) -> Holding | None:
        return self.book.holding(provider, action)

    def _loosened(self, contract: Contract) -> Contract:
        jobs, calls = dict(contract.jobs), dict(contract.calls)
        if self.action in jobs:
            jobs[self.action] = replace(jobs[self.action], repeat="free")
        elif self.action in calls:
            calls[self.action] = replace(calls[self.action], repeat="free")
        return replace(contract, jobs=jobs, calls=calls)


def in_words(refusal: Refusal, provider: str, contracts: Contracts) -> Failure:
    """A refusal as a person reads it: what is wrong, and what they can do."""
    told = refusal.message
    match refusal.code:
        case Code.STORE_UNAVAILABLE:
            return Failure(f"{told} `forbear doctor` looks into it.", 3)
        case Code.INVALID_ARGUMENTS:
            return Failure(
                f"{told}\nWrite key=text, and key:=JSON for numbers, true, false, lists and "
                "objects."
            )
        case Code.UNKNOWN_ACTION:
            return Failure(f"{told} `forbear contract list` shows what there is.")
        case Code.CONTRACT_ERROR:
            return Failure(f"{told} `forbear contract check` names every mistake.")
        case Code.CREDENTIAL_MISSING:
            contract = contracts.contracts().get(provider)
            missing = None if contract is None else contracts.credential(contract)
            named = missing if isinstance(missing, MissingCredential) else "`forbear doctor` looks."
            return Failure(f"{told} {named}", 3)
        case Code.EGRESS_REFUSED:
            return Failure(
                f"{told}. Nothing was sent. Compare the answer with the contract of {provider}: "
                "`forbear contract check FILE --sample ANSWER.json`.",
                1,
            )
        case Code.KEY_CONFLICT:
            return Failure(
                f"This key belongs to {refusal.operation_id}, which has other arguments: `forbear "
                f"show {refusal.operation_id}`. Leave --key out, or take another one.",
                1,
            )
        case Code.PAUSED:
            return Failure(
                f"{told} `forbear ps` says what holds it: `forbear resume` ends a pause, and "
                "`forbear adopt` lets a copy go on.",
                1,
            )
        case Code.TASK_ENDED:
            return Failure(f"{told} Take another --task, or leave it out.", 1)
        case _:
            return Failure(told, 1)


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier operation that the same would repeat, as a person reads of it."""

    told: str
    next_step: str
    repeatable: bool
    """It is over and its outcome is known, so that a second one is a matter of wanting it."""
    succeeded: bool = False

    @staticmethod
    def of(known: Operation, now: int) -> Earlier:
        asked = clock_time(known.created_at, now)
        told = f"The same was asked for at {asked} ({known.id}), and it is {known.state}."
        look = f"`forbear show {known.id}` tells what came of it"
        if not known.final or known.certainty is Certainty.MAYBE_APPLIED:
            wait = "" if known.final else f"; `forbear wait {known.id}` watches it"
            return Earlier(told, f"{look}{wait}.", repeatable=False)
        return Earlier(
            told,
            f"{look}. Whether it is done twice is for a person to say: run this at a terminal "
            "and answer y.",
            repeatable=True,
            succeeded=known.state is State.SUCCEEDED,
        )
