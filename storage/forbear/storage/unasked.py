"""Decisions that nobody was asked for: an operator does anew what is over, or stops what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection

from forbear.rules.decisions import Wish
from forbear.rules.model import Case, Refusal
from forbear.storage.accepting import Draft
from forbear.storage.deciding import REPLACES, Decided
from forbear.storage.ledger import Ledger
from forbear.storage.transitions import Holding


def decide(
    connection: Connection,
    ledger: Ledger,
    operation_id: str,
    revision: int,
    wish: Wish,
    holding: Holding | None,
    by: Mapping[str, object],
    *,
    follow_up: Draft | None = None,
    dry_run: bool = False,
) -> Decided | Refusal:
    """Open the case that records the decision, and decide it: see `asking.ask_oneself`.

    `revision` is that of the operation as it was shown. Where it is refused, and in a `dry_run`,
    nothing of it is kept, no question either.
    """
    connection.exec_driver_sql("SAVEPOINT unasked")
    outcome: Case | Decided | Refusal = ledger.ask_oneself(
        connection, operation_id, wish.option, revision, holding
    )
    if isinstance(outcome, Case):
        if follow_up is not None and wish.option not in REPLACES:
            allowed = replace(follow_up.operation, authorisation=outcome.id)
            follow_up = replace(follow_up, operation=allowed)
        outcome = ledger.decide(
            connection,
            outcome.id,
            outcome.revision,
            wish,
            holding,
            by,
            follow_up=follow_up,
            dry_run=dry_run,
        )
    if dry_run or isinstance(outcome, Refusal):
        connection.exec_driver_sql("ROLLBACK TO unasked")
    connection.exec_driver_sql("RELEASE unasked")
    return outcome
