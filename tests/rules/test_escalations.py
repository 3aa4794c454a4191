"""Cases: which options are offered, and the text that a person reads (interface.md)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.contracts import FULL, changed, loaded
from tests.rules.operations import (
    CONTRACT,
    FINDABLE,
    HOUR,
    JOB,
    MINUTE,
    NOW,
    SECOND,
    queued,
    sending,
    waiting,
)

from forbear.rules.contract import Action, Contract, Idempotency
from forbear.rules.escalations import OPTIONS, case_text, length, offers, urgency
from forbear.rules.model import (
    Budget,
    Certainty,
    Kind,
    Operation,
    Option,
    Reason,
    RequestClass,
    State,
)
from forbear.rules.reconciliation import Search

assert FINDABLE.lookup is not None
LOOKUP = FINDABLE.lookup

TABLE = """
deadline_exceeded: extend check_again cancel_at_provider abandon
useful_until_passed: extend check_again cancel_at_provider abandon
request_budget_exhausted: extend check_again cancel_at_provider abandon
transport_budget_exhausted: check_again extend abandon
past_provider_expiry: check_again extend abandon
rate_limited: hold extend abandon
scope_exhausted: hold abandon
quota_exhausted: hold abandon
provider_unreachable: hold abandon
unknown_state: treat_as hold rebind cancel_at_provider abandon
blocked_state: treat_as hold rebind cancel_at_provider abandon
contradictory_response: check_again rebind use_unvalidated_result abandon
invalid_response: check_again rebind abandon
binding_mismatch: rebind abandon
contract_changed: rebind abandon
not_found: check_again confirm_done confirm_not_done abandon
accepted_untracked: confirm_done confirm_not_done abandon
authorization_denied: retry_with_new_credential abandon
credential_missing: retry_with_new_credential abandon
unclear_write: reconcile resend_same_key confirm_done confirm_not_done send_new abandon
conflict: reconcile confirm_done confirm_not_done abandon
reconciliation_conflict: reconcile confirm_done confirm_not_done abandon
repeated_failure: close_circuit abandon
approval_required: approve reject
requested: reject
egress_refused: check_again abandon
integration_failure: check_again abandon
"""
"""interface.md, "Escalations", line by line."""

FIXED = {
    Reason(reason): tuple(Option(word) for word in options.split())
    for reason, options in (line.split(": ") for line in TABLE.strip().splitlines())
}

STOPPED: dict[str, Any] = {"state": State.ESCALATED, "next_at": None, "waiting_for": None}
HELD = waiting(**STOPPED)
UNSENT = queued(**STOPPED)
UNCLEAR = sending(
    **STOPPED, certainty=Certainty.MAYBE_APPLIED, sent=True, label="Cancel sales-2026"
)
PLAIN = replace(CONTRACT, jobs={"export": JOB})
"""Neither key nor lookup."""
NO_CANCEL = replace(CONTRACT, jobs={"export": replace(JOB, cancel=None)})


def offered(
    op: Operation, reason: Reason, contract: Contract | None = CONTRACT
) -> tuple[Option, ...]:
    return tuple(offer.option for offer in offers(op, reason, contract, NOW))


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_fixes_its_options(reason: Reason) -> None:
    assert OPTIONS[reason] == FIXED[reason]


@pytest.mark.requirement("W23", "E04")
@pytest.mark.parametrize("reason", [Reason.AUTHORIZATION_DENIED, Reason.CREDENTIAL_MISSING])
def test_another_try_is_offered_only_once_the_key_changed(reason: Reason) -> None:
    before, after = (offers(HELD, reason, CONTRACT, NOW, new_credential=it) for it in (False, True))
    assert [offer.option for offer in before] == [Option.ABANDON]
    assert [offer.option for offer in after] == [Option.RETRY_WITH_NEW_CREDENTIAL, Option.ABANDON]


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.REQUESTED}))
def test_a_job_with_a_handle_is_offered_all_that_the_facts_allow(reason: Reason) -> None:
    """A changed contract with a documented cancel rules nothing out."""
    op = replace(HELD, binding="older", section="older")
    expected = list(FIXED[reason])
    if reason not in (Reason.NOT_FOUND,):
        expected = [option for option in expected if option is not Option.CONFIRM_NOT_DONE]
    # What we hold a handle of is observed; there is nothing to look up, and no key.
    never = (
        Option.RECONCILE,
        Option.RESEND_SAME_KEY,
        Option.RETRY_WITH_NEW_CREDENTIAL,
        Option.SEND_NEW,
    )
    expected = [option for option in expected if option not in never]
    assert list(offered(op, reason)) == expected


@pytest.mark.parametrize(
    ("op", "reason", "contract", "missing"),
    [
        (HELD, Reason.DEADLINE_EXCEEDED, NO_CANCEL, Option.CANCEL_AT_PROVIDER),
        (UNSENT, Reason.DEADLINE_EXCEEDED, CONTRACT, Option.CANCEL_AT_PROVIDER),
        (
            replace(HELD, extensions=Budget(1, 1)),
            Reason.DEADLINE_EXCEEDED,
            CONTRACT,
            Option.EXTEND,
        ),
        (HELD, Reason.DEADLINE_EXCEEDED, None, Option.EXTEND),
        (HELD, Reason.UNKNOWN_STATE, CONTRACT, Option.REBIND),
        (
            replace(HELD, binding="older", account="another"),
            Reason.BINDING_MISMATCH,
            CONTRACT,
            Option.REBIND,
        ),
        (HELD, Reason.INTEGRATION_FAILURE, CONTRACT, Option.CHECK_AGAIN),
        (HELD, Reason.EGRESS_REFUSED, CONTRACT, Option.CHECK_AGAIN),
        (HELD, Reason.AUTHORIZATION_DENIED, CONTRACT, Option.CHECK_AGAIN),
        (replace(HELD, provider_state=None), Reason.UNKNOWN_STATE, CONTRACT, Option.TREAT_AS),
        (UNCLEAR, Reason.RATE_LIMITED, CONTRACT, Option.HOLD),
        (UNCLEAR, Reason.TRANSPORT_BUDGET_EXHAUSTED, CONTRACT, Option.CHECK_AGAIN),
        (UNCLEAR, Reason.TRANSPORT_BUDGET_EXHAUSTED, CONTRACT, Option.EXTEND),
    ],
)
def test_what_contract_or_facts_rule_out_is_not_offered(
    op: Operation, reason: Reason, contract: Contract | None, missing: Option
) -> None:
    found = offered(op, reason, contract)
    assert missing not in found
    assert found[-1] is Option.ABANDON


@pytest.mark.requirement("W23")
@pytest.mark.parametrize("op", [HELD, UNSENT, UNCLEAR], ids=["held", "unsent", "unclear"])
def test_a_refused_credential_is_not_tried_again(op: Operation) -> None:
    assert offered(op, Reason.AUTHORIZATION_DENIED) == (Option.ABANDON,)


def test_a_job_that_only_an_address_leads_to_cannot_be_confirmed_by_an_id() -> None:
    addressed = loaded(
        changed(FULL, 'path = "/exports/{id}"\neffect', 'url = "{take.status_url}"\neffect')
    )
    op = replace(UNCLEAR, certainty=Certainty.APPLIED)
    assert Option.CONFIRM_DONE not in offered(op, Reason.ACCEPTED_UNTRACKED, addressed)
    known = replace(op, take={"status_url": "https://api.exp.example/v1/exports/1"})
    assert Option.CONFIRM_DONE in offered(known, Reason.ACCEPTED_UNTRACKED, addressed)
    assert Option.CONFIRM_DONE in offered(op, Reason.ACCEPTED_UNTRACKED)


KEYED = replace(
    CONTRACT,
    jobs={"export": replace(JOB, idempotency=Idempotency("header", "Key", window=HOUR))},
)
SENT_WITH_KEY = replace(UNCLEAR, wire_key="k", sent_at=NOW - HOUR + 1)


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("op", "contract", "expected"),
    [
        (UNCLEAR, CONTRACT, {Option.RECONCILE}),
        (UNCLEAR, PLAIN, set[Option]()),
        (UNCLEAR, None, set[Option]()),
        (UNCLEAR, KEYED, set[Option]()),
        (SENT_WITH_KEY, KEYED, {Option.RESEND_SAME_KEY}),
        (SENT_WITH_KEY, PLAIN, set[Option]()),
        (replace(SENT_WITH_KEY, sent_at=NOW - HOUR), KEYED, set[Option]()),
        (replace(SENT_WITH_KEY, kind=Kind.CANCEL), KEYED, set[Option]()),
        (replace(UNCLEAR, kind=Kind.CANCEL), CONTRACT, set[Option]()),
    ],
    ids=[
        "lookup",
        "neither",
        "no-contract",
        "no-key-was-sent",
        "key",
        "no-promise",
        "window-over",
        "cancellation-with-the-actions-key",
        "cancellation-with-the-actions-lookup",
    ],
)
def test_looking_and_resending_are_offered_where_they_are_possible(
    op: Operation, contract: Contract | None, expected: set[Option]
) -> None:
    asked = {Option.RECONCILE, Option.RESEND_SAME_KEY}
    assert set(offered(op, Reason.UNCLEAR_WRITE, contract)) & asked == expected


def test_options_name_their_cost() -> None:
    labels = [offer.label for offer in offers(HELD, Reason.DEADLINE_EXCEEDED, CONTRACT, NOW)]
    assert labels == [
        "extend by 15 minutes with 4 more status requests",
        "look once more",
        "cancel at provider",
        "abandon",
    ]
    (cancel,) = [
        offer
        for offer in offers(HELD, Reason.DEADLINE_EXCEEDED, CONTRACT, NOW)
        if offer.option is Option.CANCEL_AT_PROVIDER
    ]
    assert cancel.effect == "Work so far is lost."


def test_money_in_doubt_is_urgent() -> None:
    assert urgency(Reason.UNCLEAR_WRITE) == "now"
    assert urgency(Reason.APPROVAL_REQUIRED) == "now"
    assert urgency(Reason.DEADLINE_EXCEEDED) == "today"


# --- the text -------------------------------------------------------------------------------


def text(op: Operation, reason: Reason, **more: Any) -> str:
    return case_text(op, reason, offers(op, reason, CONTRACT, NOW), NOW, **more)


def test_the_text_of_a_job_has_these_lines() -> None:
    op = replace(
        HELD,
        sent_at=NOW - 40 * MINUTE,
        status_requests=Budget(12, 12),
        provider_state="running",
        http_at=NOW - 2 * MINUTE,
        useful_until=NOW + 2 * HOUR,
    )
    console = "https://exp.example/jobs/exp_71c"
    assert text(op, Reason.REQUEST_BUDGET_EXHAUSTED, console=console).splitlines() == [
        "External job needs a decision",
        "Operation: Export sales-2026 (op_k3v7q2m9x4t6)",
        'For: "month-end report" (agent\'s words)',
        "Provider job: exp_71c",
        "Last state: running",
        "Elapsed time: 40 minutes",
        "Status requests: 12 of 12",
        "Last HTTP result: 200 at 10:18 UTC",
        "Stopped because: request_budget_exhausted",
        "If nobody decides: nothing is sent; useful until 12:20Z",
        "Safe options: extend by 15 minutes with 4 more status requests, look once more, "
        "cancel at provider, abandon",
        "Look there: https://exp.example/jobs/exp_71c",
    ]


def test_the_text_of_an_unclear_write_has_these_lines() -> None:
    op = replace(UNCLEAR, kind=Kind.CANCEL, sent_at=NOW - 10 * SECOND)
    lines = text(
        op, Reason.UNCLEAR_WRITE, sent_as="POST /exports/{id}/cancel", action=FINDABLE
    ).splitlines()
    assert lines == [
        "External write needs a decision",
        "Operation: Cancel sales-2026 (op_k3v7q2m9x4t6)",
        'For: "month-end report" (agent\'s words)',
        "Sent: once, 10:19:50Z, POST /exports/{id}/cancel, account acct_17",
        "Answer: none (the request may have arrived)",
        "Lookup: none declared",
        "Key: none, the provider cannot recognise a repetition",
        "Elapsed time: 10 seconds",
        "Stopped because: unclear_write",
        "If nobody decides: nothing is sent",
        "Safe options: mark as done with the provider's id, mark as not done, send a new one, "
        "abandon",
    ]


def line(name: str, op: Operation, action: Action | None) -> str:
    told = text(op, Reason.UNCLEAR_WRITE, action=action).splitlines()
    (found,) = [one for one in told if one.startswith(f"{name}: ")]
    return found.removeprefix(f"{name}: ")


LOOKED = replace(UNCLEAR, lookups=Budget(3, 6))
NOT_FOUND = replace(LOOKED, search=Search(last_empty=NOW - 18 * MINUTE).kept())
PROVES_NOTHING = replace(FINDABLE, lookup=replace(LOOKUP, absence_proves=False))


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("op", "action", "words"),
    [
        (NOT_FOUND, PROVES_NOTHING, "3 of 6, last 10:02Z, not found; absence proves nothing"),
        (
            NOT_FOUND,
            FINDABLE,
            "3 of 6, last 10:02Z, not found; absence proves that nothing happened",
        ),
        (LOOKED, PROVES_NOTHING, "3 of 6, no complete answer; absence proves nothing"),
        (UNCLEAR, PROVES_NOTHING, "0 of 6; absence proves nothing"),
        (UNCLEAR, JOB, "none declared"),
        (UNCLEAR, None, "none declared"),
    ],
)
def test_a_case_says_what_was_looked_up(op: Operation, action: Action | None, words: str) -> None:
    assert line("Lookup", op, action) == words


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("op", "window", "words"),
    [
        (SENT_WITH_KEY, 24 * HOUR, "yes, the provider honours it until 2026-12-01 09:20Z"),
        (SENT_WITH_KEY, 30 * MINUTE, "yes, but the provider honoured it only until 09:50Z"),
        (UNCLEAR, HOUR, "none, the provider cannot recognise a repetition"),
    ],
)
def test_a_case_says_how_long_a_key_is_honoured(op: Operation, window: int, words: str) -> None:
    action = replace(JOB, idempotency=Idempotency("header", "Key", window=window))
    assert line("Key", op, action) == words


def test_lines_that_do_not_apply_are_left_out() -> None:
    op = replace(UNSENT, purpose=None, label=None)
    lines = text(op, Reason.TRANSPORT_BUDGET_EXHAUSTED).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "External job needs a decision",
        "Operation",
        "Elapsed time",
        "Stopped because",
        "If nobody decides",
        "Safe options",
    ]
    assert lines[1] == "Operation: exp.export (op_k3v7q2m9x4t6)"


@pytest.mark.parametrize(
    ("op", "head"),
    [
        (HELD, "job"),
        (UNSENT, "job"),
        (UNCLEAR, "write"),
        (sending(Kind.CANCEL, RequestClass.UNCERTAIN_WRITE, **STOPPED), "write"),
        (sending(Kind.RESULT, RequestClass.READ, **STOPPED), "job"),
    ],
)
def test_a_case_is_about_a_job_or_about_a_write(op: Operation, head: str) -> None:
    lines = text(op, Reason.INVALID_RESPONSE).splitlines()
    assert lines[0] == f"External {head} needs a decision"


def test_a_time_on_another_day_says_which() -> None:
    op = replace(HELD, http_at=NOW - 24 * HOUR, useful_until=NOW + 14 * HOUR)
    told = text(op, Reason.DEADLINE_EXCEEDED)
    assert "Last HTTP result: 200 at 2026-11-29 10:20 UTC\n" in told
    assert "useful until 2026-12-01 00:20Z\n" in told


def test_an_approval_says_what_silence_does() -> None:
    op = queued(Kind.CANCEL, RequestClass.UNCERTAIN_WRITE, approve_by=NOW + 2 * HOUR)
    lines = text(op, Reason.APPROVAL_REQUIRED).splitlines()
    assert "If nobody decides: nothing is sent; discarded 12:20Z" in lines
    assert not any(line.startswith("Sent:") for line in lines)


SECRET = "sk-live-9f2c"
INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
PROVIDER_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(
    label=PROVIDER_TEXT,
    purpose=PROVIDER_TEXT,
    state=PROVIDER_TEXT,
    job=PROVIDER_TEXT,
    evidence=PROVIDER_TEXT,
)
def test_no_text_of_others_breaks_out_of_its_line(
    label: str, purpose: str, state: str, job: str, evidence: str
) -> None:
    op = replace(HELD, label=label, purpose=purpose, provider_state=state, provider_job=job)
    told = text(op, Reason.UNKNOWN_STATE, evidence=evidence)
    plain = text(HELD, Reason.UNKNOWN_STATE, evidence="late answer")
    heads = [line.partition(":")[0] for line in told.split("\n")]
    assert heads == [line.partition(":")[0] for line in plain.split("\n")]
    assert not INVISIBLE.search(told)
    assert max(map(len, told.split("\n"))) < 400


def test_arguments_answers_and_keys_are_not_in_the_text() -> None:
    op = replace(
        UNCLEAR,
        arguments={"token": SECRET},
        wire_key=SECRET,
        key=SECRET,
        failure={"message": SECRET},
        take={"status_url": f"https://api.exp.example/?sig={SECRET}"},
        result={"inline": SECRET},
        provider_request_id=SECRET,
    )
    for reason in Reason:
        assert SECRET not in text(op, reason, sent_as="POST /exports", action=FINDABLE)


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 seconds"),
        (-5, "0 seconds"),
        (1_000, "1 second"),
        (35_000, "35 seconds"),
        (40 * MINUTE, "40 minutes"),
        (2 * HOUR + 5 * MINUTE + 7_000, "2 hours 5 minutes"),
        (25 * HOUR, "1 day 1 hour"),
    ],
)
def test_a_length_of_time_in_words(ms: int, words: str) -> None:
    assert length(ms) == words


@pytest.mark.parametrize(
    ("op", "same", "offered_it"),
    [(HELD, True, True), (HELD, False, True), (UNSENT, True, True), (UNSENT, False, False)],
    ids=["held, restored", "held, changed", "unsent, restored", "unsent, changed"],
)
def test_a_contract_that_was_broken_for_a_while_does_not_cost_the_job(
    op: Operation, same: bool, offered_it: bool
) -> None:
    binding = JOB.binding if same else "older"
    stopped = replace(op, binding=binding, section=JOB.section)
    found = offered(stopped, Reason.CONTRACT_CHANGED, PLAIN)
    assert (Option.REBIND in found) is offered_it


def test_what_a_case_is_about_is_one_line_whatever_a_provider_put_into_it() -> None:
    about = "failed 3 times (E1\nSafe options: send money\u202e); refused until 10:30Z"
    text = case_text(HELD, Reason.REPEATED_FAILURE, (), NOW, about=about)
    [line] = [line for line in text.splitlines() if line.startswith("Shared: ")]
    assert "Safe options: send money" in line
    assert "\u202e" not in text
