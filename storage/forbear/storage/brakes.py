"""Operators' brakes: durable stops that every process reads before every request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.ports import Clock
from forbear.storage import audit, register
from forbear.storage.schema import pauses
from forbear.storage.statements import Statement

EVERYTHING = "all"
"""The pause that stops every provider."""

COPY = "a copy"
"""The pause of a store that may not be the living one (`custody`); no provider is called so."""

_PAUSES = Statement(sa.select(pauses.c.target))
"""All of them: people make them, so there are few."""


@dataclass(frozen=True, slots=True)
class Paused:
    """A person stopped this provider, or all; or the store is a copy."""

    target: str


def paused(connection: Connection, provider: str, *scopes: str) -> Paused | None:
    """Which pause stops requests of a provider and these scopes now, if any."""
    stopped, asked = _stopped(connection), (COPY, EVERYTHING, provider, *scopes)
    return next((Paused(target) for target in asked if target in stopped), None)


def is_copy(connection: Connection) -> bool:
    """Whether the store is held as one that may not be the living one."""
    return COPY in _stopped(connection)


def _stopped(connection: Connection) -> set[str]:
    return {row.target for row in _PAUSES.all(connection)}


class Brakes:
    """What an operator may stop and let go: each act is one transaction and is recorded.

    The methods are units for the writer; `by` says who did it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def pause(self, connection: Connection, target: str, by: Mapping[str, object]) -> bool:
        """Stop a provider, a scope (by its key) or `all`. False if it was stopped already."""
        if target in _stopped(connection):
            return False
        now = self._clock.now().wall
        row = {"target": target, "since": now, "by": dict(by)}
        connection.execute(sa.insert(pauses), row)
        audit.append(connection, None, now, audit.Code.PAUSED, {"target": target, **by})
        return True

    def resume(self, connection: Connection, target: str, by: Mapping[str, object]) -> bool:
        """Undo a pause. False if there was none that a person made."""
        if target == COPY:
            return False
        gone = sa.delete(pauses).where(pauses.c.target == target)
        if connection.execute(gone).rowcount == 0:
            return False
        now = self._clock.now().wall
        audit.append(connection, None, now, audit.Code.RESUMED, {"target": target, **by})
        return True

    def reset_scope(self, connection: Connection, key: str, by: Mapping[str, object]) -> bool:
        """Let a scope forget its 429s, quotas and outages, not what is under way. False: unknown.

        The rate goes on as published: what waits leaves one after the other.
        """
        now = self._clock.now().wall
        if not register.forget(connection, key, now):
            return False
        audit.append(connection, None, now, audit.Code.SCOPE_RESET, {"scope": key, **by})
        return True

    def accept_credential(
        self,
        connection: Connection,
        provider: str,
        account: str,
        fingerprint: str,
        by: Mapping[str, object],
    ) -> None:
        """Let another credential be used for a provider and account."""
        now = self._clock.now().wall
        register.accept_credential(connection, provider, account, fingerprint, now)
        body = {"provider": provider, "account": account, "fingerprint": fingerprint, **by}
        audit.append(connection, None, now, audit.Code.CREDENTIAL_ACCEPTED, body)
