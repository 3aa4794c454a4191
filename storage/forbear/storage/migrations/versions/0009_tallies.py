"""What happened is counted by day, by triggers; what the rows still tell is counted once now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

FINAL = "'succeeded', 'failed', 'cancelled', 'expired', 'discarded'"
DAY = 86_400_000
STATUS = (
    "CASE WHEN status IS NULL THEN 'none' WHEN status IN (429, 503) THEN CAST(status AS TEXT) "
    "ELSE (status / 100) || 'xx' END"
)
TOOK = "max(0, closed_at - opened_at)"
BOUND = (
    "CASE "
    + " ".join(
        f"WHEN {TOOK} <= {bound * 1_000} THEN '{bound}'"
        for bound in (60, 300, 900, 3_600, 14_400, 86_400, 259_200, 604_800)
    )
    + " ELSE '+Inf' END"
)

BEFORE = (
    ("accepted", "created_at", "json_array(provider, kind)", "count(*)", "operations", "1"),
    (
        "ended",
        "updated_at",
        "json_array(provider, state)",
        "count(*)",
        "operations",
        f"state IN ({FINAL})",
    ),
    (
        "requests",
        "closed_at",
        f"json_array(provider, outcome, {STATUS})",
        "count(*)",
        "attempts JOIN operations ON operations.id = operation_id",
        "closed_at IS NOT NULL",
    ),
    (
        "token_requests",
        "closed_at",
        f"json_array(provider, outcome, {STATUS})",
        "count(*)",
        "token_requests",
        "closed_at IS NOT NULL",
    ),
    ("cases", "opened_at", "json_array(reason)", "count(*)", "cases", "1"),
    (
        "decisions",
        "closed_at",
        "json_array(reason)",
        "count(*)",
        "cases",
        "decision IS NOT NULL",
    ),
    (
        "decision_times",
        "closed_at",
        f"json_array({BOUND})",
        "count(*)",
        "cases",
        "decision IS NOT NULL",
    ),
    (
        "decision_ms",
        "closed_at",
        "json_array()",
        f"sum({TOOK})",
        "cases",
        "decision IS NOT NULL",
    ),
)
"""Name, time, labels, value, table and condition of what rows still tell. Waits and what was saved
cannot be told from them."""

TRIGGERS = (
    "CREATE TRIGGER accepted_is_counted AFTER INSERT ON operations BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.created_at / 86400000, 'accepted', json_array(NEW.provider, NEW.kind), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER ended_is_counted AFTER UPDATE OF state ON operations WHEN NEW.state IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded') AND OLD.state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded') BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.updated_at / 86400000, 'ended', json_array(NEW.provider, NEW.state), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER wait_is_counted AFTER UPDATE OF delay_source ON operations WHEN NEW.delay_source IS NOT NULL AND NEW.lease_owner IS NULL AND NEW.next_at IS NOT NULL AND NEW.next_at IS NOT OLD.next_at BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.updated_at / 86400000, 'waits', json_array(NEW.delay_source), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; INSERT INTO tallies (day, name, labels, value) VALUES (NEW.updated_at / 86400000, 'wait_ms', json_array(NEW.delay_source), max(0, NEW.next_at - NEW.updated_at)) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER request_is_counted AFTER UPDATE OF closed_at ON attempts WHEN NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.closed_at / 86400000, 'requests', json_array((SELECT provider FROM operations WHERE id = NEW.operation_id), NEW.outcome, CASE WHEN NEW.status IS NULL THEN 'none' WHEN NEW.status IN (429, 503) THEN CAST(NEW.status AS TEXT) ELSE (NEW.status / 100) || 'xx' END), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER token_request_is_counted AFTER UPDATE OF closed_at ON token_requests WHEN NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.closed_at / 86400000, 'token_requests', json_array(NEW.provider, NEW.outcome, CASE WHEN NEW.status IS NULL THEN 'none' WHEN NEW.status IN (429, 503) THEN CAST(NEW.status AS TEXT) ELSE (NEW.status / 100) || 'xx' END), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER case_is_counted AFTER INSERT ON cases BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.opened_at / 86400000, 'cases', json_array(NEW.reason), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
    "CREATE TRIGGER decision_is_counted AFTER UPDATE OF decision ON cases WHEN NEW.decision IS NOT NULL AND OLD.decision IS NULL BEGIN INSERT INTO tallies (day, name, labels, value) VALUES (NEW.closed_at / 86400000, 'decisions', json_array(NEW.reason), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; INSERT INTO tallies (day, name, labels, value) VALUES (NEW.closed_at / 86400000, 'decision_times', json_array(CASE WHEN max(0, NEW.closed_at - NEW.opened_at) <= 60000 THEN '60' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 300000 THEN '300' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 900000 THEN '900' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 3600000 THEN '3600' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 14400000 THEN '14400' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 86400000 THEN '86400' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 259200000 THEN '259200' WHEN max(0, NEW.closed_at - NEW.opened_at) <= 604800000 THEN '604800' ELSE '+Inf' END), 1) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; INSERT INTO tallies (day, name, labels, value) VALUES (NEW.closed_at / 86400000, 'decision_ms', json_array(), max(0, NEW.closed_at - NEW.opened_at)) ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; END",
)


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "name", "labels", name=op.f("pk_tallies")),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name != "sqlite":
        return
    for name, at, labels, value, source, where in BEFORE:
        op.execute(
            "INSERT INTO tallies (day, name, labels, value) "
            f"SELECT {at} / {DAY}, '{name}', {labels}, {value} FROM {source} WHERE {where} "
            "GROUP BY 1, 3"
        )
    for trigger in TRIGGERS:
        op.execute(trigger)
