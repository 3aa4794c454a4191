"""Wishes of agents: an agent asks for an option, and a person decides (requirement E12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import escalations
from forbear.rules.model import Case, Code, Operation, Option, Reason, Refusal, State
from forbear.storage import audit, deciding, rows
from forbear.storage.schema import cases
from forbear.storage.transitions import (
    About,
    Holding,
    Ids,
    about_of,
    case_text,
    insert_case,
    listed,
    must_load,
    open_case,
)

_MAY_ASK: Mapping[State, frozenset[Option]] = {
    State.WAITING: frozenset({Option.EXTEND, Option.CANCEL_AT_PROVIDER}),
    State.UNCLEAR: frozenset(escalations.OPTIONS[Reason.UNCLEAR_WRITE]),
    State.FAILED: frozenset({Option.RESUBMIT}),
    State.CANCELLED: frozenset({Option.RESUBMIT}),
    State.EXPIRED: frozenset({Option.RESUBMIT}),
    State.DISCARDED: frozenset({Option.RESUBMIT}),
}
"""What may be asked for in a state that has no case of its own (behaviour.md, section 5)."""


def ask(
    connection: Connection,
    operation_id: str,
    option: Option,
    reason: str,
    parameters: Mapping[str, object],
    holding: Holding | None,
    now: int,
    ids: Ids,
) -> Case | Refusal:
    """Put a wish before a person: into the open case, or in a case of its own.

    One wish is open at a time; one that was rejected is refused until the facts changed.
    """
    op = must_load(connection, operation_id)
    wish: dict[str, object] = {
        "option": str(option),
        "reason": reason,
        "parameters": dict(parameters),
        "at": now,
        "facts": _facts(op),
    }
    case = open_case(connection, op.id)
    if case is not None:
        return _join(connection, op, case, wish, holding, now)
    if option not in _MAY_ASK.get(op.state, ()):
        return _not_in_state(op)
    offered = deciding.offers(connection, op, Reason.REQUESTED, holding, now, asked=option)
    if option not in [offer.option for offer in offered]:
        return _not_offered(op, option, ())
    if _rejected_before(connection, op, wish):
        return _already_asked(op, "a person rejected that, and nothing has changed since")
    made = insert_case(connection, op, Reason.REQUESTED, now, ids, holding, About(wish=wish))
    told = {"case": made.id, "reason": str(made.reason), "option": str(option)}
    audit.append(connection, op.id, now, audit.Code.WISHED, told)
    return made


def ask_oneself(
    connection: Connection,
    operation_id: str,
    option: Option,
    revision: int,
    holding: Holding | None,
    now: int,
    ids: Ids,
) -> Case | Refusal:
    """The case in which an operator decides `option` unasked: the open one, or one made for it.

    `revision` is that of the operation as it was shown.
    """
    op = must_load(connection, operation_id)
    if op.revision != revision:
        return Refusal(
            Code.NOT_ALLOWED_IN_STATE,
            f"{op.id} changed since it was shown; it is {op.state}",
            f"read it again: forbear show {op.id}",
            op.id,
        )
    case = open_case(connection, op.id)
    if case is not None:
        return case
    offered = deciding.offers(connection, op, Reason.REQUESTED, holding, now, asked=option)
    possible = option in _MAY_ASK.get(op.state, ()) and op.state is not State.UNCLEAR
    if not possible or option not in [offer.option for offer in offered]:
        return Refusal(
            Code.OPTION_NOT_OFFERED,
            f"{option} is not possible: {op.id} is {op.state}",
            f"forbear show {op.id} tells why",
            op.id,
        )
    wish: dict[str, object] = {"option": str(option), "at": now}
    return insert_case(connection, op, Reason.REQUESTED, now, ids, holding, About(wish=wish))


def _join(
    connection: Connection,
    op: Operation,
    case: Case,
    wish: Mapping[str, object],
    holding: Holding | None,
    now: int,
) -> Case | Refusal:
    """Add the wish to the question that is open already, as another revision of it."""
    options = [str(option["id"]) for option in case.options]
    if wish["option"] not in options:
        return _not_offered(op, Option(str(wish["option"])), options)
    if case.wish is not None:
        return _already_asked(op, f"case {case.id} has a wish of yours already")
    asked = replace(case, wish=wish)
    offered = deciding.offers(connection, op, case.reason, holding, now)
    text = case_text(op, case.reason, offered, now, holding, about_of(asked, holding, now))
    connection.execute(
        sa.update(cases)
        .where(cases.c.id == case.id)
        .values(wish=dict(wish), text=text, options=listed(offered), revision=case.revision + 1)
    )
    told = {"case": case.id, "option": str(wish["option"])}
    audit.append(connection, op.id, now, audit.Code.WISHED, told)
    return open_case(connection, op.id) or asked


def _facts(op: Operation) -> str:
    """What would make a rejected wish a new one: a count of polls does not."""
    parts = (op.state, op.provider_state, op.certainty, op.extensions.used, op.deadline_at)
    return " ".join(str(part) for part in parts)


def _rejected_before(connection: Connection, op: Operation, wish: Mapping[str, object]) -> bool:
    found = connection.execute(
        sa.select(cases)
        .where(cases.c.operation_id == op.id, cases.c.reason == str(Reason.REQUESTED))
        .order_by(cases.c.number.desc())
    ).mappings()
    for row in found:
        earlier = rows.case(row)
        if earlier.wish is None or earlier.wish["option"] != wish["option"]:
            continue
        rejected = (earlier.decision or {}).get("option") == str(Option.REJECT)
        return rejected and earlier.wish["facts"] == wish["facts"]
    return False


def _not_in_state(op: Operation) -> Refusal:
    may = ", ".join(sorted(_MAY_ASK.get(op.state, ()))) or "nothing"
    return Refusal(
        Code.NOT_ALLOWED_IN_STATE,
        f"In state {op.state} a person can be asked for {may}.",
        "Call check_status for news. Do not ask for it again before the state changed.",
        op.id,
    )


def _not_offered(op: Operation, option: Option, options: list[str] | tuple[()]) -> Refusal:
    there = f"; there is: {', '.join(options)}" if options else ""
    return Refusal(
        Code.OPTION_NOT_OFFERED,
        f"{option} is not possible here{there}.",
        "Tell the user, or ask for one of those. Do not ask for it again.",
        op.id,
    )


def _already_asked(op: Operation, why: str) -> Refusal:
    return Refusal(
        Code.ALREADY_ASKED,
        f"Not asked again: {why}.",
        "Tell the user and end your turn. Do not ask in other words.",
        op.id,
    )
