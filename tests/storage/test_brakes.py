"""Durable stops, ended tasks and accepted credentials: read in the transaction that would send."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from tests.storage.house import DONE, MINUTE, RUNNING, House, holding

from forbear.rules.model import State, WaitingFor
from forbear.storage.brakes import Brakes, Paused
from forbear.storage.intents import EndedTask
from forbear.storage.reserving import Reserved

BY = {"operator": "ada"}


def pause(house: House, target: str) -> bool:
    return house.write(partial(Brakes(house.clock).pause, target=target, by=BY))


def resume(house: House, target: str) -> bool:
    return house.write(partial(Brakes(house.clock).resume, target=target, by=BY))


@pytest.mark.requirement("D12")
@pytest.mark.parametrize("target", ["all", "exp", "scope"])
def test_a_pause_stops_what_is_due_until_it_is_undone(house: House, target: str) -> None:
    op = house.waiting()
    scope = house.attempts(op)[0].scope
    named = scope if target == "scope" else target
    house.due(op)
    assert pause(house, named)
    assert not isinstance(house.reserve(op), Reserved)
    assert house.read(op).status_requests.used == 0
    assert resume(house, named)
    house.due(op)
    assert isinstance(house.reserve(op), Reserved)


@pytest.mark.requirement("D12")
def test_a_pause_of_another_provider_stops_nothing(house: House) -> None:
    op = house.new()
    pause(house, "other")
    assert isinstance(house.reserve(op), Reserved)


@pytest.mark.requirement("D12")
@pytest.mark.parametrize("target", ["all", "exp"])
def test_a_paused_provider_admits_nothing_new(house: House, target: str) -> None:
    pause(house, target)
    assert house.ask() == Paused(target)
    assert house.all() == []


@pytest.mark.requirement("D12")
def test_deadlines_go_on_while_paused(house: House) -> None:
    op = house.waiting()
    pause(house, "all")
    house.clock.advance(24 * 60 * MINUTE)
    house.reserve(op)
    assert house.read(op).state is State.ESCALATED


@pytest.mark.requirement("D12")
def test_a_pause_is_made_and_undone_once_and_recorded_with_its_operator(house: House) -> None:
    assert pause(house, "all")
    assert not pause(house, "all")
    assert resume(house, "all")
    assert not resume(house, "all")
    told = house.trail()
    assert [event.code for event in told] == ["paused", "resumed"]
    assert all("ada" in str(event.body) for event in told)


@pytest.mark.requirement("R22")
def test_an_ended_task_takes_no_new_work_and_drops_what_was_not_sent(house: House) -> None:
    unsent = house.new("a", task="month-end")
    running = house.new("b", task="month-end")
    house.permit(running)
    other = house.new("c", task="another")
    end = partial(house.ledger.end_task, principal="local", task="month-end", why="over")
    touched = house.write(end)
    assert [op.id for op in touched] == [unsent.id, running.id]
    assert house.read(unsent).state is State.DISCARDED
    assert house.read(running).pending == {"end": "over"}
    assert house.read(other).state is State.QUEUED
    refused = house.ask("d", task="month-end")
    assert isinstance(refused, EndedTask)
    assert refused.at == house.clock.now().wall


@pytest.mark.requirement("R22")
def test_what_also_belongs_to_another_task_goes_on(house: House) -> None:
    op = house.new("a", task="one")
    house.ask("a", task="two")
    house.write(partial(house.ledger.end_task, principal="local", task="one", why="over"))
    assert house.read(op).state is State.QUEUED
    house.write(partial(house.ledger.end_task, principal="local", task="two", why="over"))
    assert house.read(op).state is State.DISCARDED


@pytest.mark.requirement("D10")
def test_another_credential_sends_nothing_until_a_person_accepts_it(house: House) -> None:
    op = house.waiting()
    house.poll(op, RUNNING)
    house.due(op)
    other = replace(holding(), credential="another", version="another")
    assert not isinstance(house.reserve(op, other), Reserved)
    assert house.read(op).waiting_for is WaitingFor.CREDENTIAL
    accept = partial(
        Brakes(house.clock).accept_credential,
        provider=op.provider,
        account=op.account,
        fingerprint="another",
        by=BY,
    )
    house.write(accept)
    house.due(op)
    reserved = house.reserve(op, other)
    assert isinstance(reserved, Reserved)
    assert house.settle(reserved, DONE).state is State.SUCCEEDED


def test_what_another_process_sent_meanwhile_is_not_dropped_as_unsent(house: House) -> None:
    op = house.waiting()
    unsent = frozenset({State.QUEUED, State.DELAYED})
    drop = partial(house.ledger.drop, operation_id=op.id, why="cancelled", only=unsent)
    assert house.write(drop) == house.read(op)
    assert house.read(op).state is State.WAITING
