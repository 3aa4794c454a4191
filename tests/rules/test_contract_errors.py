"""What a contract file may not say: each mistake, its line, its key and the fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.contracts import FULL, SMALL, changed, errors_of, loaded
from tests.rules.mistakes import ELSEWHERE, IN_FULL, IN_SMALL, Change

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse, parse_all


def mistake(text: str) -> tuple[int, ContractError]:
    """The one error of a text, and the line that carries the mark `#!`."""
    (marked,) = [number for number, line in enumerate(text.split("\n"), 1) if "#!" in line]
    (error,) = errors_of(text)
    return marked, error


@pytest.mark.parametrize(
    ("text", "case", "change"),
    [
        pytest.param(text, case, change, id=f"{kind}-{case}")
        for kind, text, cases in (("short", SMALL, IN_SMALL), ("long", FULL, IN_FULL))
        for case, change in cases.items()
    ],
)
def test_a_mistake_names_its_line_its_key_and_the_fix(text: str, case: str, change: Change) -> None:
    old, new, key, problem, fix = change
    wrong = text.replace(old, new, 1)
    assert wrong != text
    if header := ELSEWHERE.get(case):
        wrong = changed(wrong, f"{header}\n", f"{header} #!\n")
    line, error = mistake(wrong)
    assert (error.file, error.line, error.key) == ("exp.toml", line, key)
    assert problem in error.problem
    assert fix in error.fix


# --- rows of the state table ----------------------------------------------------------------

TWO_READS = SMALL.replace('"/state"', '["/a", "/b"]').replace(
    'waiting   = ["queued", "running"]\nsucceeded = ["done"]\nfailed    = ["failed"]', "ROWS"
)


def rows(text: str) -> str:
    return changed(TWO_READS, "ROWS", text)


@pytest.mark.requirement("W03")
def test_rows_that_an_answer_can_match_equally_well_are_refused() -> None:
    text = rows('waiting = [["x", "*"]]\nfailed = [["*", "y"]] #!\nsucceeded = [["done", "z"]]')
    line, error = mistake(text)
    assert (error.line, error.key) == (line, "jobs.export.failed[0]")
    assert "ties with waiting[0]" in error.problem
    assert "['x', 'y']" in error.fix


@pytest.mark.parametrize(
    "table",
    [
        'waiting = [["x", "*"]]\nfailed = [["*", "y"]]\nsucceeded = [["x", "y"]]',
        'waiting = [["x", "*"]]\nfailed = [["x", "y"]]\nsucceeded = [["done", "z"]]',
        'waiting = [["x", "%none"], ["*", "y"]]\nsucceeded = [["x", "%null"]]',
        'waiting = [["x", "*"], ["*", "y"]]\nsucceeded = [["z", "z"]]',
    ],
    ids=["the meeting row is there", "one is more exact", "null is more exact", "same class"],
)
def test_rows_that_never_leave_a_doubt_are_taken(table: str) -> None:
    assert len(loaded(rows(table)).jobs["export"].states.rows) == 3


def test_words_that_differ_in_case_clash_only_where_case_is_ignored() -> None:
    text = changed(SMALL, '["failed"]', '["DONE"]')
    assert loaded(text)
    folded = text.replace("[calls]", "[jobs.export.states]\nignore_case = true\n[calls]")
    assert "same row" in errors_of(folded)[0].problem


@pytest.mark.parametrize(
    ("reads", "row", "problem"),
    [
        ('{ at = "/e", test = "present" }', '["maybe"]', "no answer of a test"),
        ('"http"', '["done"]', "no HTTP status"),
        ('["/a", "/b", "/c", "/d"]', '[["1", "2", "3", "4"]]', "4 reads"),
    ],
)
def test_a_row_that_no_answer_can_meet_is_refused(reads: str, row: str, problem: str) -> None:
    text = changed(SMALL, '"/state"', reads)
    text = changed(text, 'waiting   = ["queued", "running"]\n', "")
    text = changed(text, 'failed    = ["failed"]\n', "")
    text = changed(text, '["done"]', row)
    assert any(problem in error.problem for error in errors_of(text))


@pytest.mark.requirement("W03")
def test_only_waiting_may_take_every_word_and_only_when_it_says_so() -> None:
    text = changed(SMALL, '["queued", "running"]', '["queued", "*"]')
    assert ("*",) in {row.words for row in loaded(text).jobs["export"].states.rows}
    for other in ("succeeded", "failed"):
        assert (
            "takes every word"
            in errors_of(SMALL.replace(f"{other:9} = [", f'{other:9} = ["*", '))[0].problem
        )


# --- what a person must decide or see -------------------------------------------------------


@pytest.mark.requirement("E17")
@pytest.mark.parametrize(
    "approved",
    [
        'submit = { method = "POST", path = "/x", approval = "session" }',
        'cancel = "POST /exports/{id}/cancel"',
        'result = { method = "GET", path = "/r", approval = "per_call" }',
    ],
)
def test_an_action_that_needs_approval_needs_a_label(approved: str) -> None:
    key = approved.split(" ")[0]
    text = "\n".join(line for line in SMALL.split("\n") if not line.startswith((key, "body")))
    text = changed(text, "[calls]", f"{approved}\n[calls]")
    text = text.replace('id        = "/job_id"\n', "") if key == "submit" else text
    text = text.replace("/{id}", "/1") if key == "submit" else text
    assert any("has no label" in error.problem for error in errors_of(text))
    labelled = changed(text, "[calls]", 'label = "Export a data set"\n[calls]')
    assert loaded(labelled).jobs["export"].label is not None


@pytest.mark.requirement("E17")
def test_a_write_without_key_and_lookup_asks_and_so_needs_a_label() -> None:
    text = changed(SMALL, "GET /customers/{arg.id}", "POST /customers/{arg.id}/merge")
    assert "has no label" in errors_of(text)[0].problem


@pytest.mark.requirement("W18")
def test_a_status_that_costs_money_needs_a_stated_budget_and_one_that_changes_needs_approval() -> (
    None
):
    billed = changed(FULL, 'effect = "read"', 'effect = "billed"')
    status = loaded(billed).jobs["export"].status
    assert (status.effect, status.request_class) == ("billed", "uncertain_write")
    assert status.evidence == "https://exp.example/docs/exports#status"
    (unbudgeted,) = errors_of(changed(billed, "max_status_requests = 12\n", ""))
    assert unbudgeted.fix == "add limits.max_status_requests"

    mutating = changed(FULL, 'effect = "read"', 'effect = "mutating"')
    assert "nobody approves" in errors_of(mutating)[0].problem
    approved = changed(mutating, 'effect = "mut', 'approval = "session"\neffect = "mut')
    assert loaded(approved).jobs["export"].status.approval.mode == "session"


# --- secrets --------------------------------------------------------------------------------

SECRET = "sk_live_51H8x"


@pytest.mark.requirement("C01")
@pytest.mark.parametrize(
    "auth",
    [
        f'auth = "bearer {SECRET}"',
        f'auth = "{SECRET}"',
        f'auth = "header X-Api-Key {SECRET}"',
        f'auth = "query key {SECRET}"',
        f'auth = "basic env:USER {SECRET}"',
        f'auth = "basic {SECRET}"',
        f'auth = {{ scheme = "bearer", secret = "{SECRET}" }}',
        f'auth = {{ scheme = "bearer", secret = "exec:echo {SECRET}" }}',
        'auth = { scheme = "oauth2_client", token_url = "https://a.example/t", client_id = "x", '
        f'client_secret = "{SECRET}" }}',
        f'headers = {{ Authorization = "Bearer {SECRET}" }}',
        f'headers = {{ X-Other = "Basic {SECRET}" }}',
        f'headers = {{ x-api-key = "{SECRET}" }}',
        f'docs = "https://user:{SECRET}@exp.example"',
    ],
)
def test_a_literal_secret_is_refused_and_never_repeated(auth: str) -> None:
    text = "\n".join(line for line in SMALL.split("\n") if not line.startswith("auth"))
    errors = errors_of(changed(text, "[jobs.export]", f"{auth}\n[jobs.export]"))
    assert errors
    assert all(SECRET not in str(error) for error in errors)
    assert all(any(word in error.fix for word in ("env:", "[auth]", "exec:")) for error in errors)


@pytest.mark.requirement("C01")
@pytest.mark.parametrize(
    "reference",
    ["env:TOKEN", "file:/run/secrets/token", "keyring:exp/alice", "exec:"],
)
def test_a_reference_to_a_secret_is_kept_as_it_is(reference: str) -> None:
    exec_list = '\nexec = ["op", "read", "op://vault/exp"]' if reference == "exec:" else ""
    text = changed(FULL, 'secret = "env:EXP_TOKEN"', f'secret = "{reference}"{exec_list}')
    auth = loaded(text).auth
    assert auth.secret == reference
    assert auth.exec == (("op", "read", "op://vault/exp") if exec_list else None)


def test_a_credential_never_goes_to_hosts_of_a_wildcard() -> None:
    text = changed(FULL, 'allow_hosts = ["files.exp.example"]', 'allow_hosts = ["*.exp.example"]')
    assert loaded(text).allow_hosts == ("*.exp.example",)
    (error,) = errors_of(changed(text, "auth = false", "auth = true"))
    assert (error.key, error.fix) == (
        "jobs.export.result.auth",
        "name the host in full, or write auth = false",
    )


@pytest.mark.parametrize("scheme", ["none", "oauth2_client"])
def test_a_narrower_secret_needs_a_scheme_that_takes_one(scheme: str) -> None:
    text = changed(FULL, 'effect = "read"', 'effect = "read"\nsecret = "env:NARROW"')
    assert loaded(text).jobs["export"].status.secret == "env:NARROW"
    parts = {
        "none": 'scheme = "none"',
        "oauth2_client": 'scheme = "oauth2_client"\ntoken_url = "https://a.example/t"\n'
        'client_id = "x"\nclient_secret = "env:S"',
    }
    other = changed(text, 'scheme = "bearer"\nsecret = "env:EXP_TOKEN"', parts[scheme])
    (error,) = errors_of(other)
    assert error.key == "jobs.export.status.secret"


# --- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    ["http://localhost:8080", "http://127.0.0.1/v1", "http://127.9.9.9", "http://[::1]:80/"],
)
def test_plain_http_is_allowed_to_this_machine_only(base: str) -> None:
    assert loaded(changed(SMALL, "https://api.exp.example/v1", base)).base_url == base.rstrip("/")


@pytest.mark.parametrize(
    "base",
    [
        "http://localhost.example",
        "http://127.0.0.1.example",
        "http://0.0.0.0",
        "http://10.0.0.1",
        "http://localhost@evil.example",
        "ftp://api.exp.example",
        "https://",
        "https://a.example:99999",
        "api.exp.example",
    ],
)
def test_any_other_address_that_is_not_https_is_refused(base: str) -> None:
    (error,) = errors_of(changed(SMALL, "https://api.exp.example/v1", base))
    assert error.key == "base_url"


# --- many mistakes, many files --------------------------------------------------------------


def test_all_mistakes_of_a_file_are_reported_together_in_the_order_of_its_lines() -> None:
    text = SMALL.replace('"10m"', '"soon"').replace('"/state"', '"state"')
    text = text.replace('"GET {/result/url}"', '"GET {result.link}"').replace("[calls]", "[cals]")
    errors = errors_of(text)
    assert [(error.line, error.key) for error in errors] == [
        (6, "jobs.export.usual"),
        (12, "jobs.export.state"),
        (16, "jobs.export.result"),
        (18, "cals"),
    ]


def test_an_error_reads_as_file_line_key_problem_and_fix() -> None:
    (error,) = errors_of(changed(SMALL, '"40m"', '"40 m"'), "home/exp.toml")
    assert str(error) == (
        "home/exp.toml:7: jobs.export.deadline: '40 m' is no duration -> write a whole number and "
        'ms, s, m, h or d, such as "40m"'
    )


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("contract = 1\ncontract = 1\n", 2, "contract"),
        ('contract = 1\n[account]\nid = "a"\n[account]\n', 4, "account"),
        ("contract = 1\n[jobs.x]\n usual  = '1m'\n usual  = '1m'\n", 4, "usual"),
    ],
)
def test_a_key_that_is_there_twice_is_named(text: str, line: int, key: str) -> None:
    (error,) = errors_of(text)
    assert (error.line, error.key, error.problem) == (line, key, "is there twice")


def test_a_byte_order_mark_is_named_as_what_it_is() -> None:
    (error,) = errors_of("\ufeffcontract = 1\n")
    assert "byte order mark" in error.problem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("contract = 1\nbase_url =", 2),
        ("contract = 1\n[jobs\n", 2),
        ('contract = 1\nx = "', 2),
        ("contract = 1\n\n\nauth = 'a' 'b'\n", 4),
    ],
)
def test_broken_toml_names_its_line(text: str, line: int) -> None:
    (error,) = errors_of(text)
    assert (error.line, error.key) == (line, "(toml)")
    assert "(at line" not in error.problem


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('{ dataset = "{arg.dataset}" }', "{ a = nan }", "jobs.export.body.a"),
        ('{ dataset = "{arg.dataset}" }', "{ a = -inf }", "jobs.export.body.a"),
        ("[calls]", "[scopes.s]\nreserve = nan\n[calls]", "scopes.s.reserve"),
        ('["done"]', "[inf]", "jobs.export.succeeded"),
        ("contract = 1", f"contract = {'1' * 5_000}", "(toml)"),
        ("[calls]", f"x = {'[' * 60}{']' * 60}\n[calls]", "(file)"),
        ("[calls]", f"x = {'[' * 5_000}{']' * 5_000}\n[calls]", "(file)"),
    ],
    ids=["nan", "inf", "share", "word", "digits", "deep", "very deep"],
)
def test_numbers_that_json_lacks_and_bottomless_files_are_refused(
    old: str, new: str, key: str
) -> None:
    assert key in {error.key.partition("[")[0] for error in errors_of(changed(SMALL, old, new))}


def test_one_broken_file_never_takes_another_down() -> None:
    contracts, errors = parse_all(
        {"good.toml": SMALL, "bad.toml": "contract = 1\nbase", "worse.toml": "contract = 1"}
    )
    assert set(contracts) == {"good"}
    assert {error.file for error in errors} == {"bad.toml", "worse.toml"}


def test_two_files_for_one_provider_are_one_error() -> None:
    contracts, errors = parse_all({"a.toml": FULL, "b.toml": FULL})
    assert contracts["exp"].file == "a.toml"
    assert [(error.file, error.line, error.key) for error in errors] == [("b.toml", 2, "provider")]


@given(st.data())
def test_a_file_with_lines_missing_or_doubled_never_breaks_the_loader(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from([SMALL, FULL])).split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at : at + 1] = data.draw(
            st.sampled_from([[], [lines[at]] * 2, ["x = 1"], ["[jobs]"]])
        )
    found = parse("\n".join(lines), "exp.toml")
    assert isinstance(found, Contract) or found


VALUES = st.sampled_from(
    ["1", "0", "-1", "1.5", "true", '""', '"x"', '"*"', '"{arg.x}"', '"{x"', '"env:X"', "[]", "{}",
     "[1, 'a']", "{ a = 1 }", "[[]]", "2026-11-30", "10:00:00", "inf", "nan", '"/a"', '"5s"',
     "[{ at = 1 }]", '{ at = "/a", unit = "s" }', '"GET /x"', '"[::1]"', '"https://[x"']
)  # fmt: skip


@given(st.data())
def test_any_value_at_any_key_is_read_or_refused_but_never_breaks_the_loader(
    data: st.DataObject,
) -> None:
    lines = data.draw(st.sampled_from([SMALL, FULL])).split("\n")
    keyed = [number for number, line in enumerate(lines) if " = " in line]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(keyed))
        lines[at] = f"{lines[at].partition(' = ')[0]} = {data.draw(VALUES)}"
    found = parse("\n".join(lines), "exp.toml")
    assert isinstance(found, Contract) or all(error.fix for error in found)


@given(st.text(max_size=200))
def test_any_text_at_all_is_a_contract_or_a_list_of_errors(text: str) -> None:
    assert not isinstance(parse(text, "exp.toml"), Contract)
