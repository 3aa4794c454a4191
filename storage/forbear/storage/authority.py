"""What decisions allow: authorisations that the first permit consumes, and session grants."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.escalations import SESSION
from forbear.rules.model import Case, Kind, Operation, Option
from forbear.rules.schedule import end_of
from forbear.storage.schema import authorisations, cases, grants, operations
from forbear.storage.statements import Statement
from forbear.storage.transitions import Ids

ALLOWS = frozenset(
    {
        Option.EXTEND,
        Option.HOLD,
        Option.CHECK_AGAIN,
        Option.RECONCILE,
        Option.RESEND_SAME_KEY,
        Option.CANCEL_AT_PROVIDER,
        Option.REBIND,
        Option.TREAT_AS,
        Option.RETRY_WITH_NEW_CREDENTIAL,
        Option.SEND_NEW,
        Option.RESUBMIT,
        Option.APPROVE,
    }
)
"""Options after which requests may leave. All others send nothing."""


def authorise(
    connection: Connection,
    case: Case,
    op: Operation,
    option: Option,
    parameters: Mapping[str, object],
    by: Mapping[str, object],
    now: int,
) -> None:
    """Keep what a decision allows `op`, bound to the case as it was shown and to its request."""
    expires_at = op.once_until if op.once_until is not None else end_of(op)
    row = {
        "case_id": case.id,
        "operation_id": op.id,
        "option": str(option),
        "parameters": dict(parameters),
        "case_revision": case.revision,
        "request_digest": op.request_digest,
        "by": dict(by),
        "granted_at": now,
        "expires_at": expires_at,
    }
    connection.execute(sa.insert(authorisations), row)


_AUTHORISATION = Statement(
    sa.select(authorisations).where(authorisations.c.case_id == sa.bindparam("case"))
)


def consume(connection: Connection, op: Operation, attempt_id: str, now: int) -> bool:
    """Take up the authorisation that `op` runs under, in the transaction of a permit.

    The first permit consumes it; what follows inside the granted limits rests on the same. A
    session's grant must still hold when the first request leaves. False if it is for another
    request or over: then nothing may leave under it.
    """
    if op.authorisation.startswith(_GRANT):
        return op.sent_at is not None or _holds(connection, op.authorisation, now)
    row = _AUTHORISATION.first(connection, case=op.authorisation)
    if row is None or row.consumed_at is not None:
        return True
    own = row.operation_id == op.id and row.request_digest == op.request_digest
    # The cancellation that a decision makes may leave before the job's own next check.
    cancels = op.kind is Kind.CANCEL and row.operation_id == op.parent_id
    if not own and not (cancels and row.option == str(Option.CANCEL_AT_PROVIDER)):
        return False
    if now > row.expires_at:
        return False
    connection.execute(
        sa.update(authorisations)
        .where(authorisations.c.case_id == op.authorisation, authorisations.c.consumed_at.is_(None))
        .values(consumed_at=now, attempt_id=attempt_id)
    )
    return True


# --- sessions -------------------------------------------------------------------------------


def grant_session(
    connection: Connection,
    case: Case,
    op: Operation,
    credential: str,
    until: int | None,
    by: Mapping[str, object],
    now: int,
    ids: Ids,
) -> str:
    """Let the client of `op` use its action without asking; returns the id of the grant.

    It ends at `until`, after 8 hours, when it is revoked, or with the client.
    """
    grant_id = f"{_GRANT}{ids.token(16)}"
    row = {
        "id": grant_id,
        "principal": op.principal,
        "client": op.client,
        "provider": op.provider,
        "account": op.account,
        "credential": credential,
        "action": op.action,
        "case_id": case.id,
        "by": dict(by),
        "granted_at": now,
        "expires_at": min(now + SESSION, until if until is not None else now + SESSION),
    }
    connection.execute(sa.insert(grants), row)
    return grant_id


_GRANT = "gra_"


def _holds(connection: Connection, grant_id: str, now: int) -> bool:
    still = grants.c.id == grant_id, grants.c.expires_at > now, grants.c.revoked_at.is_(None)
    return connection.execute(sa.select(grants.c.id).where(*still)).first() is not None


def session_of(
    connection: Connection, op: Operation, credential: str | None, now: int
) -> str | None:
    """The grant under which the client of `op` need not be asked about, if there is one."""
    if op.client is None or credential is None:
        return None
    query = (
        sa.select(grants.c.id)
        .where(
            grants.c.principal == op.principal,
            grants.c.client == op.client,
            grants.c.provider == op.provider,
            grants.c.account == op.account,
            grants.c.action == op.action,
            grants.c.credential == credential,
            grants.c.expires_at > now,
            grants.c.revoked_at.is_(None),
        )
        .limit(1)
    )
    return connection.execute(query).scalar()


def waiting_for_session(connection: Connection, op: Operation) -> list[tuple[str, str]]:
    """Operations and cases of the same client and action that wait for the same approval."""
    query = (
        sa.select(operations.c.id, cases.c.id)
        .join(cases, cases.c.operation_id == operations.c.id)
        .where(
            operations.c.principal == op.principal,
            operations.c.client == op.client,
            operations.c.provider == op.provider,
            operations.c.account == op.account,
            operations.c.action == op.action,
            operations.c.kind == str(op.kind),
            operations.c.approve_by.is_not(None),
            operations.c.id != op.id,
            cases.c.closed_at.is_(None),
        )
    )
    return [(row[0], row[1]) for row in connection.execute(query)]


def revoke(connection: Connection, grant_id: str, now: int) -> bool:
    """End a session grant. False if there is none that still holds."""
    holds = sa.and_(
        grants.c.id == grant_id, grants.c.revoked_at.is_(None), grants.c.expires_at > now
    )
    ended = sa.update(grants).where(holds).values(revoked_at=now)
    return connection.execute(ended).rowcount > 0
