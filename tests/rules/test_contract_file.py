"""What a contract file means: short and long forms, defaults, digests, `use`."""

from __future__ import annotations

from decimal import Decimal

import pytest
from tests.rules.contracts import FULL, SMALL, changed, errors_of, loaded

from forbear.rules.contract import (
    ACCOUNT_CHECK,
    CLASSES,
    Backoff,
    Contract,
    Extension,
    Header,
    HttpStatus,
    Pointer,
    Requirement,
    Row,
    Scope,
    Template,
    Unit,
)
from forbear.rules.contract_file import parse
from forbear.rules.facts import Facts
from forbear.rules.model import JobClass, RequestClass
from forbear.rules.notation import parse_pointer, parse_template
from forbear.rules.requests import link

LONG_OF_SMALL = """\
contract = 1
base_url = "https://api.exp.example/v1"

[auth]
scheme = "bearer"
secret = "env:EXP_TOKEN"

[jobs.export.limits]
usual = "10m"
deadline = "40m"

[jobs.export.submit]
method = "POST"
path = "/exports"
body.dataset = "{arg.dataset}"
take.id = "/job_id"

[jobs.export.status]
method = "GET"
path = "/exports/{id}"

[jobs.export.states]
read = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]

[jobs.export.success]
require = { "/result/url" = "url" }
take.url = "/result/url"

[jobs.export.result]
method = "GET"
url = "{result.url}"

[calls.customer]
method = "GET"
path = "/customers/{arg.id}"
"""


def test_every_short_form_means_its_long_form() -> None:
    short, long = loaded(SMALL), loaded(LONG_OF_SMALL)
    assert short.jobs == long.jobs
    assert short.calls == long.calls
    assert short.auth == long.auth


def test_short_and_long_forms_mix() -> None:
    text = changed(SMALL, "[calls]", "[jobs.export.limits]\nmax_rate_limited = 7\n[calls]")
    limits = loaded(text).jobs["export"].limits
    assert (limits.deadline, limits.max_rate_limited) == (2_400_000, 7)


@pytest.mark.parametrize(
    ("short", "scheme", "parts"),
    [
        ("none", "none", {}),
        ("bearer env:T", "bearer", {"secret": "env:T"}),
        ("header X-Api-Key file:/run/k", "header", {"name": "X-Api-Key", "secret": "file:/run/k"}),
        (
            "header Authorization Token env:K",
            "header",
            {"name": "Authorization", "prefix": "Token", "secret": "env:K"},
        ),
        ("query key env:K", "query", {"name": "key", "secret": "env:K"}),
        ("body token env:K", "body", {"name": "token", "secret": "env:K"}),
        ("basic env:U env:P", "basic", {"user": "env:U", "password": "env:P"}),
        ("basic alice env:P", "basic", {"user": "alice", "password": "env:P"}),
        ("basic env:KEY", "basic", {"user": "env:KEY", "password": None}),
    ],
)
def test_a_credential_fits_into_one_line(
    short: str, scheme: str, parts: dict[str, str | None]
) -> None:
    # The reads of SMALL have no body that could carry a secret.
    text = SMALL[: SMALL.index("[jobs.export]")] + "[calls]\n" if scheme == "body" else SMALL
    auth = loaded(changed(text, "bearer env:EXP_TOKEN", short)).auth
    assert auth.scheme == scheme
    assert {name: getattr(auth, name) for name in parts} == parts


# --- defaults -------------------------------------------------------------------------------


def test_the_smallest_contract_has_every_default_of_the_format() -> None:
    contract = loaded(SMALL)
    job, call = contract.jobs["export"], contract.calls["customer"]

    assert (contract.provider, contract.title) == ("exp", "exp")
    assert contract.account == {"id": "default"}
    assert contract.scopes == (Scope("account", "account"),)
    assert contract.classes == CLASSES
    assert contract.abandon_after is None

    assert job.input == {
        "type": "object",
        "properties": {"dataset": {"type": ["string", "number", "boolean"], "maxLength": 1000}},
        "required": ["dataset"],
        "additionalProperties": False,
    }
    assert job.identity is None
    assert (job.repeat, job.repeat_window, job.on_failure) == ("ask", 600_000, "note")
    assert job.approve_within == 86_400_000
    assert job.failure.code == (parse_pointer("/error/code"),)
    assert job.failure.message == (parse_pointer("/error/message"),)

    assert job.send.request_class is RequestClass.UNCERTAIN_WRITE
    assert (job.send.ok, job.send.timeout, job.send.approval.mode) == (None, 30_000, "none")
    assert job.status.request_class is RequestClass.READ
    assert job.status.effect == "read"
    assert job.status.echo == ((parse_pointer("/job_id"), parse_template("{id}")),)

    assert job.backoff == Backoff(base=30_000, max=200_000, rate_limited=60_000, first=150_000)
    assert job.limits.max_transport_failures == 5
    assert job.limits.max_rate_limited == 3
    assert job.limits.extension == Extension(800_000, -(-job.limits.max_status_requests // 3), 2)
    assert (job.hints.next, job.hints.floor, job.hints.ceiling) == ((), 2_000, 1_200_000)

    result = job.results["result"]
    assert (result.timeout, result.authenticate, result.redirect) == (300_000, False, "none")
    assert job.success.require == (Requirement(parse_pointer("/result/url"), "url"),)
    assert job.success.then == ("fetch_result",)
    assert job.cancel is None
    assert job.lookup is None
    assert call.deadline == 300_000
    assert call.send.request_class is RequestClass.READ


@pytest.mark.parametrize(
    ("usual", "deadline", "base", "longest", "first"),
    [
        ("10s", "1m", 2_000, 10_000, 2_500),
        ("10m", "40m", 30_000, 200_000, 150_000),
        ("12h", "3d", 60_000, 600_000, 300_000),
        ("2s", "10s", 2_000, 10_000, 1_000),
    ],
)
def test_the_schedule_fits_the_usual_duration_and_the_deadline(
    usual: str, deadline: str, base: int, longest: int, first: int
) -> None:
    text = SMALL.replace('"10m"', f'"{usual}"').replace('"40m"', f'"{deadline}"')
    assert loaded(text).jobs["export"].backoff == Backoff(base, longest, 60_000, first)


def test_a_stated_extension_is_granted_once_and_its_parts_default_to_a_third() -> None:
    text = changed(SMALL, "[calls]", '[jobs.export.limits.extension]\nby = "15m"\n[calls]')
    limits = loaded(text).jobs["export"].limits
    assert limits.extension == Extension(900_000, -(-limits.max_status_requests // 3), 1)


def test_a_short_deadline_still_gets_three_checks() -> None:
    text = SMALL.replace('"10m"', '"1s"').replace('"40m"', '"2s"')
    assert loaded(text).jobs["export"].limits.max_status_requests == 3


@pytest.mark.parametrize(
    ("lines", "expected", "mode"),
    [
        ('method = "GET"', "read", "none"),
        ('method = "POST"', "uncertain_write", "per_call"),
        ('method = "PUT"', "uncertain_write", "per_call"),
        ('method = "DELETE"', "uncertain_write", "per_call"),
        ('method = "PUT"\nidempotent = "by_nature"', "idempotent_write", "none"),
        ('method = "POST"\nidempotency.at = "header:Idempotency-Key"', "idempotent_write", "none"),
        ('method = "POST"\nclass = "read"', "read", "none"),
        (
            'method = "POST"\nlookup = { method = "GET", path = "/x", match = { "/r" = "{ref}" } }',
            "uncertain_write",
            "none",
        ),
    ],
)
def test_the_class_follows_from_what_the_contract_promises_not_from_the_method(
    lines: str, expected: str, mode: str
) -> None:
    text = f'{SMALL}\n[calls.write]\nlabel = "Write"\npath = "/x"\n{lines}\n'
    send = loaded(text).calls["write"].send
    assert (send.request_class, send.approval.mode) == (expected, mode)


def test_cancelling_needs_approval_unless_the_contract_frees_it() -> None:
    asks = changed(SMALL, "[calls]", 'label = "x"\ncancel = "POST /exports/{id}/cancel"\n[calls]')
    assert loaded(asks).jobs["export"].send.approval.mode == "none"
    cancel = loaded(asks).jobs["export"].cancel
    assert cancel is not None
    assert cancel.approval.mode == "per_call"
    free = changed(
        asks, '"POST /exports/{id}/cancel"', '{ method = "POST", path = "/c", approval = "none" }'
    )
    assert loaded(changed(free, 'label = "x"\n', "")).jobs["export"].cancel is not None


def test_actions_that_no_scope_names_get_the_default_scope() -> None:
    text = changed(SMALL, "[calls]", '[scopes.slow]\nactions = ["export"]\nrate = "1/10s"\n[calls]')
    assert loaded(text).scopes == (
        Scope("slow", "account", ("export",), (1, 10_000)),
        Scope("account", "account", ("customer",)),
    )


def test_a_result_under_base_url_gets_the_credential_and_one_elsewhere_does_not() -> None:
    under = changed(SMALL, '"GET {/result/url}"', '"GET /exports/{id}/content"')
    assert loaded(under).jobs["export"].results["result"].authenticate
    assert not loaded(SMALL).jobs["export"].results["result"].authenticate


# --- values ---------------------------------------------------------------------------------


def test_the_long_form_says_everything() -> None:
    contract = loaded(FULL, "anything.toml")
    job, transfer = contract.jobs["export"], contract.calls["transfer"]
    assert contract.provider == "exp"
    assert contract.checked == "2026-11-30"
    check = contract.account_check
    assert check is not None
    assert contract.action(ACCOUNT_CHECK) is check
    assert (check.name, check.send.request_class) == ("account.check", RequestClass.READ)
    assert ACCOUNT_CHECK not in contract.calls
    assert contract.remind == (3_600_000, 86_400_000, 259_200_000)
    assert contract.scopes[0].reset == (Header("X-RateLimit-Reset"), Unit.EPOCH)
    assert contract.classes[RequestClass.READ].max_attempts == 5
    assert {500, 599, 429} <= contract.classes[RequestClass.READ].retry_statuses
    assert contract.examples[0].line == FULL.split("\n").index("[[examples]]") + 1

    assert job.limits.max_status_requests == 12
    assert job.hints.next[1] == (parse_pointer("/poll_after_seconds"), Unit.SECONDS)
    assert job.send.body["client_ref"] == parse_template("{ref}")
    assert dict(job.send.take) == {"id": parse_pointer("/job_id"), "status_url": Header("Location")}
    assert job.lookup is not None
    assert (job.lookup.absence_proves, job.lookup.settle) == (True, 60_000)
    assert [rule.means for rule in job.rules] == ["not_yet_visible", "quota_exhausted"]
    assert transfer.idempotency is not None
    assert (transfer.idempotency.place, transfer.idempotency.name) == ("header", "Idempotency-Key")
    assert transfer.deadline == 900_000
    assert contract.calls["customer"].instead_of_many == "customers"


@pytest.mark.requirement("R33")
@pytest.mark.parametrize(
    ("below", "attempts"),
    [(None, (5, 3, 1)), (0, (5, 3, 1)), (1, (2, 1, 1)), (2, (1, 1, 1)), (10, (1, 1, 1))],
)
def test_an_attempt_counts_as_all_that_the_layers_below_may_make_of_it(
    below: int | None, attempts: tuple[int, ...]
) -> None:
    added = "" if below is None else f"resends_below = {below}\n"
    contract = loaded(added + FULL)
    assert contract.resends_below == (below or 0)
    assert tuple(contract.attempts(known) for known in RequestClass) == attempts


def test_numbers_and_booleans_in_rows_are_exact_text() -> None:
    text = changed(SMALL, '["queued", "running"]', "[1, 2.50, false, 9007199254740993]")
    words = {row.words for row in loaded(text).jobs["export"].states.rows}
    assert {("1",), ("2.5",), ("false",), ("9007199254740993",)} <= words


def test_rows_keep_the_class_that_the_file_gives_them() -> None:
    text = changed(SMALL, '"/state"', '["/a", "http"]')
    for old, new in (
        ('["queued", "running"]', '[["run", "*"]]'),
        ('["done"]', '[["%none", 200]]'),
        ('["failed"]', '[["no", 422]]'),
    ):
        text = changed(text, old, new)
    states = loaded(text).jobs["export"].states
    assert states.reads == (parse_pointer("/a"), HttpStatus())
    assert states.rows == (
        Row(("run", "*"), JobClass.WAITING),
        Row(("%none", "200"), JobClass.SUCCEEDED),
        Row(("no", "422"), JobClass.FAILED),
    )


def test_a_body_as_json_text_is_the_same_as_a_table() -> None:
    table = '{ a = "{arg.dataset}", b = [1, 2.50, true], c = { d = "x" } }'
    json = """'''{"a": "{arg.dataset}", "b": [1, 2.50, true], "c": {"d": "x"}}'''"""
    as_table = changed(SMALL, '{ dataset = "{arg.dataset}" }', table)
    as_json = changed(
        SMALL,
        'submit    = "POST /exports"\nbody      = { dataset = "{arg.dataset}" }',
        f'submit = {{ method = "POST", path = "/exports", body_json = {json} }}',
    )
    body = loaded(as_json).jobs["export"].send.body
    assert body == loaded(as_table).jobs["export"].send.body
    assert body["b"] == [1, Decimal("2.50"), True]
    assert isinstance(body["c"]["d"], Template)


def test_several_results_take_their_addresses_from_the_success_answer() -> None:
    text = changed(
        SMALL,
        'result    = "GET {/result/url}"',
        'results = { output = "GET {/urls/out}", errors = "GET {/urls/err}" }',
    )
    job = loaded(text).jobs["export"]
    assert {name: result.url for name, result in job.results.items()} == {
        "output": parse_template("{result.output_url}"),
        "errors": parse_template("{result.errors_url}"),
    }
    assert [one.type for one in job.success.require] == ["url", "url"]


def test_a_required_list_and_a_short_result_join() -> None:
    text = changed(SMALL, "[calls]", '[jobs.export.success]\nrequire = ["/rows"]\n[calls]')
    assert loaded(text).jobs["export"].success.require == (
        Requirement(parse_pointer("/rows"), "present"),
        Requirement(parse_pointer("/result/url"), "url"),
    )


def test_the_arguments_of_every_part_of_an_action_are_its_input() -> None:
    text = changed(SMALL, '"GET /exports/{id}"', '"GET /{arg.region}/exports/{id}"')
    assert loaded(text).jobs["export"].input["required"] == ["dataset", "region"]


def test_a_stated_input_accepts_nothing_beside_its_properties_unless_it_says_so() -> None:
    text = changed(FULL, "additionalProperties = false\n", "")
    assert loaded(text).jobs["export"].input["additionalProperties"] is False


# --- digests --------------------------------------------------------------------------------


def bindings(text: str) -> tuple[str, str]:
    action = loaded(text).jobs["export"]
    return action.binding, action.section


@pytest.mark.requirement("W08")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"https://api.exp.example/v1"', '"https://api.exp.example/v2"'),
        ('id = "acct_17"', 'id = "acct_18"'),
        ('"env:EXP_TOKEN"', '"env:OTHER_TOKEN"'),
        ('path = "/exports/{id}"', 'path = "/exports/{id}/state"'),
        ('{ dataset = "{arg.dataset}", client_ref = "{ref}" }', '{ client_ref = "{ref}" }'),
        ('echo = { "/job_id" = "{id}" }', 'echo = { "/id" = "{id}" }'),
        ('hosts = ["files.exp.example"]\nredirect', 'hosts = ["f.exp.example"]\nredirect'),
        ('query = { client_ref = "{ref}" }', 'query = { reference = "{ref}" }'),
        ('Exp-Version = "2026-01-01"', 'Exp-Version = "2026-06-01"'),
    ],
)
def test_what_decides_where_requests_go_changes_the_binding(old: str, new: str) -> None:
    assert bindings(changed(FULL, old, new))[0] != bindings(FULL)[0]


@pytest.mark.requirement("W08")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('waiting = ["queued", "running"]', 'waiting = ["queued", "running", "new"]'),
        ('title = "Export a data set"', 'title = "Export data"'),
        ("max_status_requests = 12", "max_status_requests = 14"),
        ('floor = "2s"', 'floor = "3s"'),
        ('age_under = "30s"', 'age_under = "40s"'),
        ('means = "quota_exhausted"', 'means = "rate_limited"'),
    ],
)
def test_states_texts_limits_hints_and_rules_change_the_section_but_not_the_binding(
    old: str, new: str
) -> None:
    binding, section = bindings(changed(FULL, old, new))
    assert binding == bindings(FULL)[0]
    assert section != bindings(FULL)[1]


def test_comments_and_the_order_of_keys_change_neither() -> None:
    text = changed(
        FULL, 'method = "GET"\npath = "/exports/{id}"', 'path = "/exports/{id}"\nmethod = "GET" # x'
    )
    assert bindings(text) == bindings(FULL)
    assert loaded(text).digest != loaded(FULL).digest


# --- use ------------------------------------------------------------------------------------


def use(text: str) -> Contract:
    found = parse(text, "exp_second.toml", {"exp": FULL}.get)
    assert isinstance(found, Contract), "\n".join(map(str, found))
    return found


OVERRIDES = """\
contract = 1
use = "exp"
resends_below = 1
auth = "header X-Key env:SECOND"
account = { id = "acct_18" }

[scopes.account]
rate = "10/1m"

[jobs.export]
label = "Second export {arg.dataset}"
deadline = "1h"

[calls.transfer]
deadline = "5m"
"""


def test_a_shipped_contract_is_adapted_for_a_second_account() -> None:
    contract = use(OVERRIDES)
    assert contract.provider == "exp_second"
    assert contract.account["id"] == "acct_18"
    assert (contract.auth.scheme, contract.auth.name, contract.auth.secret) == (
        "header",
        "X-Key",
        "env:SECOND",
    )
    assert contract.resends_below == 1
    assert contract.scopes[0].rate == (10, 60_000)
    assert contract.scopes[0].max_concurrent_requests == 2
    job = contract.jobs["export"]
    assert (job.limits.deadline, job.limits.max_status_requests) == (3_600_000, 12)
    assert job.label == parse_template("Second export {arg.dataset}")
    assert contract.calls["transfer"].deadline == 300_000
    assert contract.base_url == loaded(FULL).base_url


@pytest.mark.parametrize(
    ("lines", "key", "line"),
    [
        ('base_url = "https://other.example"', "base_url", 3),
        ('[jobs.export]\nstate = "/other"', "jobs.export.state", 4),
        ('[jobs.export.submit]\npath = "/x"', "jobs.export.submit.path", 4),
        ('[[rules]]\nhttp = 404\nmeans = "gone"', "rules", 3),
        ('[jobs.exprot]\nlabel = "x"', "jobs.exprot", 3),
        ('[headers]\nX = "1"', "headers", 3),
    ],
)
def test_an_adaptation_may_change_nothing_else(lines: str, key: str, line: int) -> None:
    found = parse(f'contract = 1\nuse = "exp"\n{lines}\n', "second.toml", {"exp": FULL}.get)
    assert isinstance(found, tuple)
    (error,) = found
    assert (error.file, error.line, error.key) == ("second.toml", line, key)


def test_a_mistake_in_an_override_points_at_the_file_that_has_it() -> None:
    text = changed(OVERRIDES, '"1h"', '"1 hour"')
    found = parse(text, "second.toml", {"exp": FULL}.get)
    assert isinstance(found, tuple)
    assert (found[0].file, found[0].line, found[0].key) == (
        "second.toml", 12, "jobs.export.deadline",
    )  # fmt: skip


def test_a_mistake_in_the_shipped_contract_names_that_contract() -> None:
    broken = changed(FULL, 'path = "/customers/{arg.id}"', 'path = "/customers/{id}"')
    found = parse('contract = 1\nuse = "exp"\n', "second.toml", {"exp": broken}.get)
    assert isinstance(found, tuple)
    assert found[0].file == "exp.toml"
    assert found[0].line == broken.split("\n").index('path = "/customers/{id}"') + 1


@pytest.mark.parametrize(
    ("lines", "line", "key"),
    [
        ("", 2, "use"),
        ('[account]\nid = "main"', 3, "account"),
        ('account.id = "main"', 3, "account"),
    ],
)
def test_what_a_shipped_contract_needs_of_the_account_is_one_mistake(
    lines: str, line: int, key: str
) -> None:
    needy = changed(FULL, '"https://api.exp.example/v1"', '"https://{account.host}/{account.team}"')
    needy = changed(needy, "/jobs/{id}", "/{account.team}/jobs/{id}")
    text = f'contract = 1\nuse = "exp"\n{lines}\n'
    found = parse(text, "second.toml", {"exp": needy}.get)
    assert isinstance(found, tuple)
    (error,) = found
    assert (error.file, error.line, error.key) == ("second.toml", line, key)
    assert error.fix == 'add host = "…" and team = "…" below [account]'
    filled = 'contract = 1\nuse = "exp"\n[account]\nhost = "acme.example"\nteam = "a"\n'
    adapted = parse(filled, "second.toml", {"exp": needy}.get)
    assert isinstance(adapted, Contract)
    assert adapted.base_url == "https://acme.example/a"


def test_an_unknown_shipped_contract_is_an_error_at_its_name() -> None:
    (error,) = errors_of('contract = 1\nuse = "strpe"\n')
    assert (error.line, error.key) == (2, "use")
    assert "contract list" in error.fix


def test_a_pointer_of_the_file_is_parsed_once_and_for_all() -> None:
    text = changed(SMALL, '"/state"', '"/conditions/[type=Job~1Done]/status"')
    (read,) = loaded(text).jobs["export"].states.reads
    assert isinstance(read, Pointer)
    assert len(read.steps) == 3


def test_an_account_says_where_a_person_can_look() -> None:
    text = changed(FULL, 'id = "acct_17"', 'id = "acct_17"\nhost = "acme.example"')
    text = changed(text, "https://exp.example/jobs/{id}", "https://{account.host}/jobs/{id}")
    contract = loaded(text)
    assert contract.console is not None
    facts = Facts(arguments={}, account=contract.account, take={"id": "exp_71c"})
    assert link(contract.console, facts) == "https://acme.example/jobs/exp_71c"
