"""Secrets of a keyring and of commands: fetched beside everything else, kept, and never shown."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.core import load_keyring
from keyring.errors import KeyringLocked
from tests.support import ManualClock

from forbear.rules.contract import Auth
from forbear.server import fetching
from forbear.server.credentials import Credential, Credentials, MissingCredential

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
SECRET = "s3cr3t-T0ken"
IN_KEYRING = Auth("bearer", secret="keyring:exp.example/ann")


def command(script: str, *words: str) -> Auth:
    """A credential that a small program prints."""
    return Auth("bearer", secret="exec:", exec=(sys.executable, "-c", script, *words))


def printing(path: Path) -> Auth:
    """A command that prints what a file says and notes that it ran."""
    script = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]); "
        "open(sys.argv[1] + '.runs', 'a').write('x'); print(p.read_text())"
    )
    return command(script, str(path))


def runs(path: Path) -> int:
    return len(path.with_name(path.name + ".runs").read_text())


def token(found: Credential | MissingCredential) -> str:
    assert isinstance(found, Credential), found
    return found.headers()[0][1].removeprefix("Bearer ")


def reason(found: Credential | MissingCredential) -> str:
    assert isinstance(found, MissingCredential)
    assert found.reason.count("->") == 1
    return found.reason


async def becomes(look: Callable[[], object], wanted: object) -> None:
    """Wait in real time for what a thread brings."""
    for _ in range(2_000):
        if look() == wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{look()!r} did not become {wanted!r}")


def fetching_now() -> bool:
    return any(thread.name == "forbear-secret" for thread in threading.enumerate())


# --- commands ---------------------------------------------------------------------------------


@pytest.mark.requirement("C01")
def test_the_first_line_that_a_command_prints_is_the_secret() -> None:
    found = Credentials({}).resolve(command(f"print('{SECRET}  '); print('more')"))
    assert token(found) == SECRET
    assert SECRET not in repr(found)


def test_no_shell_reads_the_words_and_no_input_is_given() -> None:
    told = "import sys; print(sys.stdin.read() + sys.argv[1])"
    assert token(Credentials({}).resolve(command(told, "$HOME;`id`"))) == "$HOME;`id`"


def test_a_command_has_the_environment_of_this_process() -> None:
    told = "import os; print(os.environ['VAULT'])"
    assert token(Credentials({"VAULT": SECRET}).resolve(command(told))) == SECRET


@pytest.mark.requirement("C01")
def test_of_a_failure_only_the_last_line_is_told_without_what_may_be_a_secret() -> None:
    script = (
        f"import sys; print('{SECRET}'); sys.stderr.write('first line\\n"
        f"no vault \\x1b[31m: {SECRET} and eyJhbGciOiJIUzI1NiJ9abc\\n\\n'); sys.exit(3)"
    )
    told = reason(Credentials({}).resolve(command(script)))
    assert "ended with 3" in told
    assert "no vault" in told
    for hidden in (SECRET, "eyJhbGci", "first line", "\x1b"):
        assert hidden not in told


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("", "empty"),
        ("print()", "empty"),
        ("print('x' * 70_000)", "larger than"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "not UTF-8"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
def test_what_gives_no_secret_is_missing_with_a_fix(script: str, told: str) -> None:
    assert told in reason(Credentials({}).resolve(command(script)))


def test_a_command_that_is_not_there_is_named() -> None:
    auth = Auth("bearer", secret="exec:", exec=("/no/such/program", "read"))
    told = reason(Credentials({}).resolve(auth))
    assert "/no/such/program cannot be started (No such file or directory)" in told
    assert reason(Credentials({}).resolve(Auth("bearer", secret="exec:")))


def test_output_without_end_fills_no_memory_and_a_hanging_command_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 3)
    child = tmp_path / "child"
    script = (
        "import os, sys, time\n"
        "if not (pid := os.fork()):\n"
        "    time.sleep(600)\n"
        "open(sys.argv[1], 'w').write(str(pid))\n"
        "while True: sys.stdout.write('y' * 65536)\n"
    )
    told = reason(Credentials({}).resolve(command(script, str(child))))
    assert "did not end within 3 s" in told
    assert _gone(int(child.read_text()))


def _gone(pid: int) -> bool:
    """Whether a process is dead, or only waits for its parent to notice."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_what_a_command_leaves_running_does_not_hold_its_secret_up() -> None:
    script = (
        f"import os, time\nprint('{SECRET}', flush=True)\nif not os.fork():\n    time.sleep(30)\n"
    )
    assert token(Credentials({}).resolve(command(script))) == SECRET


# --- beside everything else -------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[Path]:
    """A named pipe: a command that reads it hangs until somebody writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipe"
        os.mkfifo(path)
        yield path


@pytest.mark.requirement("C01")
async def test_a_command_that_hangs_holds_up_neither_the_loop_nor_another_secret(
    pipe: Path,
) -> None:
    credentials = Credentials({"K": "env-secret"}, ManualClock(), waits=False)
    hanging = command("import sys; print(open(sys.argv[1]).read())", str(pipe))
    waiting = asyncio.create_task(credentials.arrived(hanging))
    quick = command(f"print('{SECRET}')")
    await credentials.arrived(quick)

    assert token(credentials.resolve(quick)) == SECRET
    assert token(credentials.resolve(Auth("bearer", secret="env:K"))) == "env-secret"
    assert "no answer yet" in reason(credentials.resolve(hanging))
    assert not waiting.done()
    await asyncio.to_thread(pipe.write_text, "at last\n")
    await waiting
    assert token(credentials.resolve(hanging)) == "at last"


async def test_a_secret_is_kept_for_a_while_and_then_fetched_while_the_old_one_is_used(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "secret", ManualClock()
    path.write_text("one")
    auth, credentials = printing(path), Credentials({}, clock, waits=False)
    await credentials.arrived(auth)
    path.write_text("two")
    clock.advance(fetching.LASTS - 1)
    assert token(credentials.resolve(auth)) == "one"
    assert runs(path) == 1
    clock.advance(1)
    assert token(credentials.resolve(auth)) == "one"
    await becomes(lambda: token(credentials.resolve(auth)), "two")
    assert runs(path) == 2


async def test_a_refused_secret_is_fetched_at_once_and_again_until_it_changes(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "secret", ManualClock()
    path.write_text("one")
    auth, credentials = printing(path), Credentials({}, clock, waits=False)
    await credentials.arrived(auth)
    before = credentials.resolve(auth)
    for _ in range(3):
        credentials.refused(auth)
        assert token(credentials.resolve(auth)) == "one"
        await becomes(fetching_now, False)
    assert runs(path) == 2
    path.write_text("two")
    clock.advance(fetching.AGAIN)
    await becomes(lambda: token(credentials.resolve(auth)), "two")
    after = credentials.resolve(auth)

    assert isinstance(before, Credential)
    assert isinstance(after, Credential)
    assert before.fingerprint(KEY) == after.fingerprint(KEY)
    assert before.version(KEY) != after.version(KEY)


async def test_a_secret_that_cannot_be_had_any_more_is_missing_and_comes_back(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "secret", ManualClock()
    path.write_text("one")
    auth, credentials = printing(path), Credentials({}, clock, waits=False)
    await credentials.arrived(auth)
    path.unlink()
    clock.advance(fetching.LASTS)
    await becomes(lambda: isinstance(credentials.resolve(auth), MissingCredential), True)
    path.write_text("two")
    clock.advance(fetching.AGAIN)
    await becomes(lambda: isinstance(credentials.resolve(auth), Credential), True)
    assert token(credentials.resolve(auth)) == "two"


# --- the keyring ------------------------------------------------------------------------------


class Ring(KeyringBackend):
    """A keyring as somebody would write one for a machine without a desktop."""

    def __init__(self, entries: Mapping[tuple[str, str], str] = MappingProxyType({})) -> None:
        self.entries = dict(entries)
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked(f"{SECRET} is locked")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def installed() -> Iterator[Callable[[KeyringBackend], None]]:
    before = keyring.get_keyring()
    yield keyring.set_keyring
    keyring.set_keyring(before)


Install = Callable[[KeyringBackend], None]


@pytest.mark.requirement("C01")
def test_an_entry_of_the_keyring_is_named_by_service_and_user(installed: Install) -> None:
    installed(Ring({("exp.example", "ann"): SECRET, ("https://a/b", "ann"): "other"}))
    found = Credentials({}).resolve(IN_KEYRING)
    assert token(found) == SECRET
    assert SECRET not in repr(found)
    slashes = Auth("bearer", secret="keyring:https://a/b/ann")
    assert token(Credentials({}).resolve(slashes)) == "other"


def test_both_halves_of_basic_may_come_from_the_keyring(installed: Install) -> None:
    installed(Ring({("exp", "user"): "ann", ("exp", "password"): SECRET}))
    auth = Auth("basic", user="keyring:exp/user", password="keyring:exp/password")
    found = Credentials({}).resolve(auth)
    assert isinstance(found, Credential)
    assert found.headers()[0][1].startswith("Basic ")


async def test_a_changed_entry_is_another_version_of_the_same_credential(
    installed: Install,
) -> None:
    ring, clock = Ring({("exp.example", "ann"): "one"}), ManualClock()
    installed(ring)
    credentials = Credentials({}, clock, waits=False)
    await credentials.arrived(IN_KEYRING)
    before = credentials.resolve(IN_KEYRING)
    keyring.set_password("exp.example", "ann", "two")
    credentials.refused(IN_KEYRING)
    await becomes(lambda: token(credentials.resolve(IN_KEYRING)), "two")
    after = credentials.resolve(IN_KEYRING)
    assert isinstance(before, Credential)
    assert isinstance(after, Credential)
    assert before.fingerprint(KEY) == after.fingerprint(KEY)
    assert before.version(KEY) != after.version(KEY)


def test_why_a_keyring_gives_nothing_is_told_with_the_fix(installed: Install) -> None:
    ring = Ring()
    installed(ring)
    assert "keyring set exp.example ann" in reason(Credentials({}).resolve(IN_KEYRING))
    ring.locked = True
    told = reason(Credentials({}).resolve(IN_KEYRING))
    assert "unlock" in told
    assert SECRET not in told
    installed(load_keyring("keyring.backends.fail.Keyring"))
    assert "no keyring on this machine" in reason(Credentials({}).resolve(IN_KEYRING))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert 'pip install "forbear[keyring]"' in reason(Credentials({}).resolve(IN_KEYRING))
