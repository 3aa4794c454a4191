"""Drafts of contracts from pasted exchanges: what they propose, and what they never hold."""

from __future__ import annotations

import json
import shlex
import tomllib
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse as load
from forbear.rules.curl import parse
from forbear.rules.draft_exchanges import Drafted, Exchange, draft, is_job
from forbear.rules.exchanges import Received, Unusable, received

CURL = """curl -X POST https://api.exp.example/v1/exports \\
  -H 'Authorization: Bearer sk-live-123456' -H 'Exp-Version: 2026-01-01' \\
  -d '{"dataset": "sales", "rows": 5, "filter": {"year": 2026}}'"""
STATUS = "curl https://api.exp.example/v1/exports/exp_71c"
TASK = "curl https://api.exp.example/v1/exports/t_9"
ACCEPTED = {"job_id": "exp_71c", "state": "queued"}
RUNNING = {"job_id": "exp_71c", "state": "running", "progress": 40, "poll_after_seconds": 5}
DONE = {
    "job_id": "exp_71c",
    "state": "done",
    "error": None,
    "result": {"url": "https://files.exp.example/1?sig=x", "expires_at": "2026-11-30T10:20:00Z"},
}


def answer(body: Any, head: str = "") -> Received:
    return received(f"{head}{json.dumps(body)}".encode())


def drafted(*answers: Any, curl: str = CURL, status: str | None = None) -> Drafted:
    pasted = [one if isinstance(one, Received) else answer(one) for one in answers]
    first = Exchange(parse(curl), tuple(pasted if status is None else pasted[:1]))
    later = None if status is None else Exchange(parse(status), tuple(pasted[1:]))
    return draft(first, later, "exp", "a test", job=is_job(first, later))


def chosen(text: str, **words: list[str]) -> Contract:
    """The contract once a person has said what the words mean."""
    for key, listed in words.items():
        line = next(one for one in text.split("\n") if one.partition(" ")[0] == key)
        text = text.replace(line, f"{key} = {json.dumps(listed)}")
    found = load(text, "exp.toml")
    assert isinstance(found, Contract), "\n".join(map(str, found))
    return found


def errors(text: str) -> list[ContractError]:
    found = load(text, "exp.toml")
    return [] if isinstance(found, Contract) else list(found)


def section(made: Drafted) -> dict[str, Any]:
    """The first job or call of the file."""
    loaded = tomllib.loads(made.text)
    return next(iter((loaded.get("jobs") or loaded["calls"]).values()))


# --- a job ----------------------------------------------------------------------------------


def test_the_whole_draft_reads_well() -> None:
    assert drafted(ACCEPTED, RUNNING, DONE, status=STATUS).text == WHOLE


def test_it_loads_once_somebody_said_what_the_words_mean_and_not_before() -> None:
    made = drafted(ACCEPTED, RUNNING, DONE, status=STATUS)
    (error,) = errors(made.text)
    line = made.text.split("\n")[error.line - 1]
    assert line.startswith("succeeded = []  # choose")
    assert error.key == "jobs.export.succeeded"
    assert "nobody has said yet what success is" in error.problem
    assert 'succeeded = ["done"]' in error.fix
    contract = chosen(made.text, waiting=["queued", "running"], succeeded=["done"])
    job = contract.jobs["export"]
    assert [row.words for row in job.states.rows] == [("queued",), ("running",), ("done",)]
    assert job.status.path is not None
    assert job.status.path.text == "/exports/{id}"
    assert contract.headers == (("Exp-Version", "2026-01-01"),)


def test_no_word_is_put_into_a_list_whatever_it_looks_like() -> None:
    states = ["pending", "succeeded", "failed", "cancelled", "expired", "error", "completed"]
    looks = [{"id": "exp_71c", "status": word} for word in states]
    held = section(drafted({"id": "exp_71c"}, *looks))
    for key in ("waiting", "succeeded", "failed", "cancelled", "expired"):
        assert held[key] == []


def test_words_are_listed_each_once_in_the_order_seen() -> None:
    made = drafted(ACCEPTED, RUNNING, RUNNING, DONE)
    assert made.draft.jobs[0].words == ("queued", "running", "done")
    assert '"queued", "running", "done"' in made.text


def test_a_status_address_that_the_answer_names_is_taken_from_it() -> None:
    named = {"id": "7", "status_url": "https://api.exp.example/v1/exports/7"}
    held = section(drafted(named, {"state": "on"}))
    assert held["submit"]["take"] == {"status_url": "/status_url"}
    assert held["status"] == "GET {take.status_url}"
    located = answer({}, "HTTP/1.1 202 Accepted\nLocation: /v1/exports/7\n\n")
    held = section(drafted(located, {"state": "on"}, status=STATUS.replace("exp_71c", "7")))
    assert held["submit"]["take"] == {"status_url": "header:Location"}
    assert "id" not in held


def test_without_a_status_line_or_address_the_guess_says_that_it_is_one() -> None:
    made = drafted(ACCEPTED, DONE)
    assert 'status   = "GET /exports/{id}"' in made.text
    assert any("a guess by the usual shape" in one for one in made.draft.left())


def test_what_is_not_found_is_left_as_a_load_error_of_its_own_line() -> None:
    made = drafted({"queue": "main"}, {"note": "x"}, status=STATUS)
    found = {error.key: made.text.split("\n")[error.line - 1] for error in errors(made.text)}
    assert found["jobs.export.id"].startswith('id       = ""')
    assert found["jobs.export.state"].startswith('state    = ""')
    assert {"jobs.export.id", "jobs.export.state", "jobs.export.succeeded"} <= set(found)


def test_the_id_is_the_value_that_turns_up_again() -> None:
    body = {"id": "req-1", "task": "t_9", "state": "on"}
    made = drafted(body, {"id": "other", "state": "off"}, status=TASK)
    assert section(made)["id"] == "/task"


def test_an_id_that_the_status_answer_has_elsewhere_is_echoed_there() -> None:
    made = drafted({"id": "t_9"}, {"data": {"id": "t_9", "state": "on"}}, status=TASK)
    held = section(made)
    assert held["status"] == {
        "method": "GET",
        "path": "/exports/{id}",
        "echo": {"/data/id": "{id}"},
    }
    assert held["state"] == "/data/state"


def test_values_of_the_path_become_arguments_that_both_requests_share() -> None:
    made = drafted(
        {"id": "t_99"},
        {"state": "on"},
        curl="curl -d '{}' https://api.exp.example/projects/42/builds",
        status="curl https://api.exp.example/projects/42/builds/t_99",
    )
    held = section(made)
    assert held["submit"] == "POST /projects/{arg.project_id}/builds"
    assert held["status"] == "GET /projects/{arg.project_id}/builds/{id}"
    assert made.samples == {"project_id": "42"}


@pytest.mark.parametrize(
    ("extra", "key", "value"),
    [
        ({"retry_after_ms": 500}, "hints", {"next": [{"at": "/retry_after_ms", "unit": "ms"}]}),
        (
            {"next_check_at": "2026-11-30T10:20:00Z"},
            "hints",
            {"next": [{"at": "/next_check_at", "unit": "rfc3339"}]},
        ),
        ({"expires_at": 1_764_498_000}, "expiry", {"job": {"at": "/expires_at", "unit": "epoch"}}),
        (
            {"error": {"code": "x", "message": "y"}},
            "failure",
            {"code": "/error/code", "message": "/error/message"},
        ),
        ({"percent": 5}, "states", {"progress": "/percent"}),
    ],
)
def test_further_places_are_proposed_where_name_and_value_agree(
    extra: dict[str, Any], key: str, value: Any
) -> None:
    held = section(drafted(ACCEPTED, {"job_id": "exp_71c", "state": "running", **extra}))
    assert held[key] == value


def test_a_hint_without_a_plain_unit_is_told_and_not_written() -> None:
    made = drafted(ACCEPTED, {"state": "on", "retry_after": 5})
    assert "hints" not in section(made)
    assert any("/retry_after" in one for one in made.draft.left())


def test_a_result_on_the_own_host_takes_the_key_and_a_signed_one_does_not() -> None:
    own: dict[str, Any] = {"state": "done", "result": {"url": "https://api.exp.example/v1/files/7"}}
    assert section(drafted(ACCEPTED, own))["result"]["auth"] is True
    own["result"]["url"] += "?sig=x"
    assert section(drafted(ACCEPTED, own))["result"] == "GET {/result/url}"


# --- calls ----------------------------------------------------------------------------------


def test_a_get_line_becomes_a_read() -> None:
    made = drafted(curl="curl 'https://api.exp.example/v1/customers/cus_12345?expand=orders'")
    contract = load(made.text, "exp.toml")
    assert isinstance(contract, Contract)
    call = contract.calls["customer"]
    assert call.send.request_class == "read"
    assert set(call.input["properties"]) == {"customer_id", "expand"}


def test_a_post_line_whose_answer_has_no_state_becomes_a_write_with_a_label() -> None:
    curl = "curl https://api.exp.example/transfers -H 'Idempotency-Key: 1' -d amount=5 -d to=acct_7"
    contract = load(drafted({"id": "tr_1"}, curl=curl).text, "exp.toml")
    assert isinstance(contract, Contract)
    call = contract.calls["transfer"]
    assert call.label is not None
    assert call.label.names == {"arg.amount", "arg.to"}
    assert call.idempotency is not None
    assert call.idempotency.name == "Idempotency-Key"


# --- secrets --------------------------------------------------------------------------------


def test_of_two_secrets_one_is_named_by_reference_and_the_other_is_told() -> None:
    made = drafted(
        ACCEPTED, curl=CURL + " -H 'X-Api-Key: other-secret' -b 'sid=cookie-secret'", status=STATUS
    )
    assert tomllib.loads(made.text)["auth"] == "bearer env:EXP_TOKEN"
    assert [one for one in made.draft.left() if "X-Api-Key was taken out" in one]
    assert "secret" not in made.text


def test_a_secret_that_stands_where_it_must_be_written_stops_the_draft() -> None:
    with pytest.raises(Unusable, match="take it out there") as refused:
        drafted(ACCEPTED, curl="curl -d '{}' https://x.example/hook/abcdefgh -u u:abcdefgh")
    assert "abcdefgh" not in str(refused.value)


def test_a_secret_among_the_state_words_is_not_listed() -> None:
    made = drafted(ACCEPTED, RUNNING, {"job_id": "exp_71c", "state": "sk-live-123456"})
    assert made.draft.jobs[0].words == ("queued", "running")


def test_a_secret_in_an_argument_is_not_among_its_samples() -> None:
    made = drafted(curl="curl 'https://x.example/a?say=my-hidden-key' -H 'X-Api-Key: hidden-key'")
    assert made.samples == {"say": None}


@pytest.mark.parametrize(
    ("pasted", "told"),
    [
        (b"", "it is empty"),
        (b"<html>", "no JSON"),
        (b'{"a": 1', "no JSON"),
        (b'{"a": 1, "a": 2}', "same name twice"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "nested deeper"),
        (b"HTTP/1.1 502 Bad\r\n\r\n<html>", "no JSON"),
        (b"x" * 5_000_000, "shorten the answer"),
    ],
)
def test_answers_that_are_none_are_refused_with_the_reason(pasted: bytes, told: str) -> None:
    with pytest.raises(Unusable, match=told):
        received(pasted)


def test_the_last_of_several_heads_counts() -> None:
    found = received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/2 202\r\nRetry-After: 3\r\n\r\n{}")
    assert (found.status, found.header("retry-after"), found.body) == (202, "3", {})
    assert received(b"HTTP/1.1 204 No Content\r\n\r\n").body is None


# --- whatever is pasted ---------------------------------------------------------------------

TEXT = st.text(max_size=30)
NAMES = st.one_of(
    st.sampled_from(["id", "state", "status", "url", "error", "expires_at", "result", "token"]),
    TEXT,
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.sampled_from(["exp_1", "https://files.exp.example/x?y", "http://[::1", "done"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=5)
SECRET = "S3cr3t\"\\'\x1b\u202e=&-zz"


def _placed(place: str) -> tuple[dict[str, str], dict[str, Any], str]:
    """Headers, body and query with the secret in one place."""
    match place:
        case "bearer":
            return {"Authorization": f"Bearer {SECRET}"}, {}, ""
        case "body":
            return {}, {"api_key": SECRET, "deep": {"password": SECRET}}, ""
        case "query":
            return {}, {}, "access_token"
        case _:
            return {place: SECRET}, {}, ""


def _attempted(curl: str, looks: list[Received]) -> tuple[Drafted | None, str]:
    try:
        first = Exchange(parse(curl), tuple(looks[:1]))
        later = Exchange(parse(STATUS), tuple(looks[1:])) if looks else None
        return draft(first, later, "exp", "a test", job=later is not None), ""
    except Unusable as error:
        return None, str(error)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["bearer", "body", "query", "X-Api-Key", "Cookie", "X-Session-Token"]),
    OBJECTS,
    st.dictionaries(TEXT, TEXT, max_size=3),
    st.lists(TEXT, max_size=3),
    st.lists(OBJECTS, max_size=3),
    st.dictionaries(TEXT, TEXT, max_size=2),
)
def test_what_is_written_is_toml_and_holds_no_secret(
    place: str,
    body: dict[str, Any],
    query: dict[str, str],
    segments: list[str],
    answers: list[dict[str, Any]],
    headers: dict[str, str],
) -> None:
    own_headers, own_body, parameter = _placed(place)
    pairs = {**query, **({parameter: SECRET} if parameter else {})}
    path = "/".join(quote(one, safe="") for one in segments)
    words = ["curl", "-X", "POST", f"https://api.exp.example/{path}?{urlencode(pairs)}"]
    for name, text in {**headers, **own_headers}.items():
        words += ["-H", f"{name}: {text}"]
    words += ["-d", json.dumps({**body, **own_body})]
    looks = [answer({**one, "state": SECRET}) for one in answers]
    made, refused = _attempted(shlex.join(words), looks)
    assert SECRET not in refused
    if made is None:
        return
    assert tomllib.loads(made.text)["contract"] == 1
    assert SECRET not in made.text
    assert SECRET not in str(tomllib.loads(made.text))
    assert SECRET not in str(made.samples)
    assert SECRET not in "".join(made.draft.left())
    assert "\x1b" not in made.text
    assert "\u202e" not in made.text


WHOLE = """\
# Exp: drafted from a test. Read every line.
#
# Left for you:
#   1. jobs.export: say what each word means: waiting, succeeded, failed … (seen in the answers, in
#      this order: "queued", "running", "done")
#   2. jobs.export: correct usual and deadline; they are placeholders
# Then: forbear contract check

contract    = 1
title       = "Exp"
base_url    = "https://api.exp.example/v1"
auth        = "bearer env:EXP_TOKEN"  # the key stays in the environment
allow_hosts = ["files.exp.example"]   # the answers point there

[account]
id = "main"  # your name for it; part of every identity

[headers]
Exp-Version = "2026-01-01"

[jobs.export]
# Every value of the request became an argument that the agent gives. Where one is always the same,
#   write it instead of {arg.…} and take it out of the input.
title    = "Export"   # add a description = …, which agents read
usual    = "5m"       # how long it takes usually: correct it
deadline = "1h"       # then waiting stops and a person is asked
submit   = "POST /exports"
body     = { dataset = "{arg.dataset}", rows = "{arg.rows}", filter = { year = "{arg.year}" } }
id       = "/job_id"  # its value turns up again later
status   = "GET /exports/{id}"
state    = "/state"   # it changed from answer to answer

# Words seen in the answers, in this order: "queued", "running", "done"
# Only you can say what a word means. One that is in no list stops and asks a person.
waiting   = []  # choose: the provider still works
succeeded = []  # choose: done, and well; the file does not load without
failed    = []  # choose: over without success
cancelled = []
expired   = []

result          = "GET {/result/url}"     # an address under such a name
failure         = { message = "/error" }  # by its name
hints           = { next = [{ at = "/poll_after_seconds", unit = "s" }] }  # by its name
expiry          = { result = { at = "/result/expires_at", unit = "rfc3339" } }  # by its name
states.progress = "/progress"             # by its name

[jobs.export.input]
type = "object"
required = ["dataset", "rows", "year"]
additionalProperties = false
properties.dataset = { type = "string", maxLength = 1000 }
properties.rows = { type = "integer" }
properties.year = { type = "integer" }
"""
