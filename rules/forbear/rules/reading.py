"""What a contract reads in an answer: places, words of states, conditions, required fields.

Nothing is inferred: a word that no row of the state table has stays unknown, and a place that is
missing, null, unreadable or no scalar is told apart from every text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address
from typing import assert_never
from urllib.parse import urljoin, urlsplit

from forbear.rules.contract import (
    Condition,
    Contract,
    Fold,
    Header,
    HttpStatus,
    Match,
    Pointer,
    Read,
    Requirement,
    Row,
    Rule,
    Source,
    States,
    Template,
    Test,
)
from forbear.rules.facts import Facts, typed
from forbear.rules.inert import inert, told
from forbear.rules.model import JobClass
from forbear.rules.ports import Json, Number, Reply
from forbear.rules.timing import read_rfc3339, server_now
from forbear.rules.values import (
    MISSING,
    Gap,
    Unreadable,
    decimal_of,
    decode,
    elements,
    is_present,
    locate,
    members,
    text_of,
)

JOINT = " · "
"""Between the words of several reads."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with its body as JSON: `MISSING` if empty or unread, `UNREADABLE` if it is none."""

    reply: Reply
    body: Json = MISSING
    problem: str | None = None
    """Why the body could not be read."""

    @property
    def is_unreadable(self) -> bool:
        return self.body is Gap.UNREADABLE


def answer_of(reply: Reply) -> Answer:
    """Decode a reply's body once, keeping the reason where it is no JSON."""
    if not reply.body:
        return Answer(reply)
    try:
        return Answer(reply, decode(reply.body, reply.header("Content-Type")))
    except Unreadable as error:
        return Answer(reply, Gap.UNREADABLE, str(error))


def value_at(answer: Answer, source: Source) -> Json:
    """What a source reads: a JSON value, header text, the status as text, or a `Gap`."""
    match source:
        case Pointer():
            return locate(answer.body, source)
        case Header(name):
            text = answer.reply.header(name)
            return MISSING if text is None else text
        case HttpStatus():
            return str(answer.reply.status)
        case _:
            assert_never(source)


def text_at(answer: Answer, source: Source) -> str | None:
    """The exact text at a source; None if there is no scalar."""
    return text_of(value_at(answer, source))


def source_name(source: Source) -> str:
    """A source as the contract writes it, for messages."""
    match source:
        case Pointer(text):
            return text
        case Header(name):
            return f"header:{name}"
        case HttpStatus():
            return "http"
        case _:
            assert_never(source)


# --- states ---------------------------------------------------------------------------------

Word = str | Gap


@dataclass(frozen=True, slots=True)
class Reading:
    """The words an answer has for a state, and the row of the table that they met."""

    words: tuple[Word, ...]
    text: str
    """The words joined, bounded and inert: what records and `treat_as` name."""
    means: JobClass | None
    """None: no row, so the state is unknown."""
    row: Row | None = None

    def met_exactly(self, states: States, *, http: bool) -> bool:
        """Whether a read of the status code (`http`) or of the answer itself decided the row.

        A row met by `*` and by absent values alone says nothing about what the answer is.
        """
        return self.row is not None and any(
            isinstance(read, HttpStatus) is http
            and isinstance(word, str)
            and _closeness(pattern, word, states.ignore_case) == 2
            for read, word, pattern in zip(states.reads, self.words, self.row.words, strict=True)
        )


def classify(states: States, answer: Answer, facts: Facts) -> tuple[str, JobClass | None]:
    """The provider's word or words, and what the state table or a person says they mean."""
    found = read_state(states, answer, facts)
    return found.text, found.means


def read_state(states: States, answer: Answer, facts: Facts) -> Reading:
    """Read the state and find its row; exact words beat `*`, and `%null` beats `%none`."""
    words = tuple(_word(read, answer, facts, states.ignore_case) for read in states.reads)
    shown = (word.value if isinstance(word, Gap) else told(word, 100) for word in words)
    text = JOINT.join(shown)
    row = _row(states, words)
    means = facts.treat.get(text, None if row is None else row.means)
    return Reading(words, text, means, row)


def _row(states: States, words: tuple[Word, ...]) -> Row | None:
    best: Row | None = None
    best_rank = (-1, -1)
    for row in states.rows:
        closeness = [
            _closeness(pattern, word, states.ignore_case)
            for pattern, word in zip(row.words, words, strict=True)
        ]
        if None in closeness:
            continue
        found = [one for one in closeness if one]
        rank = (len(found), sum(found))
        if rank > best_rank:
            best, best_rank = row, rank
    return best


def _closeness(pattern: str, word: Word, ignore_case: bool) -> int | None:
    """How closely a word of a row names the word read: 2, 1 for `%none`, 0 for `*`; None: not."""
    match pattern:
        case "*":
            return 0
        case "%none":
            return 1 if word in (Gap.NULL, Gap.MISSING) else None
        case "%null":
            return 2 if word is Gap.NULL else None
        case "%missing":
            return 2 if word is Gap.MISSING else None
        case _:
            same = isinstance(word, str) and _same_word(pattern, word, ignore_case)
            return 2 if same else None


def _same_word(one: str, other: str, ignore_case: bool) -> bool:
    return one.casefold() == other.casefold() if ignore_case else one == other


def _word(read: Read, answer: Answer, facts: Facts, ignore_case: bool) -> Word:
    match read:
        case Test():
            passed = passes(read, answer, facts)
            return passed if isinstance(passed, Gap) else "yes" if passed else "no"
        case Fold():
            return _worst(read, answer, ignore_case)
        case Pointer() | Header() | HttpStatus():
            return word_of(value_at(answer, read))
        case _:
            assert_never(read)


def word_of(value: Json) -> Word:
    """A value as a state word, or which gap stands in its place."""
    if value is None:
        return Gap.NULL
    if isinstance(value, Gap):
        return value
    text = text_of(value)
    return Gap.STRUCTURE if text is None else text


def passes(test: Test, answer: Answer, facts: Facts) -> bool | Gap:
    """Whether a tested place passes; a `Gap` where the answer does not let one say."""
    value = value_at(answer, test.at)
    if value is Gap.UNREADABLE:
        return Gap.UNREADABLE
    if not is_present(value):
        return False
    match test.test:
        case "positive":
            number = _number(value)
            return Gap.UNREADABLE if number is None else number > 0
        case "after_submit":
            return _after_submit(value, answer, facts)
        case _:
            return True


def _number(value: Json) -> Decimal | None:
    if isinstance(value, str) and not isinstance(value, Number):
        return Decimal(value) if re.fullmatch(r"-?[0-9]{1,100}(\.[0-9]{1,100})?", value) else None
    return decimal_of(value)


def _after_submit(value: Json, answer: Answer, facts: Facts) -> bool | Gap:
    instant = read_rfc3339(text_of(value) or "")
    if instant is None or facts.submitted_at is None:
        return Gap.UNREADABLE
    received = answer.reply.ended_at
    skew = server_now(answer.reply.header("Date"), received) - received
    # Providers cut their times to whole seconds.
    return instant >= (facts.submitted_at + skew) // 1000 * 1000


def _worst(fold: Fold, answer: Answer, ignore_case: bool) -> Word:
    """The first word of `order` in any element; a word outside `order` passes through."""
    array = locate(answer.body, fold.each)
    if isinstance(array, Gap):
        return array
    found = [word_of(locate(element, fold.at)) for element in elements(array) or ()]
    if not found:
        return MISSING

    def place(word: Word) -> int:
        for index, known in enumerate(fold.order):
            if isinstance(word, str) and _same_word(known, word, ignore_case):
                return index
        return -1

    return min(found, key=place)


# --- conditions and rules -------------------------------------------------------------------


def holds(match: Match, answer: Answer, facts: Facts) -> bool:
    """Whether every term of a match holds. An unreadable body meets no term about the body."""
    return all(
        _meets(condition, value_at(answer, source), facts) for source, condition in match.terms
    )


def holds_for(match: Match, item: Json, facts: Facts) -> bool:
    """`holds` for one element of a lookup's list: every pointer starts there."""
    return all(
        isinstance(source, Pointer) and _meets(condition, locate(item, source), facts)
        for source, condition in match.terms
    )


def _meets(condition: Condition, value: Json, facts: Facts) -> bool:
    if value is Gap.UNREADABLE:
        return False
    if condition.present is not None:
        return is_present(value) is condition.present
    if condition.contains is not None:
        return _contains(value, condition.contains)
    if condition.template is not None:
        return equal(value, typed(condition.template, facts))
    word = word_of(value)
    # A literal asterisk is a text here, not the state table's "anything".
    return any(
        word == "*" if literal == "*" else _closeness(literal, word, False) is not None
        for literal in condition.values or ()
    )


def _contains(value: Json, wanted: str) -> bool:
    array = elements(value)
    if array is not None:
        return any(text_of(element) == wanted for element in array)
    return wanted in (text_of(value) or "")


def equal(value: Json, expected: Json) -> bool:
    """Whether an answer has the value we mean: two numbers by exact value, the rest by text."""
    ours = decimal_of(expected)
    theirs = decimal_of(value)
    if ours is not None and theirs is not None:
        return ours == theirs
    text = text_of(value)
    return text is not None and text == text_of(expected)


def rule_for(
    rules: Iterable[Rule], on: str, age: int | None, answer: Answer, facts: Facts
) -> Rule | None:
    """The first rule that fits an answer to the request named `on`; unknown age fits no age."""
    for rule in rules:
        if (
            (rule.on is None or on in rule.on)
            and (rule.http is None or answer.reply.status in rule.http)
            and (rule.age_under is None or (age is not None and age < rule.age_under))
            and (rule.age_over is None or (age is not None and age > rule.age_over))
            and (rule.match is None or holds(rule.match, answer, facts))
        ):
            return rule
    return None


# --- required fields and echo ---------------------------------------------------------------


def missing_fields(
    required: Iterable[Requirement],
    any_of: tuple[Requirement, ...],
    answer: Answer,
    contract: Contract,
    hosts: tuple[str, ...],
) -> tuple[str, ...]:
    """Every required field that is absent or of the wrong type, with why; empty if all is there."""
    found = [lack for one in required if (lack := _lack(one, answer, contract, hosts))]
    alternatives = [_lack(one, answer, contract, hosts) for one in any_of]
    if alternatives and all(alternatives):
        found.append("none of these: " + "; ".join(lack for lack in alternatives if lack))
    return tuple(found)


def _lack(
    required: Requirement, answer: Answer, contract: Contract, hosts: tuple[str, ...]
) -> str | None:
    place = source_name(required.at)
    value = value_at(answer, required.at)
    if isinstance(value, Gap):
        return f"{place} is {'unreadable' if value is Gap.UNREADABLE else 'missing'}"
    if value is None:
        return f"{place} is null"
    is_text = isinstance(value, str) and not isinstance(value, Number)
    match required.type:
        case "string" if not is_text:
            return f"{place} is no string"
        case "integer" if re.fullmatch("-?[0-9]+", text_of(value) or "") is None or (
            is_text and isinstance(required.at, Pointer)
        ):
            return f"{place} is no integer"
        case "non_empty" if value == "" or elements(value) == [] or members(value) == {}:
            return f"{place} is empty"
        case "url":
            problem = refuse_url(value if is_text else "", contract, hosts)
            return None if problem is None else f"{place} {problem}"
        case _:
            return None


_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?:[/?#][!#-;=?-\[\]_a-z~]*)?"
)
MAX_ADDRESS = 8_000


def read_origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an absolute http(s) address; None for anything looser.

    No user, no control, blank, quote, backslash or non-ASCII character, nothing that two URL
    parsers could read as two hosts.
    """
    found = _ADDRESS.fullmatch(url) if len(url) <= MAX_ADDRESS else None
    if found is None:
        return None
    scheme = found["scheme"]
    port = int(found["port"] or (443 if scheme == "https" else 80))
    return scheme, found["host"].lower(), port


def refuse_url(url: str, contract: Contract, hosts: tuple[str, ...] = ()) -> str | None:
    """Why an address out of an answer may not be used, or None: https on an allowed host.

    Allowed are the origin of `base_url`, `allow_hosts`, and `hosts`; plain http only on loopback.
    """
    origin = read_origin(url)
    if origin is None:
        return "is no absolute https address"
    scheme, host, port = origin
    if scheme == "http" and not _is_loopback(host):
        return "is plain http"
    if origin == read_origin(contract.base_url):
        return None
    if any(_allows(pattern, host, port) for pattern in (*contract.allow_hosts, *hosts)):
        return None
    shown = host if port == 443 else f"{host}:{port}"
    return f"leads to {inert(shown, 120)}, which is not among the allowed hosts"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _allows(pattern: str, host: str, port: int) -> bool:
    name, colon, stated = pattern.lower().rpartition(":")
    if not colon or not stated.isdecimal():
        name, stated = pattern.lower(), "443"
    if int(stated) != port:
        return False
    if not name.startswith("*."):
        return host == name
    label, _, parent = host.partition(".")
    return bool(label) and parent == name[2:]


Echo = Iterable[tuple[Source, Template]]


def foreign(echo: Echo, answer: Answer, facts: Facts) -> str | None:
    """The first echoed value that is another than ours, as a sentence without the values.

    What we do not know ourselves is not compared; a place that is absent is `unechoed`.
    """
    for source, template in echo:
        expected = typed(template, facts)
        value = value_at(answer, source)
        if is_present(expected) and is_present(value) and not equal(value, expected):
            return f"{source_name(source)} is not {template.text}"
    return None


def unechoed(echo: Echo, answer: Answer, facts: Facts) -> tuple[str, ...]:
    """The places where an answer should repeat what we know and has nothing."""
    return tuple(
        f"{source_name(source)} is missing"
        for source, template in echo
        if is_present(typed(template, facts)) and not is_present(value_at(answer, source))
    )


def resolve_location(reply: Reply, reference: str) -> str:
    """A URI reference of a header field against the final request URL (RFC 9110 section 10.2.2)."""
    try:
        urlsplit(reference)
        return urljoin(reply.url, reference)
    except ValueError:
        return reference
