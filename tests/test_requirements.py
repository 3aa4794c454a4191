"""The manifest of requirements holds in both directions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.requirements import PENDING, REQUIREMENTS

TESTS = Path(__file__).parent
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NO_PROOF = frozenset({"skip", "xfail"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One `@pytest.mark.requirement(...)`: where it stands and what it names."""

    place: str
    """`tests/rules/test_pace.py:12 test_delay_doubles`."""
    ids: tuple[str, ...]
    fault: str | None = None
    """Why it proves nothing, if it does not."""


def claims(folder: Path) -> list[Claim]:
    """Every requirement mark under `folder`, read without importing anything."""
    return [
        claim
        for path in sorted(folder.rglob("*.py"))
        for claim in claims_in(
            path.read_text(encoding="utf-8"), path.relative_to(folder.parent).as_posix()
        )
    ]


def claims_in(source: str, file: str) -> Iterator[Claim]:
    tree = ast.parse(source, file)
    owners: dict[ast.AST, Definition] = {}
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            for decorator in node.decorator_list:
                owners.update(dict.fromkeys(ast.walk(decorator), node))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and mark_name(node.func) == "requirement"):
            continue
        owner = owners.get(node)
        name = owner.name if owner else "(the whole module)"
        ids = tuple(
            word.value
            for word in node.args
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        )
        yield Claim(f"{file}:{node.lineno} {name}", ids, fault_of(node, ids, owner))


def fault_of(
    mark: ast.Call,
    ids: Sequence[str],
    owner: Definition | None,
) -> str | None:
    if not ids or len(ids) != len(mark.args) or mark.keywords:
        return "must name its ids as plain strings"
    if owner is None:
        return None
    if not owner.name.startswith(("test_", "Test")):
        return "is not a test: put the mark on a function named test_..."
    if any(mark_name(each) in NO_PROOF for each in owner.decorator_list):
        return "is skipped or expected to fail, which proves nothing"
    return None


def mark_name(node: ast.expr) -> str | None:
    """`x` for `pytest.mark.x`, `mark.x` and calls of them; None for anything else."""
    match node:
        case ast.Call(func=called):
            return mark_name(called)
        case ast.Attribute(value=ast.Attribute(attr="mark") | ast.Name(id="mark"), attr=name):
            return name
        case _:
            return None


def untested(
    requirements: Mapping[str, str],
    pending: Mapping[int, Sequence[str]],
    found: Sequence[Claim],
) -> list[str]:
    """Requirements that no test names although their work has begun."""
    named = set(chain.from_iterable(claim.ids for claim in found if not claim.fault))
    waiting = set(chain.from_iterable(pending.values()))
    return [
        f"{name} has no test: {sentence}"
        for name, sentence in requirements.items()
        if name not in named and name not in waiting
    ]


def unfounded(requirements: Mapping[str, str], found: Sequence[Claim]) -> list[str]:
    """Marks that prove nothing, or name an id that nobody wrote down."""
    return [f"{claim.place} {claim.fault}" for claim in found if claim.fault] + [
        f"{claim.place} names {name}, which is not in tests/requirements.py"
        for claim in found
        for name in claim.ids
        if name not in requirements
    ]


def stale(
    requirements: Mapping[str, str],
    pending: Mapping[int, Sequence[str]],
    found: Sequence[Claim],
) -> list[str]:
    """Pending ids that have a test, are listed twice, or do not exist."""
    problems: list[str] = []
    seen: dict[str, int] = {}
    for issue, names in pending.items():
        for name in names:
            if name not in requirements:
                problems.append(f"PENDING[{issue}] lists {name}, which is not a requirement")
            if name in seen:
                problems.append(f"{name} is pending in issue {seen[name]} and in issue {issue}")
            seen[name] = issue
    problems.extend(
        f"{name} has a test, {claim.place}: take it off PENDING[{seen[name]}]"
        for claim in found
        for name in claim.ids
        if name in seen
    )
    return problems


def lines(problems: Sequence[str]) -> str:
    return "\n" + "\n".join(problems)


def test_every_requirement_has_a_test_or_waits_for_its_issue() -> None:
    problems = untested(REQUIREMENTS, PENDING, claims(TESTS))
    assert not problems, lines(problems)


def test_every_mark_sits_on_a_test_and_names_a_requirement() -> None:
    problems = unfounded(REQUIREMENTS, claims(TESTS))
    assert not problems, lines(problems)


def test_nothing_is_pending_that_has_a_test() -> None:
    problems = stale(REQUIREMENTS, PENDING, claims(TESTS))
    assert not problems, lines(problems)


def test_the_manifest_has_every_id_once_and_in_order() -> None:
    sizes = {"W": 31, "R": 34, "E": 18, "D": 13, "A": 10, "C": 5, "M": 10}
    expected = [
        f"{letter}{number:02}" for letter, last in sizes.items() for number in range(1, last + 1)
    ]
    assert list(REQUIREMENTS) == expected


# --- the check itself, on planted tests -----------------------------------------------------

PLANTED = {"W01": "Wait.", "W02": "Tell apart.", "R01": "Schedule."}


def planted(folder: Path, source: str) -> list[Claim]:
    tests = folder / "tests"
    (tests / "rules").mkdir(parents=True)
    (tests / "rules" / "test_planted.py").write_text(source, encoding="utf-8")
    return claims(tests)


def test_an_id_without_a_test_is_named_with_its_sentence(tmp_path: Path) -> None:
    found = planted(tmp_path, '@pytest.mark.requirement("W01")\ndef test_a() -> None: ...\n')
    assert untested(PLANTED, {3: ("R01",)}, found) == ["W02 has no test: Tell apart."]


def test_an_unknown_id_is_named_with_its_test(tmp_path: Path) -> None:
    source = '@pytest.mark.requirement("W01", "W99")\nasync def test_a() -> None: ...\n'
    assert unfounded(PLANTED, planted(tmp_path, source)) == [
        "tests/rules/test_planted.py:1 test_a names W99, which is not in tests/requirements.py"
    ]


def test_a_pending_id_with_a_test_must_leave_the_list(tmp_path: Path) -> None:
    source = '@pytest.mark.requirement("R01")\ndef test_a() -> None: ...\n'
    assert stale(PLANTED, {3: ("R01",)}, planted(tmp_path, source)) == [
        "R01 has a test, tests/rules/test_planted.py:1 test_a: take it off PENDING[3]"
    ]


def test_pending_twice_and_pending_unknown_are_refused() -> None:
    assert stale(PLANTED, {3: ("R01", "R77"), 4: ("R01",)}, []) == [
        "PENDING[3] lists R77, which is not a requirement",
        "R01 is pending in issue 3 and in issue 4",
    ]


def test_marks_of_parameters_modules_and_classes_count(tmp_path: Path) -> None:
    source = """
pytestmark = [pytest.mark.anyio, pytest.mark.requirement("W01")]

@pytest.mark.parametrize("case", [pytest.param(1, marks=pytest.mark.requirement("W02"))])
def test_a(case: int) -> None: ...

@mark.requirement("R01")
class TestB: ...
"""
    found = planted(tmp_path, source)
    assert untested(PLANTED, {}, found) == []
    assert unfounded(PLANTED, found) == []


def test_a_mark_on_a_helper_a_skipped_test_or_with_computed_ids_proves_nothing(
    tmp_path: Path,
) -> None:
    source = """
@pytest.mark.requirement("W01")
def helper() -> None: ...

@pytest.mark.skip(reason="later")
@pytest.mark.requirement("W02")
def test_a() -> None: ...

@pytest.mark.requirement(*IDS)
def test_b() -> None: ...
"""
    found = planted(tmp_path, source)
    assert [problem.split(" ", 1)[1] for problem in unfounded(PLANTED, found)] == [
        "helper is not a test: put the mark on a function named test_...",
        "test_a is skipped or expected to fail, which proves nothing",
        "test_b must name its ids as plain strings",
    ]
    assert len(untested(PLANTED, {}, found)) == 3
