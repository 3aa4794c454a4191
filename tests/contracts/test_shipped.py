"""Every shipped contract says where it is from, and its examples would notice any change of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date

import pytest
from tests.contracts.library import NAMES, contract_of, text_of

from forbear.rules.contract import Contract, Job, Lookup, Match, Row, Rule
from forbear.rules.contract_report import report
from forbear.rules.model import JobClass
from forbear.rules.notation import parse_pointer
from forbear.rules.replay import replay
from forbear.tools import samples

EACH = pytest.mark.parametrize("name", NAMES)
ELSEWHERE = parse_pointer("/elsewhere")


def test_the_library_is_large_and_has_generic_contracts_for_what_it_lacks() -> None:
    assert len(NAMES) >= 18
    assert {"http-job", "http-call"} <= set(NAMES)


@EACH
def test_its_examples_come_out(name: str) -> None:
    contract = contract_of(name)
    assert contract.examples
    assert [f"line {one.example.line}: {one.concluded}" for one in replay(contract)] == []


@EACH
def test_it_names_its_sources_and_the_day_they_were_read(name: str) -> None:
    text, contract = text_of(name), contract_of(name)
    assert contract.checked is not None
    assert contract.docs is not None
    assert re.findall(r"^# source: https://\S+", text, re.MULTILINE)
    assert contract.title != contract.provider


@EACH
def test_every_open_point_of_its_report_is_explained(name: str) -> None:
    contract = contract_of(name)
    assert contract.checked is not None
    found = report(contract, date.fromisoformat(contract.checked))
    explained = set(re.findall(r"^# open: (\w+): \S", text_of(name), re.MULTILINE))
    assert {finding.code for finding in found if finding.warning} <= explained
    assert explained <= {finding.code for finding in found}


@EACH
def test_everything_an_agent_may_start_is_described(name: str) -> None:
    contract = contract_of(name)
    for action in (*contract.jobs.values(), *contract.calls.values()):
        assert action.title, action.name
        assert action.description, action.name


@EACH
def test_an_agent_is_given_a_valid_example_of_everything(name: str) -> None:
    contract = contract_of(name)
    for action in (*contract.jobs.values(), *contract.calls.values()):
        example = samples.of(action.input)
        assert samples.problems(action.input, example) == [], f"{action.name}: {example}"


def mutations(contract: Contract) -> Iterator[tuple[str, Contract]]:
    """The contract with one row of a state table wrong or gone, one rule gone, one lookup blind."""
    for job in contract.jobs.values():
        for number, row in enumerate(job.states.rows):
            told, rows = f"{job.name}: {', '.join(row.words)}", job.states.rows
            yield f"{told} gone", _with_rows(contract, job, (*rows[:number], *rows[number + 1 :]))
            for other in JobClass:
                if other is not row.means:
                    wrong = replace(row, means=other)
                    made = (*rows[:number], wrong, *rows[number + 1 :])
                    yield f"{told} is {other}", _with_rows(contract, job, made)
    for rule in dict.fromkeys(_rules(contract)):
        yield f"no rule {rule}", _without(contract, rule)
    for name, lookup in lookups(contract):
        if _names_ours(lookup):
            yield f"{name} is looked for elsewhere", _looking_elsewhere(contract, name, lookup)


def _with_rows(contract: Contract, job: Job, rows: tuple[Row, ...]) -> Contract:
    wrong = replace(job, states=replace(job.states, rows=rows))
    return replace(contract, jobs={**contract.jobs, job.name: wrong})


def _rules(contract: Contract) -> Iterator[Rule]:
    for action in (*contract.jobs.values(), *contract.calls.values()):
        yield from action.rules


def lookups(contract: Contract) -> Iterator[tuple[str, Lookup]]:
    for action in (*contract.jobs.values(), *contract.calls.values()):
        if action.lookup is not None:
            yield action.name, action.lookup


def _names_ours(lookup: Lookup) -> bool:
    """Whether what is found is known by what we sent for it; arguments are unknown to a replay."""
    templates = (condition.template for _, condition in lookup.match.terms)
    return any({"ref", "key"} & one.names for one in templates if one is not None)


def _looking_elsewhere(contract: Contract, name: str, lookup: Lookup) -> Contract:
    terms = tuple((ELSEWHERE, condition) for _, condition in lookup.match.terms)
    wrong = replace(lookup, match=Match(terms))
    jobs, calls = dict(contract.jobs), dict(contract.calls)
    if name in jobs:
        jobs[name] = replace(jobs[name], lookup=wrong)
    else:
        calls[name] = replace(calls[name], lookup=wrong)
    return replace(contract, jobs=jobs, calls=calls)


def _without(contract: Contract, rule: Rule) -> Contract:
    def kept(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(one for one in rules if one != rule)

    return replace(
        contract,
        jobs={name: replace(one, rules=kept(one.rules)) for name, one in contract.jobs.items()},
        calls={name: replace(one, rules=kept(one.rules)) for name, one in contract.calls.items()},
    )


def _noticed(contract: Contract) -> bool:
    return any(replay(replace(contract, examples=(one,))) for one in contract.examples)


@EACH
def test_its_examples_notice_every_mutation_of_a_state_table_rule_or_lookup(name: str) -> None:
    unnoticed = [told for told, wrong in mutations(contract_of(name)) if not _noticed(wrong)]
    assert unnoticed == []
