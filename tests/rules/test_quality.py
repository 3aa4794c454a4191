"""What counts as guidance that was followed, and the ranks of times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forbear.rules.quality import Advice, Guidance, Sent, advice, guidance, quantile

FIRST = Sent("op_1", 1, "exp/acct", 1_000, by_person=False)
SECOND = replace(FIRST, number=2, at=31_000)
WAIT = Advice("op_1", 1, "exp/acct", 1_000, 30_000, None, shared=False, excused=False)
HINT = replace(WAIT, minimum=None, hint=30_000)
OTHER = Sent("op_2", 1, "exp/acct", 20_000, by_person=False)
GOOD, BAD, APART = Guidance(1, 0, 0), Guidance(0, 0, 1), Guidance(0, 1, 0)
EARLY = replace(SECOND, at=30_999)


@pytest.mark.requirement("A07")
@pytest.mark.parametrize(
    ("told", "sent", "judged"),
    [
        pytest.param(WAIT, [FIRST, SECOND], GOOD, id="at-the-time"),
        pytest.param(WAIT, [FIRST, EARLY], BAD, id="a-millisecond-early"),
        pytest.param(WAIT, [FIRST], GOOD, id="nothing-followed"),
        pytest.param(WAIT, [FIRST, OTHER, SECOND], GOOD, id="503-holds-one-operation"),
        pytest.param(replace(WAIT, shared=True), [FIRST, OTHER], BAD, id="429-holds-its-scope"),
        pytest.param(
            replace(WAIT, shared=True),
            [FIRST, replace(OTHER, at=900), replace(OTHER, scope="b")],
            GOOD,
            id="what-left-before-or-elsewhere",
        ),
        pytest.param(replace(WAIT, excused=True), [FIRST, EARLY], BAD, id="minimum-has-no-excuse"),
        pytest.param(HINT, [FIRST, SECOND], GOOD, id="hint"),
        pytest.param(HINT, [FIRST, EARLY], BAD, id="hint-ignored"),
        pytest.param(replace(HINT, excused=True), [FIRST, EARLY], APART, id="hint-overruled"),
        pytest.param(HINT, [FIRST, replace(EARLY, by_person=True)], APART, id="a-person-asked"),
        pytest.param(
            replace(HINT, hint=None, excused=True), [FIRST, SECOND], APART, id="hint-unusable"
        ),
    ],
)
def test_guidance_is_judged_by_what_was_sent_after_it(
    told: Advice, sent: list[Sent], judged: Guidance
) -> None:
    assert guidance([told], sent) == judged


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, None),
        ({"retry_after_ms": -5}, None),
        ({"http": 503, "retry_after_ms": 30_000}, WAIT),
        ({"http": 429, "retry_after_ms": 30_000}, replace(WAIT, shared=True)),
        ({"hints": [{"read": "a", "ms": 5, "rejected": None}, {"ms": 30_000}]}, HINT),
        ({"hints": [{"ms": None, "rejected": "past"}]}, replace(HINT, hint=None, excused=True)),
        ({"hints": [{"ms": 30_000}], "told": ["above"]}, replace(HINT, excused=True)),
    ],
)
def test_an_event_tells_what_was_advised(body: dict[str, Any], found: Advice | None) -> None:
    assert advice(body, FIRST, 1_000) == found


def test_ranks_are_values_that_occurred() -> None:
    assert quantile([], 0.5) is None
    assert quantile([7], 0.9) == 7
    assert quantile(range(1, 11), 0.5) == 5
    assert quantile(range(1, 11), 0.9) == 9
    assert quantile([3, 1, 2], 0.5) == 2
