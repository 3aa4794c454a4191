"""What answers say is left of a quota, in all the forms that this takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.answering import CALL, CONTRACT, FACTS, JOB, NOW, UNSENT, no_reply, reply

from forbear.rules.conclusions import story_of
from forbear.rules.contract import Contract, Job, Scope, Unit
from forbear.rules.notation import parse_source
from forbear.rules.ports import Reply
from forbear.rules.quotas import LONGEST_RESET, OLDEST_RESET, Form, Quota
from forbear.rules.signals import Meaning, RetryAfter, Signal, read

EPOCH = NOW // 1000
MONTH = LONGEST_RESET // 1000

Lines = tuple[tuple[str, str], ...]


def lines(text: str) -> Lines:
    """Header lines as they stand in an answer."""
    pairs = (line.partition(": ") for line in text.strip().splitlines())
    return tuple((name.strip(), value) for name, _, value in pairs)


def answer(fields: str | Lines, status: int = 200, body: str = '{"state":"running"}') -> Reply:
    found = lines(fields) if isinstance(fields, str) else fields
    return replace(reply(status, body), headers=found)


def scoped(*scopes: Scope) -> Contract:
    return replace(CONTRACT, scopes=scopes)


ONE = scoped(Scope("account", "account"))


def told(answered: Reply, contract: Contract = ONE, job: Job = JOB) -> Signal:
    return read(answered, contract, job, job.status, FACTS, NOW)


def left(fields: str | Lines, contract: Contract = ONE) -> tuple[Quota | None, tuple[str, ...]]:
    """What is left to the scope `account`, and what was ignored."""
    signal = told(answer(fields), contract)
    return dict(signal.quotas).get("account"), signal.anomalies


@dataclass(frozen=True, slots=True)
class Says:
    """An answer's fields, and how many requests within how many ms they leave."""

    fields: str
    remaining: int
    within: int
    form: Form
    ignored: tuple[str, ...] = ()


def check(says: Says, contract: Contract = ONE) -> None:
    expected = Quota(says.remaining, says.within, says.form)
    assert left(says.fields, contract) == (expected, says.ignored)


# --- RateLimit as a list --------------------------------------------------------------------

LIST = Form.RATELIMIT


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    "says",
    [
        pytest.param(Says('RateLimit: "default";r=0;t=30', 0, 30_000, LIST), id="RL-09-A"),
        pytest.param(Says("RateLimit: default;r=0;t=30", 0, 30_000, LIST), id="RL-09-B-token"),
        pytest.param(
            Says('RateLimit: "a";r=5;t=9\nRateLimit: "b";r=0;t=40', 0, 40_000, LIST), id="RL-09-H"
        ),
        pytest.param(Says('ratelimit: "a";r=5;t=9', 5, 9_000, LIST), id="lower-case"),
        pytest.param(Says('RateLimit:   "a";r=5;t=9\t', 5, 9_000, LIST), id="spaces"),
        pytest.param(Says('RateLimit: "a"; r=5; t=9', 5, 9_000, LIST), id="spaces-in-parameters"),
        pytest.param(Says('RateLimit: "a";r=5;t=0', 5, 0, LIST), id="a-window-of-zero"),
        pytest.param(
            Says('RateLimit: "a";r=5;t=9;l=100;acme-burst=2.5;hot', 5, 9_000, LIST), id="comments"
        ),
        pytest.param(Says('RateLimit: "a";r=5;t=9;pk=:dHJp:', 5, 9_000, LIST), id="partition"),
        pytest.param(Says('RateLimit: "a";r=9;t=9;r=5', 5, 9_000, LIST), id="last-parameter-wins"),
        pytest.param(Says('RateLimit: "a";r=1.5;r=5;t=9', 5, 9_000, LIST), id="last-type-wins"),
        pytest.param(
            Says(f'RateLimit: "a";r={"9" * 15};t=9', 10**15 - 1, 9_000, LIST), id="15-digits"
        ),
        pytest.param(Says(f'RateLimit: "a";r=1;t={MONTH}', 1, LONGEST_RESET, LIST), id="a-month"),
        pytest.param(Says('RateLimit: "a, b;c\\"";r=5;t=9', 5, 9_000, LIST), id="odd-name"),
    ],
)
def test_a_list_of_limits_is_read(says: Says) -> None:
    check(says)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("value", "ignored"),
    [
        pytest.param('"a";r=-1;t=5', "RateLimit: malformed", id="RL-09-D"),
        pytest.param('"a";r=1.5;t=5', "RateLimit: malformed", id="RL-09-E"),
        pytest.param('"a";t=5', "RateLimit: malformed", id="RL-09-F"),
        pytest.param('"a";r=0;t=@1796040060', "RateLimit: malformed", id="RL-09-G"),
        pytest.param('"a";r=5;t=9,', "RateLimit: malformed", id="trailing-comma"),
        pytest.param('"a";r=5;t=9, , "b";r=1;t=9', "RateLimit: malformed", id="empty-member"),
        pytest.param('"a";r=5;t=9, "b";r=x;t=9', "RateLimit: malformed", id="one-bad-member"),
        pytest.param('"a";r=5;t=9, 10;w=1', "RateLimit: malformed", id="integer-as-name"),
        pytest.param('("a" "b");r=5;t=9', "RateLimit: malformed", id="inner-list"),
        pytest.param('%"a";r=5;t=9', "RateLimit: malformed", id="display-string-as-name"),
        pytest.param('"a";r;t=9', "RateLimit: malformed", id="boolean"),
        pytest.param('"a";r="5";t=9', "RateLimit: malformed", id="string-as-number"),
        pytest.param('"a";R=5;t=9', "RateLimit: malformed", id="upper-case-key"),
        pytest.param('"a";r=5;t=9;pk="x"', "RateLimit: malformed", id="partition-of-text"),
        pytest.param('"a";r=5;t=9;pk=:!:', "RateLimit: malformed", id="partition-no-base64"),
        pytest.param(f'"a";r={"9" * 16};t=9', "RateLimit: malformed", id="16-digits"),
        pytest.param('"a;r=5;t=9', "RateLimit: malformed", id="open-string"),
        pytest.param('"ä";r=5;t=9', "RateLimit: malformed", id="not-ascii"),
        pytest.param('"a";r=\u0665;t=9', "RateLimit: malformed", id="arabic-digits"),
        pytest.param("limit=10;remaining=0", "RateLimit-07: incomplete", id="neither-syntax"),
        pytest.param('"a";r=5', "RateLimit: incomplete", id="no-window"),
        pytest.param(f'"a";r=0;t={MONTH + 1}', "RateLimit: absurd", id="longer-than-a-month"),
        pytest.param(f'"a";r=0;t={EPOCH + 30}', "RateLimit: absurd", id="epoch-as-window"),
        pytest.param('"a";r=0;t=999999999999999', "RateLimit: absurd", id="31-million-years"),
    ],
)
def test_a_malformed_list_is_ignored_whole(value: str, ignored: str) -> None:
    assert left(f"RateLimit: {value}") == (None, (ignored,))


@pytest.mark.requirement("R04")
def test_the_same_fault_twice_is_told_once_beside_what_else_is_odd() -> None:
    signal = told(answer('Retry-After: soon\nRateLimit: "a";r=1, "b";r=2'))
    assert signal.anomalies == (
        "Retry-After 'soon' is neither seconds nor an HTTP-date",
        "RateLimit: incomplete",
    )


@pytest.mark.requirement("R04")
def test_an_empty_list_says_nothing() -> None:
    assert left("RateLimit: ") == (None, ())


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("value", "remaining", "seconds"),
    [
        pytest.param('"a";r=0;t=5, "b";r=0;t=60, "c";r=1;t=900', 0, 60, id="longest-of-the-spent"),
        pytest.param('"a";r=50;t=60, "b";r=100;t=3600', 100, 3600, id="lowest-rate"),
        pytest.param('"b";r=100;t=3600, "a";r=50;t=60', 100, 3600, id="in-any-order"),
        pytest.param('"a";r=0;t=0, "b";r=1;t=10', 1, 10, id="spent-and-full-again"),
        pytest.param('"a";r=0;t=99999999, "b";r=1;t=10', 1, 10, id="without-the-absurd"),
        pytest.param('"a";r=0, "b";r=1;t=10', 1, 10, id="without-the-incomplete"),
    ],
)
def test_the_most_restrictive_limit_counts(value: str, remaining: int, seconds: int) -> None:
    quota, _ = left(f"RateLimit: {value}")
    assert quota == Quota(remaining, seconds * 1000, LIST)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("policy", "limits", "quota", "ignored"),
    [
        pytest.param('"a";q=9;w=60', '"a";r=5;t=9', (5, 9_000), (), id="t-before-w"),
        pytest.param('"a";q=9;w=60', '"a";r=5', (5, 60_000), (), id="w-where-there-is-no-t"),
        pytest.param("a;q=9;w=60", '"a";r=5', (5, 60_000), (), id="token-and-string"),
        pytest.param('"a";q=9', '"a";r=5', None, ("RateLimit: incomplete",), id="neither"),
        pytest.param('"b";q=9;w=60', '"a";r=5', None, ("RateLimit: incomplete",), id="other-name"),
        pytest.param('"a";q=9;qu="requests"', '"a";r=5;t=9', (5, 9_000), (), id="requests"),
        pytest.param(
            '"a";q=9;qu="content-bytes"',
            '"a";r=0;t=9',
            None,
            ("RateLimit: other_unit",),
            id="bytes",
        ),
        pytest.param(
            '"a";q=9;qu="concurrent-requests", "b";q=9',
            '"a";r=0;t=9, "b";r=4;t=9',
            (4, 9_000),
            ("RateLimit: other_unit",),
            id="at-the-same-time",
        ),
        pytest.param(
            '"a";q=9;qu="tokens"', '"a";r=0;t=9', None, ("RateLimit: other_unit",), id="new-unit"
        ),
        pytest.param(
            '"a";q=9;qu="content-bytes",',
            '"a";r=0;t=9',
            (0, 9_000),
            ("RateLimit-Policy: malformed",),
            id="broken-policy",
        ),
        pytest.param(
            '"a";q=9;w=0;qu="content-bytes"',
            '"a";r=0;t=9',
            (0, 9_000),
            ("RateLimit-Policy: malformed",),
            id="window-of-zero",
        ),
        pytest.param(
            '"a";w=60', '"a";r=0;t=9', (0, 9_000), ("RateLimit-Policy: malformed",), id="no-quota"
        ),
        pytest.param(
            '"a";q=9;qu=content-bytes',
            '"a";r=0;t=9',
            (0, 9_000),
            ("RateLimit-Policy: malformed",),
            id="unit-as-token",
        ),
    ],
)
def test_a_policy_tells_the_unit_and_the_window(
    policy: str, limits: str, quota: tuple[int, int] | None, ignored: tuple[str, ...]
) -> None:
    expected = None if quota is None else Quota(*quota, LIST)
    assert left(f"RateLimit-Policy: {policy}\nRateLimit: {limits}") == (expected, ignored)


@pytest.mark.requirement("R04")
def test_a_policy_alone_says_nothing_of_what_is_left() -> None:
    assert left('RateLimit-Policy: "a";q=9;w=60') == (None, ())


# --- older drafts ---------------------------------------------------------------------------


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("value", "remaining", "seconds"),
    [
        pytest.param("limit=10, remaining=0, reset=10", 0, 10, id="RL-09-C"),
        pytest.param("reset=10,remaining=3", 3, 10, id="no-limit"),
        pytest.param("limit=10;x=1, remaining=3;x, reset=10, more=(1 2)", 3, 10, id="comments"),
        pytest.param("remaining=9, reset=10, remaining=3", 3, 10, id="last-key-wins"),
    ],
)
def test_draft_07_is_read(value: str, remaining: int, seconds: int) -> None:
    fields = f"RateLimit: {value}\nRateLimit-Policy: 10;w=1, 50;w=60"
    check(Says(fields, remaining, seconds * 1000, Form.DRAFT_07))


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("value", "ignored"),
    [
        ("limit=10, remaining=0", "RateLimit-07: incomplete"),
        ("limit=10, reset=10", "RateLimit-07: incomplete"),
        ("limit=10, remaining=-1, reset=10", "RateLimit: malformed"),
        ("limit=10, remaining=0.5, reset=10", "RateLimit: malformed"),
        ("limit=10, remaining=0, reset=10,", "RateLimit: malformed"),
        ("limit=x, remaining=0, reset=10", "RateLimit: malformed"),
        (f"limit=10, remaining=0, reset={EPOCH}", "RateLimit-07: absurd"),
    ],
)
def test_a_malformed_dictionary_is_ignored_whole(value: str, ignored: str) -> None:
    assert left(f"RateLimit: {value}") == (None, (ignored,))


PLAIN = Form.DRAFT_06


@pytest.mark.requirement("R04")
@pytest.mark.parametrize("spelling", ["RateLimit", "X-RateLimit", "X-Rate-Limit", "x-ratelimit"])
@pytest.mark.parametrize(
    ("reset", "within"),
    [
        pytest.param("30", 30_000, id="seconds"),
        pytest.param("0", 0, id="now"),
        pytest.param(f"{EPOCH + 30}", 30_000, id="RL-04-epoch-under-the-drafts-name"),
        pytest.param(f"{NOW + 30_250}", 30_250, id="epoch-ms"),
        pytest.param(f"{EPOCH - 1}", 0, id="RL-01-a-second-ago"),
        pytest.param(f"{EPOCH - OLDEST_RESET // 1000}", 0, id="a-day-ago"),
        pytest.param(f"{EPOCH + MONTH}", LONGEST_RESET, id="in-a-month"),
    ],
)
def test_plain_fields_are_read_by_their_size(spelling: str, reset: str, within: int) -> None:
    fields = f"{spelling}-Limit: 100, 100;w=60\n{spelling}-Remaining: 7\n{spelling}-Reset: {reset}"
    check(Says(fields, 7, within, PLAIN))


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        pytest.param("X-RateLimit-Reset: 1796039999", "X-RateLimit: incomplete", id="RL-01"),
        pytest.param("X-RateLimit-Reset: 150933900", "X-RateLimit: incomplete", id="RL-03"),
        pytest.param(
            "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 150933900",
            "X-RateLimit: absurd",
            id="RL-03-nothing-left",
        ),
        pytest.param("X-RateLimit-Remaining: 4990", "X-RateLimit: incomplete", id="RL-06"),
        pytest.param(
            "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 0.64",
            "X-RateLimit: malformed",
            id="RL-10-float",
        ),
        pytest.param(
            "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 6m0s",
            "X-RateLimit: malformed",
            id="RL-08-duration",
        ),
        pytest.param(
            "RateLimit-Remaining: 5, 3\nRateLimit-Reset: 9", "RateLimit: malformed", id="two-lines"
        ),
        pytest.param(
            "RateLimit-Remaining: -1\nRateLimit-Reset: 0", "RateLimit: malformed", id="placeholder"
        ),
        pytest.param(
            "RateLimit-Remaining: 5\nRateLimit-Reset: -1", "RateLimit: malformed", id="never"
        ),
        pytest.param(
            "RateLimit-Remaining: \nRateLimit-Reset: 9", "RateLimit: malformed", id="empty"
        ),
        pytest.param(
            "RateLimit-Remaining: \u0665\nRateLimit-Reset: 9",
            "RateLimit: malformed",
            id="arabic-digits",
        ),
        pytest.param(
            f"RateLimit-Remaining: 5\nRateLimit-Reset: {EPOCH - OLDEST_RESET // 1000 - 1}",
            "RateLimit: absurd",
            id="more-than-a-day-ago",
        ),
        pytest.param(
            f"RateLimit-Remaining: 5\nRateLimit-Reset: {NOW}000000",
            "RateLimit: malformed",
            id="epoch-ns",
        ),
    ],
)
def test_plain_fields_of_other_kinds_are_ignored(fields: str, ignored: str) -> None:
    assert left(fields) == (None, (ignored,))


@pytest.mark.requirement("R04")
def test_an_epoch_counts_from_the_answers_own_date() -> None:
    fast = "Date: Mon, 30 Nov 2026 12:05:00 GMT\n"
    fields = f"{fast}X-RateLimit-Remaining: 0\nX-RateLimit-Reset: {EPOCH + 330}"
    check(Says(fields, 0, 30_000, PLAIN))


@pytest.mark.requirement("R04")
def test_the_newer_form_comes_before_the_older() -> None:
    plain = "RateLimit-Remaining: 0\nRateLimit-Reset: 900"
    check(Says(f'{plain}\nRateLimit: "a";r=5;t=9', 5, 9_000, LIST))
    check(Says(f"{plain}\nRateLimit: remaining=5, reset=9", 5, 9_000, Form.DRAFT_07))
    broken = f'{plain}\nRateLimit: "a";r=5;t=9,'
    check(Says(broken, 0, 900_000, PLAIN, ("RateLimit: malformed",)))


@pytest.mark.requirement("R04")
def test_the_most_restrictive_spelling_counts() -> None:
    fields = """
        X-RateLimit-Remaining: 5
        X-RateLimit-Reset: 9
        X-Rate-Limit-Remaining: 0
        X-Rate-Limit-Reset: 60
    """
    check(Says(fields, 0, 60_000, PLAIN))


# --- the contract's own fields --------------------------------------------------------------


def naming(remaining: str, reset: str, unit: Unit, name: str = "account") -> Scope:
    return Scope(
        name, "account", remaining=parse_source(remaining), reset=(parse_source(reset), unit)
    )


LEFT, NEXT = "header:X-RateLimit-Remaining", "header:X-RateLimit-Reset"


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("unit", "reset", "within"),
    [
        pytest.param(Unit.GO_DURATION, "6m0s", 360_000, id="RL-08"),
        pytest.param(Unit.GO_DURATION, "12ms", 12, id="RL-08-ms"),
        pytest.param(Unit.GO_DURATION, "1h2m3.5s", 3_723_500, id="RL-08-hours"),
        pytest.param(Unit.SECONDS, "0.64", 640, id="RL-10"),
        pytest.param(Unit.EPOCH, f"{EPOCH}.125", 125, id="RL-10-epoch"),
        pytest.param(Unit.EPOCH, f"{EPOCH - 1}", 0, id="RL-01"),
        pytest.param(Unit.RFC3339, "2026-11-30T12:00:30Z", 30_000, id="rfc3339"),
        pytest.param(Unit.HTTP_DATE, "Mon, 30 Nov 2026 12:00:30 GMT", 30_000, id="http-date"),
        pytest.param(Unit.MILLISECONDS, "1250", 1_250, id="ms"),
        pytest.param(Unit.SECONDS, "0", 0, id="now"),
    ],
)
def test_a_contracts_own_fields_have_its_unit(unit: Unit, reset: str, within: int) -> None:
    contract = scoped(naming(LEFT, NEXT, unit))
    fields = f"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: {reset}"
    check(Says(fields, 0, within, Form.CONTRACT), contract)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("unit", "fields", "fault"),
    [
        pytest.param(
            Unit.GO_DURATION,
            "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 6 minutes",
            "malformed",
            id="RL-08-garbage",
        ),
        pytest.param(
            Unit.EPOCH, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30", "absurd", id="not-epoch"
        ),
        pytest.param(
            Unit.SECONDS,
            "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 150933900",
            "absurd",
            id="RL-03",
        ),
        pytest.param(
            Unit.SECONDS,
            "X-RateLimit-Remaining: -1\nX-RateLimit-Reset: 0",
            "malformed",
            id="Azure-placeholders",
        ),
        pytest.param(
            Unit.SECONDS,
            "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: -1",
            "malformed",
            id="Azure-reset",
        ),
        pytest.param(Unit.SECONDS, "X-RateLimit-Remaining: 5", "incomplete", id="no-reset"),
        pytest.param(Unit.SECONDS, "X-RateLimit-Reset: 5", "incomplete", id="no-remaining"),
    ],
)
def test_a_contracts_own_fields_are_not_guessed_at(unit: Unit, fields: str, fault: str) -> None:
    """What does not have the contract's unit is not read by the heuristics of the plain fields."""
    contract = scoped(naming(LEFT, NEXT, unit))
    assert left(fields, contract) == (None, (f"scopes.account: {fault}",))


@pytest.mark.requirement("R04")
def test_a_contracts_own_fields_come_first() -> None:
    contract = scoped(naming("header:X-Left", "header:X-Next", Unit.SECONDS))
    standard = 'RateLimit: "a";r=0;t=60\n'
    own = "X-Left: 5\nX-Next: 9"
    check(Says(standard + own, 5, 9_000, Form.CONTRACT), contract)
    check(Says(standard, 0, 60_000, LIST), contract)
    broken = ("scopes.account: malformed",)
    check(Says(f"{standard}X-Left: five\nX-Next: 9", 0, 60_000, LIST, broken), contract)


@pytest.mark.requirement("R04")
def test_a_contract_may_read_its_quota_in_the_body() -> None:
    contract = scoped(naming("/quota/left", "/quota/seconds", Unit.SECONDS))
    body = '{"state":"running","quota":{"left":1990.0,"seconds":1.5}}'
    signal = told(answer((), body=body), contract)
    assert signal.quotas == (("account", Quota(1990, 1_500, Form.CONTRACT)),)
    cut = replace(answer((), body=body), complete=False, fault="closed")
    assert told(cut, contract).quotas == ()


# --- scopes ---------------------------------------------------------------------------------

FIELDS = "RateLimit-Remaining: 5\nRateLimit-Reset: 9\nX-Left: 2\nX-Next: 60"
OWN = naming("header:X-Left", "header:X-Next", Unit.SECONDS, "tokens")
GENERAL = Quota(5, 9_000, PLAIN)
TOKENS = Quota(2, 60_000, Form.CONTRACT)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        pytest.param((), {"account": GENERAL}, id="no-scope-stated"),
        pytest.param(
            (Scope("all", "account"), OWN), {"all": GENERAL, "tokens": TOKENS}, id="both-apply"
        ),
        pytest.param(
            (OWN, Scope("all", "account")), {"tokens": TOKENS}, id="the-first-has-its-own"
        ),
        pytest.param(
            (Scope("calls", "account", ("transfer",)), Scope("jobs", "account", ("export",))),
            {"jobs": GENERAL},
            id="the-first-that-names-the-action",
        ),
        pytest.param(
            (Scope("all", "account"), replace(OWN, actions=("transfer",))),
            {"all": GENERAL},
            id="not-of-another-action",
        ),
    ],
)
def test_each_scope_of_the_action_has_its_own(
    scopes: tuple[Scope, ...], expected: Mapping[str, Quota]
) -> None:
    assert dict(told(answer(FIELDS), scoped(*scopes)).quotas) == expected


@pytest.mark.requirement("R04")
def test_a_field_that_a_scope_names_belongs_to_no_other() -> None:
    """The two families of one provider: requests by the plain fields, tokens under vendor names."""
    tokens = naming(LEFT, NEXT, Unit.GO_DURATION, "tokens")
    contract = scoped(Scope("all", "account"), replace(tokens, actions=("transfer",)))
    assert left("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 9", contract) == (None, ())


# --- which answers --------------------------------------------------------------------------


@pytest.mark.requirement("R04")
@pytest.mark.parametrize("status", [200, 202, 302, 400, 401, 403, 404, 409, 429, 500, 503])
def test_any_status_may_carry_limits(status: int) -> None:
    signal = told(answer('RateLimit: "a";r=0;t=30', status, "{}"))
    assert signal.quotas == (("account", Quota(0, 30_000, LIST)),)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize("body", ['{"state":', "<html>", "[]", '{"state":"done","job_id":"other"}'])
def test_an_unusable_answer_still_carries_limits(body: str) -> None:
    signal = told(answer('RateLimit: "a";r=0;t=30', 200, body))
    assert signal.quotas == (("account", Quota(0, 30_000, LIST)),)


@pytest.mark.requirement("R04")
def test_a_broken_answer_still_carries_limits() -> None:
    broken = replace(answer('RateLimit: "a";r=0;t=30'), complete=False, fault="truncated_body")
    signal = told(broken)
    assert signal.meaning is Meaning.NO_ANSWER
    assert signal.quotas == (("account", Quota(0, 30_000, LIST)),)


@pytest.mark.requirement("R04")
@pytest.mark.parametrize("sent", [True, False])
def test_what_never_answered_says_nothing(sent: bool) -> None:
    signal = told(no_reply(sent=sent))
    assert (signal.quotas, signal.anomalies) == ((), ())


@pytest.mark.requirement("R04")
@pytest.mark.parametrize(
    ("age", "cached"),
    [("0", False), ("1", True), ("0100", True), ("5, 0", True), ("0, 5", False), ("-5", False)],
)
def test_the_limits_of_a_cached_answer_are_ignored(age: str, cached: bool) -> None:
    quota, ignored = left(f'Age: {age}\nRateLimit: "a";r=0;t=30')
    assert (quota is None) is cached
    assert ignored == (("limits: cached",) if cached else ())
    assert left(f"Age: {age}") == (None, ())


@pytest.mark.requirement("R04")
def test_limits_change_nothing_of_what_a_429_says() -> None:
    """RL-04, RL-06: what is left undoes no 429, and `Retry-After` stands as it is."""
    plenty = "X-RateLimit-Remaining: 4990\nX-RateLimit-Reset: 5\n"
    bare = told(answer("Retry-After: 60", 429, "{}"))
    limited = told(answer(f"{plenty}Retry-After: 60", 429, "{}"))
    assert limited.retry_after == RetryAfter(60_000)
    assert replace(limited, quotas=()) == bare
    assert limited.quotas == (("account", Quota(4990, 5_000, PLAIN)),)
    assert told(answer(plenty, 429, "{}")).retry_after is None


@pytest.mark.requirement("R04")
def test_a_call_carries_limits_too() -> None:
    limited = answer('RateLimit: "a";r=3;t=30', 201, "{}")
    signal = read(limited, ONE, CALL, CALL.send, UNSENT, NOW)
    assert signal.quotas == (("account", Quota(3, 30_000, LIST)),)


@pytest.mark.requirement("R04")
def test_the_story_shows_what_is_left_and_what_was_ignored() -> None:
    contract = scoped(Scope("all", "account"), OWN)
    story = story_of(told(answer(f'RateLimit: "a";r=1\n{FIELDS}'), contract))
    assert story["limits"] == [
        {"scope": "all", "read": "RateLimit-06", "remaining": 5, "reset_ms": 9_000},
        {"scope": "tokens", "read": "contract", "remaining": 2, "reset_ms": 60_000},
    ]
    assert story["anomalies"] == ["RateLimit: incomplete"]
    assert "limits" not in story_of(told(answer(())))


# --- any text at all ------------------------------------------------------------------------

names = st.sampled_from(
    (
        *("RateLimit", "RateLimit-Policy", "RateLimit-Remaining", "RateLimit-Reset"),
        *("X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Left", "X-Next", "Age", "Date"),
    )
)
grains = st.sampled_from(
    (
        *('"a"', "a", ";r=", ";t=", ";pk=", ";q=", ";qu=", ";w=", "limit=", "remaining=", "reset="),
        *("0", "5", "-1", "1.5", "@9", "?1", ":aGk=:", "9" * 15, "1796040030", "1796040030000"),
        *('"', "\\", "(", ")", ",", ":", "%", '%"%ff"', " ", "\t", "\x00", "\ud800", "é"),
    )
)
values = st.text() | st.lists(grains, max_size=12).map("".join)


@pytest.mark.requirement("R04")
@given(st.lists(st.tuples(names, values), max_size=6), st.sampled_from(list(Unit)))
def test_any_fields_give_a_quota_that_can_be_kept_or_none(
    fields: list[tuple[str, str]], unit: Unit
) -> None:
    contract = scoped(naming("header:X-Left", "header:X-Next", unit))
    signal = told(answer(tuple(fields)), contract)
    for _, quota in signal.quotas:
        assert 0 <= quota.remaining < 10**15
        assert 0 <= quota.reset_after <= LONGEST_RESET
