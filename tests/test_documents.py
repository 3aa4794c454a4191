"""What the documents show loads, and does what they say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse
from forbear.rules.contract_report import report
from forbear.rules.reminders import USUAL
from forbear.rules.replay import replay
from forbear.rules.taskbudget import TaskLimits
from forbear.rules.toml_lines import key_lines
from forbear.server.cli.first import FIRST_CONTRACT
from forbear.server.config import Settings
from forbear.server.tables import Notify
from forbear.tools.samples import fault
from forbear.tools.toolset import TOOLS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

_BLOCK = re.compile(r"```toml[^\n]*\n(.*?)```", re.DOTALL)
_INSTEAD = re.compile(r"Instead of the lines? ((?:`\w+`(?:, | and )?)+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """A block of the page, and the section and paragraph before it."""

    heading: str
    before: str
    text: str

    def __str__(self) -> str:
        return self.heading.replace(" ", "-")


def shown(page: str) -> list[Shown]:
    found: list[Shown] = []
    for block in _BLOCK.finditer(page):
        before = page[: block.start()]
        heading = re.findall(r"^#+ (.+)$", before, re.MULTILINE)[-1]
        paragraph = before.rstrip().rpartition("\n\n")[2]
        found.append(Shown(heading, paragraph, block[1]))
    return found


BLOCKS = shown(PAGE)
SMALLEST = BLOCKS[0].text


def whole(block: Shown) -> str:
    """The contract that a reader ends up with."""
    if block.text.startswith("contract = 1"):
        return block.text
    replaced = _INSTEAD.search(" ".join(block.before.split()))
    names = re.findall(r"`(\w+)`", replaced[1]) if replaced is not None else []
    kept = [line for line in SMALLEST.splitlines() if line.partition(" ")[0] not in names]
    assert len(kept) == len(SMALLEST.splitlines()) - len(names)
    return "\n".join(kept) + "\n\n" + block.text


def loaded(text: str) -> Contract:
    found = parse(text, "exp.toml")
    assert isinstance(found, Contract), "\n".join(map(str, found))
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_of_the_contract_page_loads_where_it_says(block: Shown) -> None:
    contract = loaded(whole(block))
    assert replay(contract) == ()
    for action in (*contract.jobs.values(), *contract.calls.values()):
        assert fault(action.input) is None


@pytest.mark.parametrize(
    ("heading", "codes"),
    [
        ("The result is behind the key", {"result_without_key"}),
        ("The result is on another host", {"result_host", "result_without_key"}),
        ("An idempotency key", {"lost_answer_needs_a_person"}),
        ("Looking up a write whose answer was lost", {"lost_answer_needs_a_person"}),
        ("A job that is not there at once", {"no_rule_404"}),
        ("A 403 that is a rate limit, a 429 that is a quota", {"no_rule_429"}),
    ],
)
def test_a_recipe_settles_what_the_report_says_of_the_smallest_contract(
    heading: str, codes: set[str]
) -> None:
    def said(text: str) -> set[str]:
        findings = report(loaded(text), date(2026, 11, 30), key_lines(text))
        return {finding.code for finding in findings}

    assert codes <= said(SMALLEST)
    for block in (one for one in BLOCKS if one.heading == heading):
        assert not codes & said(whole(block))


def test_the_contracts_of_readme_and_init_load() -> None:
    block, _ = _BLOCK.findall(README)
    assert list(loaded(block).jobs) == ["export"]
    assert replay(loaded(FIRST_CONTRACT)) == ()


def test_the_settings_of_the_readme_are_the_defaults(tmp_path: Path) -> None:
    _, block = _BLOCK.findall(README)
    (tmp_path / "config.toml").write_text(block, encoding="utf-8")
    assert Settings.load({"FORBEAR_HOME": str(tmp_path)}).task == TaskLimits()


def test_the_blocks_on_decisions_load(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(page)
    contract = "".join(block for block in blocks if block.startswith("[escalation]"))
    settings = [block for block in blocks if not block.startswith("[escalation]")]
    assert len(settings) == 3
    stated = contract.replace("[escalation]\n", "")
    assert loaded(f"{SMALLEST}\n[escalation]\n{stated}").remind == tuple(USUAL)
    (tmp_path / "config.toml").write_text("\n".join(settings), encoding="utf-8")
    read = Settings.load({"FORBEAR_HOME": str(tmp_path)})
    assert read.notify is not None
    assert read.notify == Notify(read.notify.webhook, read.notify.secret)
    assert len(read.standing) == len(read.handover) == 1


def test_the_readme_lists_the_tools_that_there_are() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(listed) == sorted(tool.name for tool in TOOLS)


def test_the_settings_of_http_load(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    (block,) = shown(page)
    (tmp_path / "config.toml").write_text(block.text, encoding="utf-8")
    settings = Settings.load({"FORBEAR_HOME": str(tmp_path)})
    assert settings.http is not None
    assert settings.http.authenticates
    assert settings.http.oauth is not None
    assert settings.http.oauth.audiences == ("forbear",)
