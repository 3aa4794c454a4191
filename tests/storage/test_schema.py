"""Rows that must not exist cannot be written, whoever tries."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError
from tests.storage.house import ACCEPTED, LOST, UNSENT, House

from forbear.rules.model import State
from forbear.storage.schema import metadata

pytestmark = pytest.mark.postgresql


def forbidden(house: House, statement: str, says: str = ".") -> None:
    with pytest.raises(IntegrityError, match=says):
        house.sql(statement)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'finished'",
        "kind = 'batch'",
        "step = 'poll'",
        "request_class = 'write'",
        "priority = 'urgent'",
        "certainty = 'perhaps'",
        "waiting_for = 'luck'",
        "delay_source = 'whim'",
        "state = NULL",
        "next_at = NULL",
        "principal = NULL",
        "deadline_at = NULL",
        "binding = NULL",
        "state = 'succeeded'",
        "state = 'escalated'",
        "state = 'sending', sent_at = 1",
        "state = 'sending', lease_owner = 'a', lease_boot = 'b', lease_until = 1",
        "state = 'waiting'",
        "state = 'waiting', accepted_at = 1, kind = 'call'",
        "lease_owner = 'own_a'",
        "lease_until = 1",
        "state = 'discarded', next_at = NULL, lease_owner = 'a', lease_boot = 'b', lease_until = 1",
        "state = 'escalated', next_at = NULL, lease_owner = 'a', lease_boot = 'b', lease_until = 1",
        "attempts_used = -1",
        "status_requests_max = -1",
        "fence = -1",
        "revision = 0",
    ],
)
def test_an_illegal_operation_cannot_be_stored(house: House, change: str) -> None:
    op = house.new()
    forbidden(house, f"UPDATE operations SET {change} WHERE id = '{op.id}'")
    assert house.read(op) == op


@pytest.mark.parametrize(
    "column",
    [
        *("id", "number", "principal", "provider", "account", "action", "kind", "intent", "key"),
        *("ref", "wire_key", "request_digest", "created_at", "parent_id"),
    ],
)
@pytest.mark.requirement("R13", "W08")
def test_what_an_operation_is_never_changes(house: House, column: str) -> None:
    op = house.new(key="mine")
    value = "7" if column in ("number", "created_at") else "'another'"
    forbidden(house, f"UPDATE operations SET {column} = {value}", "(?i)never changes|check")
    assert house.read(op) == op


@pytest.mark.parametrize("budget", ["status_requests", "transport_failures", "rate_limited"])
@pytest.mark.requirement("W17")
def test_no_statement_lowers_a_counter(house: House, budget: str) -> None:
    op = house.new()
    house.sql(f"UPDATE operations SET {budget}_used = 2")
    forbidden(house, f"UPDATE operations SET {budget}_used = 1", "never falls")
    assert getattr(house.read(op), budget).used == 2


@pytest.mark.requirement("W17")
def test_attempts_fall_only_by_one_and_only_into_transport_failures(house: House) -> None:
    op = house.new()
    house.sql("UPDATE operations SET attempts_used = 2, transport_failures_used = 1")
    for change in (
        "attempts_used = 1",
        "attempts_used = 0, transport_failures_used = 3",
        "attempts_used = 1, transport_failures_used = 0",
        "fence = fence - 1",
    ):
        forbidden(house, f"UPDATE operations SET {change}", "(?i)never falls|check")
    house.sql("UPDATE operations SET attempts_used = 1, transport_failures_used = 2")
    assert house.read(op).attempts.used == 1


@pytest.mark.requirement("W17")
def test_operations_and_attempts_are_never_deleted(house: House) -> None:
    house.waiting()
    forbidden(house, "DELETE FROM operations", "stays")
    forbidden(house, "DELETE FROM attempts", "stays")


def test_what_has_ended_stays_ended(house: House) -> None:
    op = house.drop(house.new())
    assert op.state is State.DISCARDED
    forbidden(house, "UPDATE operations SET state = 'queued', next_at = 1", "is over")
    forbidden(house, "UPDATE operations SET state = 'succeeded'", "is over")


def test_one_key_names_one_operation(house: House) -> None:
    house.new("sales", key="mine")
    other = house.new("costs", key="yours")
    columns = ", ".join(
        "'op_x'" if name == "id" else "'mine'" if name == "key" else f'"{name}"'
        for name in _columns(house, "operations")
        if name != "number"
    )
    names = ", ".join(f'"{n}"' for n in _columns(house, "operations") if n != "number")
    forbidden(
        house,
        f"INSERT INTO operations ({names}) SELECT {columns} FROM operations "
        f"WHERE id = '{other.id}'",
        "(?i)unique",
    )


def test_a_provider_job_is_watched_by_one_operation_that_is_not_over(house: House) -> None:
    house.waiting("sales", "exp_1")
    other = house.new("costs")
    forbidden(
        house, f"UPDATE operations SET provider_job = 'exp_1' WHERE id = '{other.id}'", "(?i)unique"
    )


def _columns(house: House, table: str) -> list[str]:
    return [column.name for column in metadata.tables[table].columns]


# --- attempts -------------------------------------------------------------------------------


def _copy_attempt(house: House, **changes: str) -> str:
    names = _columns(house, "attempts")
    values = ", ".join(changes.get(name, f'"{name}"') for name in names)
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"INSERT INTO attempts ({quoted}) SELECT {values} FROM attempts LIMIT 1"


def test_an_operation_has_one_open_attempt(house: House) -> None:
    house.permit(house.new())
    forbidden(house, _copy_attempt(house, id="'att_x'", number="9", fence="9"), "(?i)unique")


def test_numbers_and_fences_of_attempts_are_used_once(house: House) -> None:
    house.waiting()
    forbidden(house, _copy_attempt(house, id="'att_x'", fence="9"), "(?i)unique")
    forbidden(house, _copy_attempt(house, id="'att_x'", number="9"), "(?i)unique")
    forbidden(
        house, _copy_attempt(house, id="'att_x'", number="9", fence="9", operation_id="'op_no'")
    )


@pytest.mark.parametrize(
    "change",
    [
        "closed_at = 1",
        "outcome = 'answered'",
        "closed_at = 1, outcome = 'perhaps'",
        "closed_at = 1, outcome = 'answered', certainty = 'perhaps'",
        "step = 'poll'",
        "\"trigger\" = 'cron'",
    ],
)
def test_an_illegal_attempt_cannot_be_stored(house: House, change: str) -> None:
    house.permit(house.new())
    forbidden(house, f"UPDATE attempts SET {change}")


@pytest.mark.requirement("A04")
def test_an_attempt_is_closed_once_and_keeps_its_outcome(house: House) -> None:
    house.waiting()
    forbidden(house, "UPDATE attempts SET closed_at = NULL, outcome = NULL", "closed once")
    forbidden(house, "UPDATE attempts SET closed_at = closed_at + 1", "closed once")
    forbidden(house, "UPDATE attempts SET outcome = 'not_sent'", "closed once")


def test_only_an_unknown_outcome_takes_late_evidence(house: House) -> None:
    house.send(house.new(), LOST)
    forbidden(house, "UPDATE attempts SET outcome = 'answered', late = TRUE", "closed once")


# --- cases, audit trail ---------------------------------------------------------------------


def test_an_operation_has_one_open_case(house: House) -> None:
    house.send(house.new(), LOST)
    names = _columns(house, "cases")
    values = ", ".join({"number": "99", "id": "'esc_x'"}.get(n, f'"{n}"') for n in names)
    quoted = ", ".join(f'"{n}"' for n in names)
    forbidden(house, f"INSERT INTO cases ({quoted}) SELECT {values} FROM cases", "(?i)unique")


@pytest.mark.parametrize("change", ["reason = 'mood'", "decision = '{}'", "operation_id = 'no'"])
def test_an_illegal_case_cannot_be_stored(house: House, change: str) -> None:
    house.send(house.new(), LOST)
    forbidden(house, f"UPDATE cases SET {change}")


@pytest.mark.requirement("A10")
def test_the_audit_trail_is_only_appended_to(house: House) -> None:
    house.send(house.new(), UNSENT)
    before = house.sql("SELECT * FROM events")
    forbidden(house, "UPDATE events SET body = '{}'", "only appended")
    forbidden(house, "DELETE FROM events WHERE sequence = 1", "only appended")
    assert house.sql("SELECT * FROM events") == before


def test_a_request_belongs_to_an_operation(house: House) -> None:
    house.send(house.new(), ACCEPTED)
    forbidden(house, "INSERT INTO requests VALUES ('op_no', '{}', NULL, NULL)", "(?i)foreign key")
    forbidden(house, "INSERT INTO tasks VALUES ('op_no', 'month-end')", "(?i)foreign key")
