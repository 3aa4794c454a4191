"""Any answer at all, read by real contracts."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.contracts.library import NAMES as SHIPPED
from tests.contracts.library import contract_of
from tests.rules.answering import FACTS, NOW
from tests.rules.test_survey import CONTRACTS, PROVIDERS

from forbear.rules.contract import Contract, Job, Request
from forbear.rules.model import Certainty
from forbear.rules.ports import Reply
from forbear.rules.signals import Signal, read

MOST = 8_100
"""Characters of the longest thing that is kept: an address."""

EVERY = (*CONTRACTS.values(), *(contract_of(name) for name in SHIPPED))
JOBS = [(contract, job) for contract in EVERY for job in contract.jobs.values()]
SAMPLES = [sample for provider in PROVIDERS for sample in provider["samples"]]
STATUSES = st.sampled_from([*range(100, 104), 200, 201, 202, 204, 206, 301, 302, 304, 307])
NAMES = st.sampled_from(
    [
        *sorted({name for _, headers, _, _ in SAMPLES for name in headers}),
        *("Location", "Operation-Location", "Retry-After", "Date", "Content-Type"),
        *("RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-Request-Id"),
    ]
)
VALUES = st.one_of(
    st.text(max_size=60),
    st.integers().map(str),
    st.sampled_from(
        [
            *("application/json", "text/html", "Mon, 30 Nov 2026 10:20:00 GMT", "1e999", "-1"),
            *("9" * 400, '"default";r=50;t=30', "//x", "https://[", "http://\u202e@x/?a=b", "0"),
        ]
    ),
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\u202e", "\U000e0041", "\ud800", "9" * 9_000, "https://x/?sig=1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """A sample's body with some of its members replaced, doubled or gone."""
    match value:
        case dict() if draw(st.integers(0, 9)):
            whole = {name: draw(bent(member)) for name, member in value.items()}
            return {name: whole[name] for name in whole if draw(st.integers(0, 9))}
        case list() if draw(st.integers(0, 9)):
            return [draw(bent(member)) for member in value] * draw(st.integers(0, 2))
        case _:
            return value if draw(st.integers(0, 3)) else draw(ODD)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    sample = draw(st.sampled_from(SAMPLES))[2]
    body = json.dumps(draw(bent(sample))).encode()
    match draw(st.integers(0, 7)):
        case 0:
            return body[: draw(st.integers(0, len(body)))]
        case 1:
            at = draw(st.integers(0, len(body)))
            return body[:at] + draw(st.binary(max_size=8)) + body[at:]
        case 2:
            return draw(st.sampled_from([b"[", b'{"a":', b"1", b'"'])) * draw(st.integers(0, 300))
        case _:
            return body


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    return Reply(
        sent=draw(st.integers(0, 9)) > 0,
        complete=draw(st.integers(0, 9)) > 0,
        started_at=NOW,
        ended_at=NOW,
        status=draw(st.none() | STATUSES | st.integers(400, 599) | st.just(200) | st.just(202)),
        headers=tuple(draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))),
        body=draw(bodies()),
        url="https://api.exp.example/v1/exports",
    )


def requests_of(job: Job) -> list[Request]:
    stated = (job.send, job.status, job.cancel, *job.results.values())
    return [request for request in stated if request is not None]


def texts(signal: Signal) -> list[str]:
    """Every text of an answer that is kept or shown."""
    kept = [signal.state, signal.failure_code, signal.failure_message, signal.progress]
    kept += [signal.provider_request_id, signal.mismatch, *signal.take.values()]
    kept += [*signal.missing, *signal.anomalies, *(hint.text for hint in signal.hints)]
    return [text for text in kept if text is not None]


@pytest.mark.requirement("C05")
@given(replies(), st.sampled_from(JOBS))
def test_any_reply_is_one_bounded_signal_without_hidden_text(
    reply: Reply, known: tuple[Contract, Job]
) -> None:
    contract, job = known
    for request in requests_of(job):
        signal = read(reply, contract, job, request, FACTS, NOW)
        event(signal.meaning)
        assert reply.sent or signal.certainty is Certainty.NOT_SENT
        assert signal.answered <= reply.complete
        for text in texts(signal):
            assert len(text) <= MOST
            assert not {unicodedata.category(one) for one in text} & {"Cc", "Cf", "Cs", "Zl"}
            text.encode()
