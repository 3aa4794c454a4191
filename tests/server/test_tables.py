"""Tables of `config.toml` that tell people and answer for them: a mistake names its place."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.server.commanding import Run

from forbear.rules.model import Option, Reason
from forbear.server.config import BadSettings, Settings
from forbear.server.credentials import Credentials
from forbear.server.notify import LAST, signing_key
from forbear.server.standing import listed
from forbear.server.tables import Notify

NOW = 1_796_034_000_000  # 2026-11-30 10:20Z
DAY = 86_400_000

NOTIFY = '[notify]\nwebhook = "https://hooks.example/T0/B0"\nsecret = "env:HOOK_SECRET"\n'
STANDING = """
[[standing]]
provider = "exp"
action = "export"
reason = "rate_limited"
option = "hold"
parameters = { until = "30m" }
times = 2
until = 2026-12-31
operator = "anna"
"""
HANDOVER = """
[[handover]]
name = "night-shift"
reasons = ["rate_limited", "deadline_exceeded"]
options = ["hold", "abandon"]
"""


def loaded(home: Path, text: str, **environment: str) -> Settings:
    (home / "config.toml").write_text(text)
    return Settings.load({"FORBEAR_HOME": str(home), **environment})


@pytest.mark.requirement("E14", "E16")
def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = loaded(tmp_path, NOTIFY + STANDING + HANDOVER)
    assert settings.notify is not None
    assert (settings.notify.place, settings.notify.urgency) == ("hooks.example", "today")
    assert "T0" not in repr(settings)
    (standing,) = settings.standing
    assert standing.wish(NOW).until == NOW + 1_800_000
    assert listed(settings.standing, NOW) == [
        "hold (until 30m) for rate_limited of exp.export, at most 2 times per operation, "
        "until 2027-01-01 00:00Z, by anna"
    ]
    assert listed(settings.standing, NOW + 40 * DAY) == []
    (workflow,) = settings.handover
    assert workflow.options == (Option.HOLD, Option.ABANDON)
    assert workflow.reasons == (Reason.RATE_LIMITED, Reason.DEADLINE_EXCEEDED)


def test_the_environment_wins_and_its_secret_is_only_ever_referred_to(tmp_path: Path) -> None:
    address = "https://other.example/x"
    settings = loaded(
        tmp_path,
        NOTIFY,
        FORBEAR_NOTIFY_WEBHOOK=address,
        FORBEAR_NOTIFY_SECRET="a-secret-of-more-than-24-bytes",
    )
    assert settings.notify == Notify(address, "env:FORBEAR_NOTIFY_SECRET")
    named = loaded(tmp_path, "", FORBEAR_NOTIFY_WEBHOOK=address, FORBEAR_NOTIFY_SECRET="env:HOOK")
    assert named.notify == Notify(address, "env:HOOK")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NOTIFY.replace("https", "http"), "notify.webhook: plain http is for this machine alone"),
        (NOTIFY.replace("https://", "https://me@"), "user information"),
        (NOTIFY.replace("env:HOOK_SECRET", "s3cr3t"), "never the secret itself"),
        ('[notify]\nwebhook = "https://hooks.example"\n', "what is sent is signed"),
        ('[notify]\nsecret = "env:X"\n', "a secret without a webhook"),
        (NOTIFY + 'urgency = "soon"\n', "notify.urgency: 'soon' is none of note, today, now"),
        (NOTIFY + 'webhok = "x"\n', "notify.webhok is no setting; write webhook"),
        ("notify = 3\n", "notify must be a table"),
        ("[standing]\n", "standing is a list of tables: [[standing]]"),
        (STANDING.replace('"hold"', '"send_new"'), "standing[1].option: 'send_new' is none of"),
        (STANDING.replace('"hold"', '"approve"'), "standing[1].option: 'approve' is none of"),
        (STANDING.replace('"hold"', '"reconcile"'), "reconcile is never offered for rate_limited"),
        (STANDING.replace("rate_limited", "tired"), "standing[1].reason: 'tired' is none of"),
        (STANDING.replace("30m", "25h"), "standing[1].parameters: --until must lie within 24"),
        (STANDING.replace('until = "30m"', "minutes = 4"), "--minutes belongs to extend"),
        (STANDING.replace('until = "30m"', "sort = 4"), "standing[1].parameters: "),
        (STANDING.replace("times = 2", "times = 0"), "standing[1].times: 0 is no number"),
        (STANDING.replace("2026-12-31", '"soon"'), "standing[1].until: write the last day"),
        (STANDING.replace("2026-12-31", "2026-12-31T10:00:00"), "standing[1].until: write the"),
        (STANDING.replace("until = 2026-12-31\n", ""), "standing[1].until: write the last day"),
        (STANDING.replace('operator = "anna"', ""), "standing[1].operator is missing"),
        (STANDING + STANDING.replace("anna", " "), "standing[2].operator must be a text"),
        (HANDOVER.replace("night-shift", "../x"), "handover[1].name: '../x' is taken or no plain"),
        (HANDOVER + HANDOVER, "handover[2].name: 'night-shift' is taken"),
        (HANDOVER.replace('"hold", ', '"hold", "all", '), "handover[1].options: 'all' is none of"),
        (HANDOVER.replace('["rate_limited", "deadline_exceeded"]', "[]"), "must be a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadSettings) as refused:
        loaded(tmp_path, text)
    assert told in str(refused.value)
    assert str(tmp_path / "config.toml") in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("plain-secret-of-twenty-four+", b"plain-secret-of-twenty-four+"),
        ("whsec_" + base64.b64encode(b"x" * 24).decode(), b"x" * 24),
        ("whsec_***", "env:S: what follows whsec_ is not Base64"),
        ("too-short", "env:S: shorter than 24 bytes"),
        ("", "env:S: S is not set"),
    ],
)
def test_signing_keys(secret: str, key: bytes | str) -> None:
    found = signing_key(Notify("https://hooks.example", "env:S"), Credentials({"S": secret}))
    assert found == key or (isinstance(found, str) and isinstance(key, str) and key in found)


def test_doctor_tells_whether_the_webhook_is_set_and_when_it_last_worked(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "webhook: none set" in run("doctor").out
    (home / "config.toml").write_text(NOTIFY)
    assert "PROBLEM  webhook: env:HOOK_SECRET" in run("doctor").out
    monkeypatch.setenv("HOOK_SECRET", "a-secret-of-more-than-24-bytes")
    looked = run("doctor").out
    assert "ok       webhook: hooks.example, from urgency today on; it has not been need" in looked
    (home / LAST).write_text('{"worked_at": 1795861200000}')
    assert "last worked 2026-11-28 10:20:00Z" in run("doctor").out
    (home / LAST).write_text(
        '{"worked_at": 1795861200000, "failed_at": 1795861201000, "why": "hooks.example said 500"}'
    )
    looked = run("doctor").out
    assert "PROBLEM  webhook: " in looked
    assert "failed 2026-11-28 10:20:01Z: hooks.example said 500" in looked
    assert "T0" not in looked
