"""Running what a page shows: its fenced blocks in order, in one shell, in an empty home.

```sh                          commands, one after the other
```sh title="second terminal"  a command that stays in the foreground of another terminal; the
                               next of this title ends the one before with Ctrl-C
```toml title="exp.toml"       a file that the reader saves
```text                        what the commands right before print: `…` stands for anything,
                               a line of it alone for any lines; times and ids may differ
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0
"""Seconds within which a command has to end, or a process in the foreground to say something."""

_BLOCK = re.compile(
    r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE
)
_COMMENT = re.compile(r"\s+# .*$")
_CHANGES = (
    (re.compile(r"\b(op|esc|grp|log)_[a-z0-9]+"), r"\1_ID"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}\b"), "DAY"),
    (re.compile(r"\b\d{2}:\d{2}:\d{2}Z"), "TIME"),
    (re.compile(r"\b\d+ m \d+ s\b|\b\d+ s\b"), "LENGTH"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str | None
    text: str
    below: bool
    """Whether nothing stands between it and the block before."""

    def commands(self) -> list[str]:
        """Whole commands, without remarks; a line that ends in a backslash goes on."""
        whole = self.text.replace("\\\n", " ")
        lines = (_COMMENT.sub("", line).strip() for line in whole.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(page):
        indent, language, title, text = match.groups()
        lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
        below = end > 0 and not page[end : match.start()].strip()
        found.append(Block(language, title, "".join(lines), below))
        end = match.end()
    return found


def alike(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed, but for times, ids and what it leaves out."""
    pattern = ""
    for line in _steady(shown).splitlines():
        said = ".*".join(re.escape(part) for part in line.rstrip().split("…"))
        pattern += r"(?:.*\n)*" if line.strip() == "…" else f"{said}\\n"
    told = "".join(f"{line}\n" for line in _steady(printed).splitlines())
    return re.fullmatch(pattern, told) is not None


def _steady(text: str) -> str:
    for varies, word in _CHANGES:
        text = varies.sub(word, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@dataclass
class Terminal:
    """A shell in an empty folder and home, and another one beside it."""

    folder: Path
    more: Mapping[str, str]
    """Of the environment."""
    allowed: Mapping[str, int]
    """Exit codes that are no failure, by how a command begins."""
    _shell: subprocess.Popen[str] | None = None
    _second: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
        beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {**kept, "PATH": beside, "HOME": str(home), "COLUMNS": "200", **self.more}

    def run(self, command: str) -> str:
        """What one command prints on both streams.

        Raises AssertionError where it fails.
        """
        if self._shell is None:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        shell = self._shell
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{{ {command}\n}} </dev/null 2>errors\nprintf '\\ndone-%s\\n' $?\n")
        shell.stdin.flush()
        printed: list[str] = []
        line = ""
        for line in shell.stdout:
            if line.startswith("done-"):
                break
            printed.append(line)
        assert line.startswith("done-"), f"the shell ended at {command}"
        code = int(line.removeprefix("done-"))
        told = "".join(printed).removesuffix("\n")
        expected = next((n for begin, n in self.allowed.items() if command.startswith(begin)), 0)
        errors = (self.folder / "errors").read_text(encoding="utf-8")
        assert code in (0, expected), f"{command} ended with {code}:\n{told}{errors}"
        return told

    def start(self, command: str) -> str:
        """Run a command beside the shell until it is ended; what it says first."""
        self.interrupt()
        said = self.folder / "second-terminal"
        with said.open("wb") as out:
            self._second = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + PATIENCE
        while not (told := said.read_text(encoding="utf-8")).endswith("\n"):
            assert self._second.poll() is None, f"{command} ended: {told}"
            assert time.monotonic() < until, f"{command} says only: {told}"
            time.sleep(0.05)
        assert self._second.poll() is None, f"{command} ended: {told}"
        return told

    def interrupt(self) -> str:
        """Ctrl-C in the second terminal; all that it said."""
        if self._second is None:
            return ""
        self._second.send_signal(signal.SIGINT)
        code = self._second.wait(PATIENCE)
        self._second = None
        told = (self.folder / "second-terminal").read_text(encoding="utf-8")
        assert code in (0, 130), f"ended with {code}: {told}"
        return told

    def close(self) -> None:
        if self._second is not None:
            self._second.kill()
            self._second.wait()
        if self._shell is not None:
            self._shell.kill()
            self._shell.communicate()


@contextmanager
def terminal(
    folder: Path, more: Mapping[str, str], allowed: Mapping[str, int]
) -> Iterator[Terminal]:
    opened = Terminal(folder, more, allowed)
    try:
        yield opened
    finally:
        opened.close()


def follow(
    page: str,
    shell: Terminal,
    not_run: Mapping[str, str],
    instead: Sequence[tuple[str, str]] = (),
    stays: Sequence[str] = (),
) -> list[str]:
    """Do what a page says; the commands that were run.

    `not_run` has how commands begin that cannot be run here, with the reason; `instead` what is
    written in their place, such as the real id for the example's; `stays` how commands begin that
    go on until Ctrl-C, which here comes at once.
    """
    ran: list[str] = []
    printed = ""
    for block in blocks(page):
        if block.title and block.language != "sh":
            (shell.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "text" and block.below:
            assert alike(block.text, printed), f"the page shows\n{block.text}\nand not\n{printed}"
        if block.language != "sh":
            continue
        printed = ""
        for shown in block.commands():
            for command in shown.split(" && "):
                if any(command.startswith(begin) for begin in not_run):
                    continue
                for old, new in instead:
                    command = command.replace(old, new)
                if command.startswith(tuple(stays)):
                    shell.start(command)
                    shell.interrupt()
                else:
                    printed += shell.start(command) if block.title else shell.run(command)
                ran.append(command)
    return ran
