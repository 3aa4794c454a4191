"""The picture of an operation: what is on it, that it can be read, and that nothing escapes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.driving import CONTRACT, Driver, driver
from tests.tools.records import AS_OF, ID, MINUTE, NOT_SENT, SUCCEEDED, WAITING

from forbear.rules.model import (
    Attempt,
    AuditEvent,
    DelaySource,
    Operation,
    Option,
    State,
    Step,
    Trigger,
)
from forbear.server.console import picture
from forbear.server.console.moments import Outcome, Rule, Source, moments
from forbear.storage.audit import Code
from forbear.tools.story import TIMES

STYLES = Path(picture.__file__).parent / "static" / "picture.css"
RUNNING = {"id": "exp_71c", "state": "running"}
LONG = CONTRACT.replace("max_status_requests = 12", "max_status_requests = 400").replace(
    'deadline = "40m"', 'deadline = "4d"'
)
START = AS_OF - 2 * MINUTE


# --- reading a picture ----------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    words: str = ""

    def meets(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    root: ElementTree.Element

    @property
    def texts(self) -> list[Box]:
        return [_box(node) for node in self._all("text")]

    @property
    def words(self) -> list[str]:
        return [box.words for box in self.texts]

    @property
    def titles(self) -> list[str]:
        return [node.text or "" for node in self._all("title")[1:]]

    def marks(self, outcome: Outcome) -> list[ElementTree.Element]:
        """Marks that stand for requests: those of a legend say nothing when pointed at."""
        look = f"story-{outcome.name.lower()}"
        groups = [node for node in self._all("g") if look in node.attrib["class"].split()]
        return [node for node in groups if any(_name(child) == "title" for child in node)]

    @property
    def icons(self) -> list[Box]:
        at = [re.findall(r"[-\d.]+", node.attrib["transform"]) for node in self._all("g")]
        return [Box(float(x) - 7.5, float(y) - 7.5, float(x) + 7.5, float(y) + 7.5) for x, y in at]

    @property
    def bars(self) -> list[Box]:
        found: list[Box] = []
        for node in self._all("rect"):
            x, y, width, height = (float(node.attrib[n]) for n in ("x", "y", "width", "height"))
            found.append(Box(x, y, x + width, y + height))
        return found

    def lines(self, rule: Rule) -> list[ElementTree.Element]:
        look = f"story-{rule.name.lower()}"
        return [node for node in self._all("path") if look in node.get("class", "").split()]

    def _all(self, name: str) -> list[ElementTree.Element]:
        return [node for node in self.root.iter() if _name(node) == name]


def _name(node: ElementTree.Element) -> str:
    return node.tag.split("}")[-1]


def _box(node: ElementTree.Element) -> Box:
    words = node.text or ""
    width = picture.text_width(words)
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[node.attrib["text-anchor"]]
    left, base = float(node.attrib["x"]) - shift * width, float(node.attrib["y"])
    size = picture.SIZE
    return Box(left, base - 0.8 * size, left + width, base + 0.25 * size, words)


def layouts(markup: str) -> tuple[Layout, Layout]:
    """The wide and the narrow layout of a picture; markup that is not XML fails here."""
    wide, narrow = list(ElementTree.fromstring(markup))
    return _layout(wide), _layout(narrow)


def _layout(root: ElementTree.Element) -> Layout:
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    return Layout(width, height, root)


def check(markup: str) -> None:
    """What every picture owes its reader."""
    for layout in layouts(markup):
        boxes = layout.texts
        for box in (*boxes, *layout.icons, *layout.bars):
            inside = box.left >= 0 and box.right <= layout.width
            assert inside, (box, layout.width)
            assert box.top >= 0, box
            assert box.bottom <= layout.height, (box, layout.height)
        for one, other in combinations(boxes, 2):
            assert not one.meets(other), (one, other)


def event(number: int, at: int, code: str, **body: Any) -> AuditEvent:
    return AuditEvent(number, ID, at, code, body)


def drawn(
    op: Operation, events: Sequence[AuditEvent], now: int = AS_OF, attempts: Sequence[Attempt] = ()
) -> tuple[Layout, Layout]:
    markup = picture.story_svg(op, events, attempts, now)
    check(markup)
    return layouts(markup)


async def shown(job: Driver) -> tuple[Layout, Layout]:
    op = await job.store.read.operation(job.op_id)
    assert op is not None
    tried = await job.store.read.attempts_of(job.op_id)
    return drawn(op, await job.events(), job.clock.now().wall, tried)


# --- what is on it --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_each_outcome_has_a_shape_a_colour_and_a_name_of_its_own(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(429, {})
        await job.answer(503, {}, Retry_After="120")
        await job.silence()
        await job.unsent()
        await job.reserve()
        both = await shown(job)
    expected = {Outcome.OK, Outcome.LIMITED, Outcome.BROKEN, Outcome.SILENT, Outcome.UNSENT}
    for layout in both:
        shapes: set[str] = set()
        for outcome in (*expected, Outcome.OPEN):
            marks = layout.marks(outcome)
            assert len(marks) == 1, outcome
            shapes.add(marks[0][-1].attrib["d"])
            assert outcome in layout.words, "the legend names it"
        assert len(shapes) == len(expected) + 1
        assert not layout.marks(Outcome.REFUSED)
        assert Outcome.REFUSED not in layout.words, "what did not happen is not in the legend"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (204, Outcome.OK),
        (302, Outcome.REFUSED),
        (404, Outcome.REFUSED),
        (429, Outcome.LIMITED),
        (500, Outcome.BROKEN),
        (503, Outcome.BROKEN),
    ],
)
def test_an_answer_is_marked_by_its_status(status: int, outcome: Outcome) -> None:
    events = [
        event(1, START, "reserved", attempt="a", step="status"),
        event(2, START + 900, "answered", attempt="a", http=status),
    ]
    for layout in drawn(WAITING, events):
        assert len(layout.marks(outcome)) == 1


def test_an_answer_that_came_late_is_what_it_was_and_says_so() -> None:
    events = [
        event(1, START, "reserved", attempt="a", step="send"),
        event(2, START + 60_000, "lost", attempt="a"),
    ]
    late = Attempt(
        id="a",
        operation_id=ID,
        number=1,
        step=Step.SEND,
        trigger=Trigger.AGENT,
        authorisation="contract",
        owner="another",
        fence=1,
        scope="exp/account/acct_17",
        reserved_at=START,
        send_by=START + MINUTE,
        hold_until=START + MINUTE,
        request_digest="r1",
        closed_at=START + MINUTE,
        outcome="answered",
        status=201,
        late=True,
    )
    for layout in drawn(WAITING, events, attempts=[late]):
        (mark,) = layout.marks(Outcome.OK)
        assert "answered late" in (mark[0].text or "")
    for layout in drawn(WAITING, events):
        assert len(layout.marks(Outcome.SILENT)) == 1


@pytest.mark.anyio
async def test_waits_are_named_by_where_the_delay_comes_from(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(503, {}, Retry_After="600")
        await job.answer(200, RUNNING)
        wide, narrow = await shown(job)
    for source in (Source.RETRY_AFTER, Source.BACKOFF):
        assert any(words.startswith(source) for words in wide.words)
        assert any(words.startswith(source) for words in narrow.words)
    assert any("10 m" in words for words in narrow.words), "and say how long"


@pytest.mark.parametrize("source", DelaySource)
def test_every_delay_source_is_shown_by_a_name_of_its_own(source: DelaySource) -> None:
    set_ = {"state": "waiting", "next_at": AS_OF, "delay_source": str(source)}
    (wait,) = moments(WAITING, [event(1, START, "accepted", set=set_)], [], AS_OF).waits
    assert wait.source is not Source.OTHER
    assert (wait.begin, wait.end) == (START, WAITING.next_at)


@pytest.mark.anyio
async def test_lines_show_the_usual_end_the_deadline_what_it_was_and_now(tmp_path: Path) -> None:
    text = CONTRACT.replace("max_status_requests = 12", "max_status_requests = 1")
    async with driver(tmp_path, text) as job:
        await job.accepted()
        await job.answer(200, RUNNING)
        job.clock.advance(5 * MINUTE)
        stopped = await shown(job)
        await job.decide(Option.EXTEND, extend_by=15 * MINUTE, requests=2)
        extended = await shown(job)
    for layout in stopped:
        for rule in (Rule.USUAL, Rule.DEADLINE, Rule.NOW):
            assert len(layout.lines(rule)) == 1, rule
        assert any(words.startswith(Source.PERSON) for words in layout.words)
    for layout in extended:
        assert len(layout.lines(Rule.BEFORE)) == len(layout.lines(Rule.EXTENDED)) == 1
        assert not layout.lines(Rule.DEADLINE)
        assert "anna: extend 15 m" in layout.words
    assert "deadline before 11:00:00Z" in extended[0].words
    assert "extended deadline 11:15:00Z" in extended[0].words


def test_what_is_over_has_an_end_and_no_now() -> None:
    over = replace(WAITING, **SUCCEEDED)
    for layout in drawn(over, [event(1, START, "accepted", set={"state": "waiting"})], AS_OF * 2):
        assert layout.lines(Rule.ENDED)
        assert not layout.lines(Rule.NOW)
        assert any(words.startswith("succeeded") for words in layout.words)


def test_an_approval_starts_a_deadline_and_moves_none() -> None:
    asked = event(1, START, "accepted", set={"deadline_at": START + MINUTE})
    approved = event(2, AS_OF, "decided", option="approve", set={"deadline_at": AS_OF + MINUTE})
    rules = [line.rule for line in moments(WAITING, [asked, approved], [], AS_OF).lines]
    assert Rule.DEADLINE in rules
    assert Rule.BEFORE not in rules


def test_a_wait_for_a_person_ends_now_though_it_may_last() -> None:
    """A delay has a planned end; an approval has only a time before which it must come."""
    asked = {"state": "queued", "waiting_for": "approval", "next_at": AS_OF + 86_400_000}
    op = replace(WAITING, **NOT_SENT, approve_by=AS_OF + 86_400_000, next_at=AS_OF + 86_400_000)
    told = moments(op, [event(1, START, "accepted", set=asked)], [], AS_OF)
    (wait,) = told.waits
    assert (wait.source, wait.end) == (Source.APPROVAL, AS_OF)
    assert Rule.APPROVE in [line.rule for line in told.lines]
    assert Rule.DEADLINE not in [line.rule for line in told.lines]


def test_the_axis_is_in_utc_and_names_each_day() -> None:
    later = replace(WAITING, deadline_at=START + 3 * 86_400_000, expected_at=START + 86_400_000)
    wide, narrow = drawn(later, [])
    assert "UTC" in wide.words
    assert "2026-11-30 UTC" in narrow.words
    assert "2026-11-30" in wide.words
    assert "usual end 2026-12-01 10:18:14Z" in wide.words
    assert {"2026-12-01", "2026-12-03"} <= set(narrow.words)


def test_a_long_quiet_stretch_is_broken_so_that_the_rest_stays_apart() -> None:
    """A poll each 20 s, then a deadline that is two days away."""
    polls = [
        event(number, START + 20_000 * number, "answered", attempt=str(number), http=200)
        for number in range(5)
    ]
    far = replace(WAITING, deadline_at=START + 2 * 86_400_000)
    wide, _ = drawn(far, polls)
    assert len(wide.marks(Outcome.OK)) == 5
    assert any("gap" in (node.get("class") or "") for node in wide.root.iter())


def test_no_quiet_stretch_takes_more_than_its_share() -> None:
    """Two minutes of waiting for an approval that may come until tomorrow."""
    op = replace(WAITING, **NOT_SENT, created_at=START, approve_by=START + 86_400_000)
    wide, _ = drawn(op, [event(1, START, "accepted", set={"state": "queued"})])
    (now,), (until,) = wide.lines(Rule.NOW), wide.lines(Rule.APPROVE)
    places = [float(re.findall(r"[\d.]+", node.attrib["d"])[0]) for node in (now, until)]
    assert places[1] - places[0] < 0.35 * wide.width


@pytest.mark.anyio
async def test_hundreds_of_polls_become_few_marks_with_their_number(tmp_path: Path) -> None:
    async with driver(tmp_path, LONG) as job:
        await job.accepted()
        for _ in range(300):
            await job.answer(200, RUNNING)
        both = await shown(job)
    for layout in both:
        assert len(layout.marks(Outcome.OK)) < 45
        singles = sum("of them" not in (mark[0].text or "") for mark in layout.marks(Outcome.OK))
        counts = [words[1:] for words in layout.words if re.fullmatch(f"{TIMES}\\d+", words)]
        assert sum(map(int, counts)) + singles == 301
        assert layout.height < 2_500
    assert sum(words.startswith(Source.BACKOFF) for words in both[0].words) == 1


def test_what_happens_in_one_moment_is_told_in_the_order_in_which_it_can() -> None:
    op = replace(WAITING, created_at=START, deadline_at=START + MINUTE, expected_at=None)
    events = [event(1, START, "answered", attempt="a", event="accepted", http=202)]
    _, narrow = drawn(op, events, START)
    order = [narrow.words.index(words) for words in ("asked for", "submitted", "now", "deadline")]
    assert order == sorted(order)


def test_nothing_that_happened_is_a_picture_too() -> None:
    wide, narrow = drawn(WAITING, [])
    assert "nothing was sent" in wide.words
    assert "deadline" in narrow.words


# --- who reads it ---------------------------------------------------------------------------


def test_a_screen_reader_is_told_what_a_picture_shows_in_words() -> None:
    events = [
        event(1, START, "accepted", set={"kind": "job"}),
        event(2, START, "reserved", attempt="a", step="send"),
        event(3, START, "answered", attempt="a", http=202),
    ]
    ids: list[str] = []
    for layout in drawn(WAITING, events):
        root = layout.root
        assert root.attrib["role"] == "img"
        title, told = list(root)[:2]
        assert (_name(title), _name(told)) == ("title", "desc")
        assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], told.attrib["id"]]
        assert title.text == "Story of Export sales-2026"
        assert told.text is not None
        assert told.text.startswith("waiting. 1 submit · 0 checks")
        assert "deadline 2026-11-30T11:00:14Z" in told.text
        ids += [title.attrib["id"], told.attrib["id"]]
    assert len(set(ids)) == len(ids)


HOSTILE = "</text><script>alert(1)</script>\u202e\x1b[31m\ufffe&\"'" + "é" * 300


def test_words_of_others_are_inert() -> None:
    op = replace(WAITING, label=HOSTILE)
    events = [
        event(1, START, "answered", attempt="a", http=200, state=HOSTILE),
        event(2, START + 1, "decided", operator=HOSTILE, option=HOSTILE, comment=HOSTILE),
    ]
    markup = picture.story_svg(op, events, [], AS_OF)
    check(markup)
    tags = Counter(_name(node) for node in ElementTree.fromstring(markup).iter())
    assert set(tags) <= {"div", "svg", "title", "desc", "text", "g", "path", "rect"}
    assert not re.search("[\u202e\x1b\ufffe]", markup)


def test_it_needs_neither_style_attributes_nor_scripts() -> None:
    markup = picture.story_svg(WAITING, [], [], AS_OF)
    names = {name for node in ElementTree.fromstring(markup).iter() for name in node.attrib}
    assert "style" not in names
    assert not any(name.startswith("on") or "href" in name for name in names)


def test_every_look_has_a_style() -> None:
    """A class that the style sheet does not know would be drawn black on black."""
    styles = STYLES.read_text()
    outcomes = [f".story-{outcome.name.lower()} path" for outcome in Outcome]
    for look in (*outcomes, ".rule", ".wait", ".axis", ".gap", ".reach", ".story-person path"):
        assert f"{look} {{" in styles, look


def test_it_is_drawn_for_the_width_of_a_phone_with_text_that_can_be_read() -> None:
    """At 360 px with 16 px on each side a unit is a pixel; where it is wider, so is the picture."""
    _, narrow = layouts(picture.story_svg(WAITING, [], [], AS_OF))
    assert narrow.width == 328
    assert float(narrow.root.attrib["font-size"]) >= 11
    (shown_from,) = re.findall(r"@container \(min-width: (\d+)px\)", STYLES.read_text())
    assert picture.SIZE * int(shown_from) / picture.WIDE >= 11


# --- any history ----------------------------------------------------------------------------

OUTCOMES = [Code.ANSWERED, Code.NO_ANSWER, Code.NOT_SENT, Code.LOST, None]
GAPS = st.one_of(
    st.just(0), st.integers(1, 5_000), st.integers(5_000, 300_000), st.integers(0, 10**10)
)
STEPS = st.sampled_from(["send", "status", "lookup"])
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from([str(state) for state in State]),
        "next_at": st.one_of(st.none(), st.integers(START, START + 10**9)),
        "delay_source": st.sampled_from([None, *map(str, DelaySource)]),
        "waiting_for": st.sampled_from([None, "slot", "scope", "approval", "provider", "settle"]),
        "deadline_at": st.integers(START, START + 10**10),
    },
)


@st.composite
def histories(draw: st.DrawFn) -> list[AuditEvent]:
    at = START
    events = [event(1, at, "accepted", set={"state": "queued", "deadline_at": at + 40 * MINUTE})]
    for number in range(draw(st.integers(0, 25))):
        at += draw(GAPS)
        changes = draw(COLUMNS)
        other = draw(st.sampled_from([None, None, None, Code.DECIDED, Code.HELD, Code.JOINED]))
        if other is not None:
            words = draw(st.text(max_size=40))
            body = {"option": "extend", "operator": words, "extend_by": 60_000}
            events.append(event(len(events) + 1, at, other, set=changes, **body))
            continue
        attempt = str(number)
        step = draw(STEPS)
        events.append(event(len(events) + 1, at, "reserved", attempt=attempt, step=step))
        code = draw(st.sampled_from(OUTCOMES))
        if code is None:
            continue
        at += draw(st.integers(0, 30_000))
        answer: dict[str, Any] = {"attempt": attempt, "set": changes}
        if code is Code.ANSWERED:
            answer["http"] = draw(st.sampled_from([200, 302, 404, 429, 500, 503]))
            answer["state"] = draw(st.text(max_size=80))
        events.append(event(len(events) + 1, at, code, **answer))
    return events


@given(
    events=histories(),
    late=st.integers(0, 10**10),
    final=st.booleans(),
    useful=st.one_of(st.none(), st.integers(START, START + 10**9)),
)
@settings(deadline=None, max_examples=60)
def test_any_history_can_be_drawn_and_read(
    events: list[AuditEvent], late: int, final: bool, useful: int | None
) -> None:
    changes: dict[str, Any] = SUCCEEDED if final else {}
    op = replace(WAITING, created_at=START, useful_until=useful, **changes)
    markup = picture.story_svg(op, events, [], events[-1].at + late)
    check(markup)
    requests = moments(op, events, [], events[-1].at + late).requests
    for layout in layouts(markup):
        marks = [mark for outcome in Outcome for mark in layout.marks(outcome)]
        told = [mark[0].text or "" for mark in marks]
        counts = (re.match(r"(\d+) of them", words) for words in told)
        assert sum(int(each[1]) if each else 1 for each in counts) == len(requests)
