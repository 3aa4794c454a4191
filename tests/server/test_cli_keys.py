"""`forbear keys`: what it shows, and what a home is like after each command and after a loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.commanding import Run, at_a_terminal, child_environment, drive, ends, waits

SEAL, SIGN = "audit-seal.key", "audit-sign.key"
PHRASE = "correct horse battery staple"


def state_of(run: Run, name: str) -> str:
    told = run("keys", "show", "--json").json()
    return str(next(one["state"] for one in told["keys"] if one["name"] == name))


# --- show -----------------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_show_tells_of_every_key_and_shows_none(home: Path, run: Run) -> None:
    assert "no keys" in run("keys", "show").err
    drive(home, waits)
    plain, told = run("keys", "show"), run("keys", "show", "--json")
    assert (plain.code, told.code) == (0, 0)
    keys = {one["name"]: one for one in told.json()["keys"]}
    assert list(keys) == ["store", "sealing", "signing"]
    assert {one["state"] for one in keys.values()} == {"in use"}
    assert keys["sealing"]["where"] == str(home / "keys" / SEAL)
    assert all(one["since"] and len(one["fingerprint"]) == 16 for one in keys.values())
    [epoch] = told.json()["epochs"]
    assert (epoch["number"], epoch["first_row"], epoch["readable"]) == (1, 1, True)
    for name in ("store.key", SEAL, SIGN):
        value = (home / "keys" / name).read_text()
        assert value not in plain.out + told.out
    assert told.json()["public_key"] in plain.out
    assert "ok       keys of the audit log: sealing in" in run("doctor").out


# --- rotate ---------------------------------------------------------------------------------


@pytest.mark.requirement("A05")
@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("name", ["sealing", "signing"])
def test_a_key_is_rotated_and_the_log_goes_on(home: Path, run: Run, name: str) -> None:
    op_id = drive(home, waits)
    before = run("keys", "show", "--json").json()
    ran = run("keys", "rotate", name, "--yes")
    assert ran.code == 0, ran.err
    after = run("keys", "show", "--json").json()
    changed = [
        new["name"]
        for old, new in zip(before["keys"], after["keys"], strict=True)
        if old["fingerprint"] != new["fingerprint"]
    ]
    assert changed == [name]
    assert after["log"] == before["log"]
    assert (after["signing_keys"], after["public_key"] != before["public_key"]) == (
        (2, True) if name == "signing" else (1, False)
    )
    assert run("show", op_id).code == 0
    assert "accepted" in run("audit", "show").out
    told = run("audit", "verify", "--json").json()
    assert (told["ok"], told["signing_keys"]) == (True, after["signing_keys"])
    [event] = run("audit", "show", "--code", "keys_changed", "--json").json()["events"]
    assert (event["body"]["key"], event["body"]["how"]) == (name, "rotated")
    assert event["body"]["account"]


@pytest.mark.usefixtures("operator")
def test_an_epoch_is_rotated(home: Path, run: Run) -> None:
    drive(home, waits)
    assert run("keys", "rotate", "epoch", "--yes").code == 0
    assert [one["number"] for one in run("keys", "show", "--json").json()["epochs"]] == [1, 2]


def test_a_key_is_changed_by_who_may_decide(home: Path, run: Run) -> None:
    drive(home, waits)
    before = (home / "keys" / SEAL).read_text()
    ran = run("keys", "rotate", "sealing", "--yes")
    assert (ran.code, "needs the operator token" in ran.err) == (2, True)
    assert (home / "keys" / SEAL).read_text() == before
    with at_a_terminal("keys", "rotate", "sealing") as screen:
        screen.until("[y/N]")
        screen.type("y\n")
        screen.until("is now")
        assert screen.end() == 0
    assert (home / "keys" / SEAL).read_text() != before


# --- a lost key -----------------------------------------------------------------------------


@pytest.mark.requirement("A05", "D09")
@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("lost", ["missing", "wrong"])
def test_a_lost_sealing_key_stops_everything_but_verifying_until_it_is_replaced(
    home: Path, run: Run, lost: str
) -> None:
    op_id = drive(home, ends)
    path = home / "keys" / SEAL
    if lost == "missing":
        path.unlink()
    else:
        path.write_text("5e" * 32)
    served = subprocess.run(
        [sys.executable, "-m", "forbear", "serve"],
        env=child_environment(),
        input=b"",
        capture_output=True,
        check=False,
    )
    assert served.returncode == 3
    for ran in (run("ls"), run("audit", "show"), run("keys", "rotate", "sealing", "--yes")):
        assert (ran.code, ran.out) == (3, "")
        assert f"{SEAL} is " in ran.err
        assert "Nothing was stored and nothing was sent" in ran.err
        assert "forbear keys replace sealing --lost --yes" in ran.err
    assert state_of(run, "sealing") == lost
    assert run("keys", "show").code == 1
    assert run("audit", "verify").code == 0
    looked = run("doctor")
    assert (looked.code, "forbear keys restore FILE" in looked.out) == (3, True)
    assert path.exists() == (lost == "wrong")

    ran = run("keys", "replace", "sealing", "--yes")
    assert (ran.code, "add --lost" in ran.err) == (2, True)
    ran = run("keys", "replace", "sealing", "--lost", "--yes")
    assert ran.code == 0, ran.err
    assert state_of(run, "sealing") == "in use"
    if lost == "wrong":
        assert (home / "keys" / f"{SEAL}.set-aside-1").read_text() == "5e" * 32
    told = run("audit", "show", "--operation", op_id, "--json").json()["events"]
    assert {one["unreadable"] for one in told} == {"the key of epoch 1 was lost"}
    assert [one["code"] for one in told][:2] == ["accepted", "reserved"]
    assert "the key of epoch 1 was lost" in run("audit", "show").out
    assert "accepted (the key of epoch 1 was lost)" in run("show", op_id).out
    [event] = run("audit", "show", "--code", "keys_changed", "--json").json()["events"]
    assert event["body"]["how"] == "replaced"
    assert run("audit", "verify").code == 0
    assert run("ls").code == 0
    assert "the key of epoch 1 was lost" in run("doctor").out
    again = run("keys", "replace", "sealing", "--lost", "--yes")
    assert (again.code, "nothing is lost" in again.err) == (1, True)


# --- backup and restore ---------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_keys_are_backed_up_and_restored_with_a_passphrase(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, waits)
    kept = tmp_path / "keys.backup"
    monkeypatch.setenv("PHRASE", PHRASE)
    assert "name the passphrase" in run("keys", "backup", str(kept)).err
    monkeypatch.setenv("SHORT", "abc")
    assert "needs 12 or more" in run("keys", "backup", str(kept), "--passphrase-env", "SHORT").err
    assert not kept.exists()
    assert run("keys", "backup", str(kept), "--passphrase-env", "PHRASE").code == 0
    assert kept.stat().st_mode & 0o777 == 0o600
    again = run("keys", "backup", str(kept), "--passphrase-env", "PHRASE")
    assert (again.code, "overwrites nothing" in again.err) == (2, True)
    values = {name: (home / "keys" / name).read_text() for name in ("store.key", SEAL, SIGN)}
    assert not any(value in kept.read_text() for value in values.values())

    for name in values:
        (home / "keys" / name).unlink()
    phrase = tmp_path / "phrase"
    phrase.write_text("another phrase, wrong\n")
    ran = run("keys", "restore", str(kept), "--passphrase-file", str(phrase))
    assert (ran.code, "the passphrase is another one" in ran.err) == (1, True)
    assert run("ls").code == 3
    phrase.write_text(f"{PHRASE}\n")
    (home / "keys" / SEAL).write_text("5e" * 32)
    ran = run("keys", "restore", str(kept), "--passphrase-file", str(phrase))
    assert (ran.code, "is another key. Give it another name" in ran.err) == (1, True)
    assert not (home / "keys" / SIGN).exists(), "all or nothing"
    (home / "keys" / SEAL).unlink()
    assert run("keys", "restore", str(kept), "--passphrase-file", str(phrase)).code == 0
    for name, value in values.items():
        assert (home / "keys" / name).read_text() == value
        assert (home / "keys" / name).stat().st_mode & 0o777 == 0o600
    assert run("show", op_id).code == 0
    told = json.loads(kept.read_text())
    kept.write_text(json.dumps({**told, "log": "log_" + "0" * 24}))
    ran = run("keys", "restore", str(kept), "--passphrase-file", str(phrase))
    assert (ran.code, "the file was changed" in ran.err) == (1, True)
    kept.write_text("hello")
    ran = run("keys", "restore", str(kept), "--passphrase-file", str(phrase))
    assert (ran.code, "no backup of keys" in ran.err) == (1, True)


def test_a_passphrase_is_typed_twice_and_not_shown(home: Path, tmp_path: Path) -> None:
    drive(home, waits)
    kept = tmp_path / "keys.backup"
    for second, done in (("another passphrase", False), (PHRASE, True)):
        with at_a_terminal("keys", "backup", str(kept)) as screen:
            screen.until("Passphrase:")
            screen.type(f"{PHRASE}\n")
            screen.until("Once more:")
            screen.type(f"{second}\n")
            assert (screen.end() == 0) == done
        assert PHRASE.encode() not in screen.seen
        assert kept.exists() == done


# --- where keys live ------------------------------------------------------------------------


@pytest.mark.requirement("A05")
@pytest.mark.usefixtures("operator")
def test_keys_move_from_files_to_places_outside_the_home(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, waits)
    config = home / "config.toml"
    token = config.read_text()
    monkeypatch.setenv("SEALING", "ab" * 32)
    vault = tmp_path / "vault"
    vault.write_text("cd" * 32)
    command = json.dumps([sys.executable, "-c", f"print(open({str(vault)!r}).read())"])
    config.write_text(f"{token}[keys]\nsealing = 'env:SEALING'\nsigning = '''exec:{command}'''\n")
    assert run("show", op_id).code == 0, "the keys in the home still fit"
    for name in ("sealing", "signing"):
        assert run("keys", "rotate", name, "--yes").code == 0
    told = {one["name"]: one["where"] for one in run("keys", "show", "--json").json()["keys"]}
    assert told["sealing"] == "env:SEALING"
    assert told["signing"] == f"exec:{sys.executable}"
    for name in (SEAL, SIGN):
        (home / "keys" / name).unlink()
    assert run("show", op_id).code == 0
    assert run("audit", "verify").code == 0
    again = run("keys", "rotate", "sealing", "--yes")
    assert (again.code, "Put the place of the new key first in [keys] sealing" in again.err) == (
        1,
        True,
    )
    monkeypatch.delenv("SEALING")
    ran = run("show", op_id)
    assert (ran.code, "env:SEALING: SEALING is not set" in ran.err) == (3, True)
    assert not (home / "keys" / SEAL).exists()


@pytest.mark.requirement("A05")
def test_a_new_home_takes_its_keys_from_where_they_live(
    home: Path, run: Run, tmp_path: Path
) -> None:
    key = tmp_path / "sealing"
    key.write_text("ab" * 32)
    key.chmod(0o644)
    (home / "config.toml").write_text(f"[keys]\nsealing = 'file:{key}'\n")
    ran = run("pause")
    assert (ran.code, f"has mode 0644, so others can read it -> chmod 600 {key}" in ran.err) == (
        3,
        True,
    )
    key.chmod(0o600)
    assert run("pause").code == 0
    assert not (home / "keys" / SEAL).exists()
    assert (home / "keys" / SIGN).exists()
    key.write_text("short")
    ran = run("ls")
    assert (ran.code, "64 hexadecimal digits" in ran.err) == (3, True)


def test_a_wrong_place_is_said_with_the_fix(home: Path, run: Run) -> None:
    for text in ('"ab"', "7", '"exec:[7]"', '"exec:nothing"', '"keyring:x"', '["vault:x"]'):
        (home / "config.toml").write_text(f"[keys]\nsealing = {text}\n")
        ran = run("ls")
        assert (ran.code, "keys.sealing" in ran.err) == (2, True), text
    (home / "config.toml").write_text("[keys]\nwrapping = 'env:X'\n")
    assert "keys.wrapping is no setting; there are sealing, signing" in run("ls").err
