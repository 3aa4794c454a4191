"""The load-time report: what a contract leaves open."""

from __future__ import annotations

from datetime import date
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.contracts import FULL, SMALL, changed, loaded

from forbear.rules.contract_report import Finding, coverage, covered, duration, report
from forbear.rules.toml_lines import key_lines

TODAY = date(2026, 12, 1)


def found(text: str, code: str, today: date = TODAY) -> Finding | None:
    return next((one for one in report(loaded(text), today) if one.code == code), None)


def test_a_complete_contract_is_warned_of_nothing() -> None:
    text = changed(FULL, "max_status_requests = 12", "max_status_requests = 16")
    assert [one for one in report(loaded(text), TODAY) if one.warning] == []


@pytest.mark.requirement("R15")
@pytest.mark.parametrize(
    ("added", "warned"),
    [
        ("", True),
        ('lookup = { method = "GET", path = "/x", match = { "/ref" = "{ref}" } }', False),
        ('idempotency = { at = "header:Idempotency-Key" }', False),
    ],
)
def test_a_write_that_nothing_can_settle_is_warned_of_when_it_is_loaded(
    added: str, warned: bool
) -> None:
    text = changed(SMALL, "[calls]", f"{added}\n[calls]")
    finding = found(text, "lost_answer_needs_a_person")
    assert (finding is not None) is warned
    if finding is not None:
        assert finding.where == "jobs.export"
        assert finding.text == "a lost answer of export ends with a person"
        assert "[jobs.export.lookup] or [jobs.export.idempotency]" in finding.fix


@pytest.mark.requirement("R15")
def test_a_call_that_writes_without_key_and_lookup_is_warned_of() -> None:
    text = f'{SMALL}\n[calls.merge]\nlabel = "Merge"\nmethod = "POST"\npath = "/merge"\n'
    finding = found(text, "lost_answer_needs_a_person")
    assert finding is not None
    codes = [one.where for one in report(loaded(text), TODAY) if one.code == finding.code]
    assert codes == ["jobs.export", "calls.merge"]


@pytest.mark.requirement("W30")
@pytest.mark.parametrize(("kept", "warned"), [("30m", True), ("40m", False), ("7d", False)])
def test_a_deadline_that_outlives_the_retention_is_warned_of(kept: str, warned: bool) -> None:
    text = changed(SMALL, "[calls]", f'expiry = {{ kept = "{kept}" }}\n[calls]')
    finding = found(text, "deadline_outlives_retention")
    assert (finding is not None) is warned
    if finding is not None:
        assert "40 m" in finding.text
        assert "30 m" in finding.text


@pytest.mark.requirement("W30")
def test_the_deadline_is_the_stated_one_whatever_the_usual_duration() -> None:
    for usual in ("1s", "10m", "39m"):
        job = loaded(SMALL.replace('"10m"', f'"{usual}"')).jobs["export"]
        assert job.limits.deadline == 2_400_000


@pytest.mark.requirement("W18")
def test_a_status_without_evidence_is_asked_for_it() -> None:
    finding = found(SMALL, "no_evidence")
    assert finding is not None
    assert "evidence" in finding.fix
    assert found(FULL, "no_evidence") is None


@pytest.mark.parametrize(
    ("checked", "code"),
    [
        ("", "unchecked"),
        ("checked = 2026-06-03", "stale"),
        ("checked = 2026-06-04", None),
        ("checked = 2027-01-01", None),
    ],
)
def test_facts_older_than_half_a_year_are_stale(checked: str, code: str | None) -> None:
    text = changed(SMALL, "contract = 1", f"contract = 1\n{checked}")
    codes = {one.code for one in report(loaded(text), TODAY)} & {"unchecked", "stale"}
    assert codes == ({code} if code else set())


def test_an_account_without_a_name_is_warned_of() -> None:
    assert found(SMALL, "default_account") is not None
    assert found(FULL, "default_account") is None


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ('"GET {/result/url}"', "result_host"),
        ('{ method = "GET", url = "https://cdn.example/{id}" }', "result_host_refused"),
        ('{ method = "GET", url = "https://cdn.example/{id}", hosts = ["cdn.example"] }', None),
        ('{ method = "GET", url = "https://a.b.example/{id}", hosts = ["*.b.example"] }', None),
        ('{ method = "GET", url = "https://api.exp.example/x/{id}" }', None),
        ('"GET /exports/{id}/content"', None),
    ],
)
def test_a_result_on_a_host_that_is_not_allowed_is_reported(result: str, code: str | None) -> None:
    text = changed(SMALL, '"GET {/result/url}"', result)
    codes = {one.code for one in report(loaded(text), TODAY) if one.code.startswith("result_host")}
    assert codes == ({code} if code else set())


def test_a_result_at_the_address_of_the_status_is_on_a_host_that_is_allowed() -> None:
    text = changed(SMALL, 'id        = "/job_id"', 'submit.take = { id = "/job_id", url = "/url" }')
    text = changed(
        text, 'submit    = "POST /exports"', 'submit.method = "POST"\nsubmit.path = "/exports"'
    )
    text = changed(text, '"GET /exports/{id}"', '"GET {take.url}"')
    own = '{ method = "GET", url = "{take.url}", auth = true }'
    assert found(changed(text, '"GET {/result/url}"', own), "result_host") is None
    assert found(text, "result_host") is not None


def test_missing_rules_for_404_and_429_are_reported() -> None:
    assert found(SMALL, "no_rule_404") is not None
    limited = found(SMALL, "no_rule_429")
    assert limited is not None
    assert "export, customer" in limited.text
    assert found(FULL, "no_rule_404") is None
    assert found(FULL, "no_rule_429") is None


@pytest.mark.requirement("R33")
def test_a_declared_layer_that_sends_again_is_noted_and_its_price_told() -> None:
    assert found(SMALL, "resends_below") is None
    assert found(SMALL, "write_sent_again_below") is None
    finding = found(f"resends_below = 1\n{SMALL}", "resends_below")
    assert finding is not None
    assert not finding.warning
    assert finding.text == (
        "one attempt may reach the provider 2 times and counts as 2: "
        "read 2 of 4, idempotent_write 1 of 3, uncertain_write 1 of 1"
    )


@pytest.mark.requirement("R33")
def test_a_write_without_a_key_above_a_layer_that_sends_again_is_warned_of() -> None:
    cancel = 'cancel = { method = "POST", path = "/exports/{id}/cancel", approval = "none" }'
    text = changed(f"resends_below = 2\n{SMALL}", "[calls]", f"{cancel}\n[calls]")
    text += (
        '\nrename = { method = "POST", path = "/x", approval = "none" }'
        '\nnote = { method = "PUT", path = "/y", approval = "none", idempotent = "by_nature" }\n'
    )

    def warned(text: str) -> dict[str, str]:
        findings = report(loaded(text), TODAY)
        assert all(one.warning for one in findings if one.code == "write_sent_again_below")
        return {one.where: one.fix for one in findings if one.code == "write_sent_again_below"}

    key = 'idempotency = { at = "header:Idempotency-Key" }'
    fixes = warned(text)
    assert set(fixes) == {"jobs.export.submit", "jobs.export.cancel", "calls.rename"}
    assert "add [….idempotency]" in fixes["calls.rename"]
    assert fixes["jobs.export.cancel"] == "stop that layer from sending POST again"
    keyed = warned(changed(text, "[calls]", f"{key}\n[calls]"))
    assert set(keyed) == {"jobs.export.cancel", "calls.rename"}


def test_a_table_that_waits_for_every_word_is_noted() -> None:
    text = changed(SMALL, '["queued", "running"]', '["queued", "*"]')
    finding = found(text, "unknown_words_wait")
    assert finding is not None
    assert not finding.warning


# --- what may have been forgotten -----------------------------------------------------------


def silent(text: str, code: str) -> Finding | None:
    findings = report(loaded(text), TODAY, key_lines(text))
    return next((one for one in findings if one.code == code), None)


def test_warnings_come_before_notes() -> None:
    marks = [one.warning for one in report(loaded(SMALL), TODAY)]
    assert marks == sorted(marks, reverse=True)
    assert set(marks) == {True, False}


def test_today_is_the_fix_of_unchecked_facts() -> None:
    finding = found(SMALL, "unchecked")
    assert finding is not None
    assert "checked = 2026-12-01" in finding.fix


def test_an_argument_in_the_label_only_is_warned_of_as_a_misspelling() -> None:
    finding = silent(
        changed(SMALL, "usual ", 'label = "Export {arg.datset}"\nusual '), "label_only"
    )
    assert finding is not None
    assert "{arg.datset} is in the label only" in finding.text
    assert "arg.dataset" in finding.fix
    assert silent(changed(SMALL, "usual ", 'label = "{arg.dataset}"\nusual '), "label_only") is None
    assert silent(FULL, "label_only") is None


def test_an_argument_of_a_stated_input_may_be_for_the_label_alone() -> None:
    text = changed(SMALL, "usual ", 'label = "Export {arg.why}"\nusual ').replace(
        "[calls]", 'input = { type = "object", properties = { dataset = {}, why = {} } }\n[calls]'
    )
    assert silent(text, "label_only") is None


@pytest.mark.parametrize(("auth", "noted"), [("", True), ('auth = "none"', False)])
def test_a_missing_auth_line_is_noted(auth: str, noted: bool) -> None:
    text = changed(SMALL, 'auth     = "bearer env:EXP_TOKEN"', auth)
    finding = silent(text, "no_auth")
    assert (finding is not None) is noted
    if finding is not None:
        assert not finding.warning
        assert "no key is sent" in finding.text


@pytest.mark.parametrize(("deadline", "warned"), [("60s", True), ("61s", False)])
def test_a_deadline_that_one_429_uses_up_is_warned_of(deadline: str, warned: bool) -> None:
    text = SMALL.replace('"40m"', f'"{deadline}"').replace('"10m"', '"10s"')
    assert (found(text, "deadline_within_one_429") is not None) is warned


def test_a_job_that_waits_for_no_word_is_warned_of() -> None:
    text = changed(SMALL, '["queued", "running"]', "[]")
    assert found(text, "nothing_waits") is not None
    assert found(SMALL, "nothing_waits") is None


def test_a_result_without_the_key_names_lines_that_send_it() -> None:
    finding = found(SMALL, "result_without_key")
    assert finding is not None
    lines = finding.fix.partition("write instead: ")[2].replace("; and: ", "\n")
    text = changed(SMALL, 'result    = "GET {/result/url}"', lines)
    mended = loaded(text).jobs["export"]
    assert mended.results["result"].authenticate
    assert mended.success == loaded(SMALL).jobs["export"].success
    assert found(text, "result_without_key") is None


def test_a_result_elsewhere_or_without_any_key_needs_none() -> None:
    assert found(changed(SMALL, '"bearer env:EXP_TOKEN"', '"none"'), "result_without_key") is None
    assert found(FULL, "result_without_key") is None


def test_a_field_that_the_result_needs_is_asked_for_from_success() -> None:
    long = (
        'success = { take = { link = "/link" } }\n'
        'result = { method = "GET", url = "{result.link}" }'
    )
    text = changed(SMALL, 'result    = "GET {/result/url}"', long)
    finding = found(text, "result_not_required")
    assert finding is not None
    assert finding.fix == 'add require = { "/link" = "present" } to [jobs.export.success]'
    mended = text.replace("} }", '}, require = { "/link" = "present" } }', 1)
    assert found(mended, "result_not_required") is None
    assert found(SMALL, "result_not_required") is None


# --- what a budget covers -------------------------------------------------------------------


@pytest.mark.requirement("W09")
def test_a_budget_that_ends_long_before_the_deadline_is_warned_of() -> None:
    text = changed(FULL, "max_status_requests = 12", "max_status_requests = 4")
    finding = found(text, "budget_short")
    assert finding is not None
    assert finding.text.startswith("4 status requests cover")
    assert "of the deadline of 40 m" in finding.text


def test_a_span_that_is_one_length_is_said_once() -> None:
    finding = found(SMALL, "budget")
    assert finding is not None
    assert "cover 40 m of the deadline of 40 m" in finding.text


@pytest.mark.requirement("W09")
@pytest.mark.parametrize(("usual", "deadline"), [("10s", "5m"), ("10m", "40m"), ("6h", "2d")])
def test_the_default_budget_reaches_the_deadline(usual: str, deadline: str) -> None:
    text = SMALL.replace('"10m"', f'"{usual}"').replace('"40m"', f'"{deadline}"')
    job = loaded(text).jobs["export"]
    least, _, _ = coverage(job)
    assert least >= 0.95 * job.limits.deadline


@pytest.mark.parametrize(("u", "expected"), [(0.0, 17_500), (1.0, 35_000)])
def test_what_is_covered_is_the_sum_of_the_delays(u: float, expected: int) -> None:
    text = changed(FULL, "max_status_requests = 12", "max_status_requests = 3")
    assert covered(loaded(text).jobs["export"], repeat(u)) == expected


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50), st.integers(1, 60))
def test_a_budget_never_covers_more_than_the_deadline(draws: list[float], requests: int) -> None:
    text = changed(FULL, "max_status_requests = 12", f"max_status_requests = {requests}")
    job = loaded(text).jobs["export"]
    elapsed = covered(job, (draws[number % len(draws)] for number in range(1000)))
    assert 0 < elapsed <= job.limits.deadline


def test_the_report_of_a_contract_is_the_same_every_time() -> None:
    assert report(loaded(FULL), TODAY) == report(loaded(FULL), TODAY)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(45_000, "45 s"), (2_280_000, "38 m"), (9_000_000, "2 h 30 m"), (604_800_000, "7 d")],
)
def test_durations_read_as_people_say_them(ms: int, text: str) -> None:
    assert duration(ms) == text
