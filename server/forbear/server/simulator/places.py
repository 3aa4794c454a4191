"""What a contract reads in an answer, as places to be set: states, fields, hints, failures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

from forbear.rules.contract import (
    Condition,
    FailureDetail,
    Fold,
    Header,
    HttpStatus,
    Job,
    Lookup,
    Pointer,
    Read,
    Request,
    Requirement,
    Row,
    Source,
    States,
    Test,
    Unit,
)
from forbear.rules.facts import typed
from forbear.rules.ports import Json
from forbear.rules.values import is_present, text_of
from forbear.server.simulator.drafts import ABSENT, Base, Setting, Wish, value_in, weak
from forbear.server.simulator.records import Record
from forbear.server.simulator.trees import put

WORD = "simulated"
STRANGE = "simulated-unknown"
SOON = 1_000
"""The wait that hints state, ms."""
LATER = 7 * 86_400_000
"""When what expires does, ms from now."""


# --- states ---------------------------------------------------------------------------------


def row(states: States, words: Row, record: Record) -> Iterator[Wish]:
    """The words of one row where the contract reads them."""
    for read, written in zip(states.reads, words.words, strict=True):
        if written != "*":
            yield from _word(read, written, record)


def strange(states: States) -> tuple[Wish, ...] | None:
    """A word that no contract knows, in the first place that can hold one."""
    for read in states.reads:
        if not isinstance(read, (Test, HttpStatus)):
            at = read.each if isinstance(read, Fold) else read
            value = [put({}, read.at, STRANGE)] if isinstance(read, Fold) else STRANGE
            return (Setting(at, value),)
    return None


def _word(read: Read, written: str, record: Record) -> Iterator[Wish]:
    match read:
        case HttpStatus():
            yield Setting(read, int(written))
        case Test():
            yield _tested(read, written, record)
        case Fold():
            value = literal(written)
            yield Setting(read.each, [{} if value is ABSENT else put({}, read.at, value)])
        case Pointer() | Header():
            yield Setting(read, literal(written))


def _tested(test: Test, written: str, record: Record) -> Setting:
    yes = written == "yes"
    match test.test:
        case "positive":
            return Setting(test.at, 1 if yes else 0)
        case "after_submit" if yes:
            return Setting(test.at, _instant(record.made_at + 2 * SOON))
        case _ if yes:
            return weak(test.at, WORD)
        case _:
            return Setting(test.at, ABSENT)


def literal(written: str) -> Json:
    """A word of a contract as the JSON value that reads so."""
    match written:
        case "%null":
            return None
        case "%missing" | "%none":
            return ABSENT
        case "true" | "false":
            return written == "true"
        case _ if re.fullmatch("0|-?[1-9][0-9]{0,17}", written):
            return int(written)
        case _:
            return written


# --- fields ---------------------------------------------------------------------------------


def kept(take: Iterable[tuple[str, Source]], record: Record, prefix: str) -> Iterator[Wish]:
    """The values of the record where an answer is read for them."""
    for name, source in take:
        key = name if name == "id" and prefix == "take." else prefix + name
        if key in record.values:
            yield Setting(source, record.values[key])
        else:
            yield weak(source, WORD)


def required(
    each: Iterable[Requirement], any_of: tuple[Requirement, ...], address: str
) -> Iterator[Wish]:
    """Every required field, of its type; `address` is for those that are one."""
    yield from (_required(one, address) for one in each)
    if any_of:

        def one_of_them(base: Base) -> Iterable[Setting]:
            there = any(is_present(value_in(base, one.at)) for one in any_of)
            return () if there else (_required(any_of[0], address),)

        yield one_of_them


def _required(one: Requirement, address: str) -> Setting:
    match one.type:
        case "url":
            here = re.compile(re.escape(address[: address.index("/", 8)]) + r"(/|$)")
            return Setting(one.at, address, lambda value: bool(here.match(text_of(value) or "")))
        case "integer":
            return Setting(one.at, 1, lambda value: isinstance(value, int))
        case "string":
            return Setting(one.at, WORD, lambda value: isinstance(value, str))
        case "non_empty":
            return Setting(one.at, WORD, bool)
        case _:
            return weak(one.at, WORD)


def echoed(request: Request, record: Record) -> Iterator[Wish]:
    """What an answer has to repeat of the request."""
    for source, template in request.echo:
        value = typed(template, record.facts)
        if is_present(value):
            yield Setting(source, value)


def failed(detail: FailureDetail, what: str) -> Iterator[Wish]:
    """The provider's words about a failure."""
    yield from (weak(at, f"The simulator was asked to {what}.") for at in detail.message[:1])
    yield from (weak(at, "simulated_failure") for at in detail.code[:1])


# --- times ----------------------------------------------------------------------------------


def hinted(job: Job, now: int) -> Iterator[Wish]:
    """Hints to come back soon, and some progress."""
    waits = (Header("Retry-After"), Unit.RETRY_AFTER)
    for source, unit in (waits, *job.hints.next):
        # A wait is for those who are told to; only what an example says already is shortened.
        told = isinstance(source, Header) and "retry-after" in source.name.lower()
        there = (lambda found: not is_present(found)) if told else None
        yield Setting(source, _in_unit(unit, now, SOON), there)
    if job.states.progress is not None:
        yield weak(job.states.progress, 50)


def unexpired(job: Job, now: int) -> Iterator[Wish]:
    """Whatever an example says of its expiry is later than now."""
    for stated in (job.expiry.job, job.expiry.result):
        if stated is not None:
            at, unit = stated
            value = _in_unit(unit, now, LATER)
            yield Setting(at, value, lambda found: not is_present(found))


def _in_unit(unit: Unit, now: int, wait: int) -> Json:
    at = now + wait
    match unit:
        case Unit.SECONDS:
            return wait // 1_000
        case Unit.MILLISECONDS:
            return wait
        case Unit.EPOCH:
            return at // 1_000
        case Unit.EPOCH_MS:
            return at
        case Unit.RFC3339:
            return _instant(at)
        case Unit.HTTP_DATE:
            return format_datetime(datetime.fromtimestamp(at / 1_000, UTC), usegmt=True)
        case Unit.RETRY_AFTER:
            return str(wait // 1_000)
        case Unit.GO_DURATION:
            return f"{wait // 1_000}s"
        case Unit.ISO8601:
            return f"PT{wait // 1_000}S"


def _instant(at: int) -> str:
    return datetime.fromtimestamp(at // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- lists ----------------------------------------------------------------------------------


def found(lookup: Lookup, sent: Request, record: Record) -> Iterator[Wish]:
    """One item of a lookup's list: what tells that it is ours, and what is taken of it."""
    yield from (one for one in echoed(sent, record) if _points(one))
    for source, condition in lookup.match.terms:
        yield from _met(source, condition, record)
    yield from kept(lookup.take, record, "take.")


def _points(wish: Wish) -> bool:
    return isinstance(wish, Setting) and isinstance(wish.at, Pointer)


def _met(source: Source, condition: Condition, record: Record) -> Iterator[Wish]:
    if condition.template is not None:
        value = typed(condition.template, record.facts)
        if is_present(value):
            yield Setting(source, value)
    elif condition.values is not None:
        yield Setting(source, literal(condition.values[0]))
    elif condition.contains is not None:
        yield Setting(source, condition.contains)
    elif condition.present is not None:
        yield weak(source, WORD) if condition.present else Setting(source, ABSENT)
