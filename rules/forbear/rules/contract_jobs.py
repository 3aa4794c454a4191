"""The parts of a job: state table, limits, schedule, success; with the defaults of the format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from forbear.rules.backoff import doubled
from forbear.rules.contract import (
    Backoff,
    Expiry,
    Extension,
    Fold,
    Hints,
    HttpStatus,
    Limits,
    Read,
    Row,
    States,
    Success,
    Test,
)
from forbear.rules.contract_keys import WHEN_MISSING
from forbear.rules.contract_kinds import Section
from forbear.rules.contract_terms import (
    AMOUNT,
    BOOLEAN,
    COUNT,
    DURATION,
    NAMES,
    READS,
    REQUIRE,
    ROWS,
    SOURCE,
    TAKE,
    TESTS,
    TIMED,
    TIMEDS,
    WAIT,
)
from forbear.rules.model import JobClass

GAPS = frozenset({"%null", "%missing", "%none"})
MOST_READS = 3

Words = tuple[str, ...]

# --- states ---------------------------------------------------------------------------------


def states(section: Section) -> States:
    """The state table: every row fits the reads, none is there twice, and no two tie."""
    if not section.has("read"):
        section.place.complain("does not say where the state is", 'add read = "/…" to the states')
    reads = section.get("read", READS, ())
    if len(reads) > MOST_READS:
        section.complain("read", f"has {len(reads)} reads", f"read at most {MOST_READS} sources")
    ignore_case = section.get("ignore_case", BOOLEAN, False)
    placed: list[tuple[str, int, Row]] = []
    for means in JobClass:
        for index, words in enumerate(section.get(means.value, ROWS, ())):
            if reads and _fits(section, means, index, words, reads):
                placed.append((means.value, index, Row(words, means)))
    if not section.get("succeeded", ROWS, ()) and "succeeded" not in section.broken:
        section.complain(
            "succeeded",
            "has no words: nobody has said yet what success is"
            if section.has("succeeded")
            else "has no words of success",
            'write the provider\'s word for done, such as succeeded = ["done"]',
        )
    _complain_of_clashes(section, placed, ignore_case)
    rows = tuple(row for _, _, row in placed)
    return States(reads, rows, ignore_case, section.get("progress", SOURCE))


def _fits(
    section: Section, means: JobClass, index: int, words: tuple[str, ...], reads: tuple[Read, ...]
) -> bool:
    """Whether a row can ever be met by these reads; a complaint if not."""
    place = section.place.at(means.value, index)
    if len(words) != len(reads):
        place.complain(
            f"has {len(words)} words for {len(reads)} reads",
            "write one word for each read, in their order",
        )
        return False
    if set(words) == {"*"} and means is not JobClass.WAITING:
        place.complain(
            f"takes every word as {means}", 'name the words; only waiting = ["*"] may take all'
        )
        return False
    for word, read in zip(words, reads, strict=True):
        if problem := _mismatch(word, read):
            place.complain(*problem)
            return False
    return True


def _mismatch(word: str, read: Read) -> tuple[str, str] | None:
    if word.startswith("%") and word not in GAPS:
        return f"{word!r} is no absent value", 'write "%null", "%missing" or "%none" (either)'
    if word == "*":
        return None
    if isinstance(read, Test) and word not in ("yes", "no"):
        return f"{word!r} is no answer of a test", 'write "yes", "no" or "*"'
    if isinstance(read, HttpStatus) and not (word.isdigit() and 100 <= int(word) <= 599):
        return f"{word!r} is no HTTP status", "write the number, such as 200"
    if isinstance(read, Fold) and word == "":
        return "is an empty word", "write a word of the array's elements"
    return None


def _complain_of_clashes(
    section: Section, placed: list[tuple[str, int, Row]], ignore_case: bool
) -> None:
    """Two rows clash if they are the same, or equally close to an answer that both match."""
    patterns = [
        tuple(word.casefold() if ignore_case else word for word in row.words)
        for _, _, row in placed
    ]
    for one, other in combinations(range(len(placed)), 2):
        key, at, row = placed[one]
        other_key, other_at, other_row = placed[other]
        place = section.place.at(other_key, other_at)
        if patterns[one] == patterns[other]:
            place.complain(f"is the same row as {key}[{at}]", "keep one of the two")
            continue
        both = _meet(patterns[one], patterns[other])
        if (
            both is not None
            and both not in patterns
            and row.means is not other_row.means
            and _closeness(row) == _closeness(other_row)
        ):
            place.complain(
                f"ties with {key}[{at}]: an answer can match both equally well",
                f"add a row for {list(both)}, or make one of them more exact",
            )


def _meet(one: Words, other: Words) -> Words | None:
    """The row of all that two rows both match; None if there is no such answer."""
    words: list[str] = []
    for left, right in zip(one, other, strict=True):
        if left == right or right == "*" or (right == "%none" and left in GAPS):
            words.append(left)
        elif left == "*" or (left == "%none" and right in GAPS):
            words.append(right)
        else:
            return None
    return tuple(words)


def _closeness(row: Row) -> tuple[int, int]:
    """How exact a row is: words named, then how exactly; `%none` is less than `%null`."""
    named = [1 if word == "%none" else 2 for word in row.words if word != "*"]
    return len(named), sum(named)


# --- limits and schedule --------------------------------------------------------------------


def clamped(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def backoff(section: Section, usual: int | None, deadline: int) -> Backoff:
    """Delays that fit the job; a job of unstated duration is taken to need a quarter of its
    deadline."""
    usual = usual or deadline // 4
    longest = section.get("max", DURATION, clamped(deadline // 12, 10_000, 600_000))
    base = section.get("base", DURATION, min(longest, clamped(usual // 20, 2_000, 60_000)))
    if base > longest:
        section.complain(
            "base" if section.has("base") else "max",
            "makes the first delay longer than the longest",
            "lower base or raise max",
        )
    return Backoff(
        base,
        longest,
        section.get("rate_limited", DURATION, 60_000),
        section.get("first", WAIT, clamped(usual // 4, 1_000, 300_000)),
        section.get("estimate", TIMED),
    )


def needed_requests(schedule: Backoff, deadline: int) -> int:
    """Status requests that reach the deadline at the mean delay (75 %), and a tenth more."""
    elapsed, count = schedule.first * 3 // 4, 1
    while elapsed < deadline and (raw := doubled(schedule.base, count, schedule.max)) < (
        schedule.max
    ):
        elapsed += raw * 3 // 4
        count += 1
    if elapsed < deadline:
        count += -(-(deadline - elapsed) * 4 // (schedule.max * 3))
    return max(3, -(-count * 11 // 10))


def limits(section: Section, schedule: Backoff) -> Limits:
    deadline = section.get("deadline", DURATION, 3_600_000)
    usual = section.get("usual", DURATION)
    if usual is not None and usual > section.get("deadline", DURATION, usual):
        section.complain(
            "usual", "is longer than the deadline", "raise the deadline above the usual duration"
        )
    requests = section.get("max_status_requests", COUNT, needed_requests(schedule, deadline))
    return Limits(
        usual,
        deadline,
        requests,
        section.get("max_transport_failures", COUNT, 5),
        section.get("max_rate_limited", COUNT, 3),
        section.get("useful_for", DURATION),
        _extension(section, deadline, requests),
    )


def _extension(section: Section, deadline: int, requests: int) -> Extension:
    stated = section.section("extension")
    return Extension(
        stated.get("by", DURATION, -(-deadline // 3)),
        stated.get("status_requests", AMOUNT, -(-requests // 3)),
        stated.get("times", AMOUNT, 1 if section.has("extension") else 2),
    )


def hints(section: Section, deadline: int) -> Hints:
    ceiling = section.get("ceiling", DURATION, max(1, deadline // 2))
    floor = section.get("floor", WAIT, min(2_000, ceiling))
    if floor > ceiling:
        section.complain(
            "floor" if section.has("floor") else "ceiling",
            "puts the floor above the ceiling",
            "lower floor or raise ceiling",
        )
    return Hints(section.get("next", TIMEDS, ()), floor, ceiling)


def expiry(section: Section) -> Expiry:
    return Expiry(
        section.get("job", TIMED), section.get("result", TIMED), section.get("kept", DURATION)
    )


def success(section: Section, has_results: bool) -> Success:
    then = section.get("then", NAMES, ("fetch_result",) if has_results else ())
    if "fetch_result" in then and not has_results:
        section.complain(
            "then", "permits fetch_result, and there is no result", "add [….result] or leave it out"
        )
    return Success(
        section.get("require", REQUIRE, ()),
        section.get("require_any", REQUIRE, ()),
        section.get("take", TAKE, ()),
        section.get("partial", TESTS, ()),
        then,
        section.get("when_missing", WHEN_MISSING, "escalate"),
    )


def names_of(pairs: tuple[tuple[str, object], ...], prefix: str) -> Iterator[str]:
    """The placeholders that taken values make: `take.x`, `result.x`."""
    for name, _ in pairs:
        yield f"{prefix}.{name}"
