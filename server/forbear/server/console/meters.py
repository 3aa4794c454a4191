"""`/metrics` in the text format of Prometheus (version 0.0.4): what the store counts and holds.

Labels have few values: words of ours, or names of providers and scopes, of which the largest
`MOST_NAMES` are told apart.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from forbear.server.app import App
from forbear.server.cli.home import senders
from forbear.storage.figures import Asked, Standing, Unclear
from forbear.storage.tallies import COMMIT_BOUNDS, DECISION_BOUNDS, Count, Tally

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_NAMES = 50
"""So many names of one kind are told apart; the rest are `(other)` together."""

AGES = {300_000: "under_5m", 3_600_000: "under_1h", 86_400_000: "under_1d", None: "over_1d"}
"""How the ages of unclear operations are told, by their bounds in ms."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with its labels."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""
    """`_bucket`, `_sum` or `_count` of a histogram."""


@dataclass(frozen=True, slots=True)
class Meter:
    """One metric."""

    name: str
    kind: str
    """`gauge`, `counter` or `histogram`."""
    help: str
    samples: Sequence[Sample]


async def meters(app: App) -> list[Meter]:
    """Everything that is measured, as of now."""
    figures, store, now = app.store.figures, app.store, app.clock.now().wall
    processes = await senders(store)
    registered = {process.owner for process in processes}
    can_send = {binding for process in processes for binding in process.bindings}
    idle = len(store.liveness.others() - registered)
    return [
        *_counted(await figures.tallies()),
        *_standing(await figures.standing(), can_send),
        *_unclear(await figures.unclear(now, [bound for bound in AGES if bound]), now),
        *_cases(await figures.asked(), now),
        _gauge(
            "forbear_requests_open",
            "Requests that are reserved and whose outcome is not stored yet.",
            [Sample({}, await figures.out())],
        ),
        _gauge(
            "forbear_scope_queue_length",
            "Operations that wait for a shared limit, by scope.",
            _by_name("scope", (await figures.queues()).items()),
        ),
        _gauge(
            "forbear_oldest_due_age_seconds",
            "For how long the longest due operation has been due; 0 if none is.",
            [Sample({}, _age(await figures.oldest_due(now), now))],
        ),
        _gauge(
            "forbear_processes_alive",
            "Living processes that can send, by role.",
            [
                Sample({"role": role}, number)
                for role, number in sorted(Counter(one.role for one in processes).items())
            ]
            or [Sample({}, 0)],
        ),
        _gauge(
            "forbear_processes_without_worker",
            "Living servers that answer clients and leave sending to others.",
            [Sample({}, idle)],
        ),
        _gauge(
            "forbear_disk_free_bytes",
            "Free bytes of the file system of the home, for its user.",
            [Sample({}, shutil.disk_usage(store.home).free)],
        ),
    ]


def exposition(measured: Sequence[Meter]) -> str:
    return "".join(f"{line}\n" for meter in measured for line in _lines(meter))


def as_json(measured: Sequence[Meter]) -> dict[str, list[dict[str, object]]]:
    """Each sample under its name, with its labels and `value`."""
    told: dict[str, list[dict[str, object]]] = {}
    for meter in measured:
        told.setdefault(meter.name, [])
        for sample in meter.samples:
            one = {**sample.labels, "value": sample.value}
            told.setdefault(f"{meter.name}{sample.suffix}", []).append(one)
    return {name: samples for name, samples in told.items() if samples or f"{name}_sum" not in told}


# --- what is counted --------------------------------------------------------------------------


def _counted(counts: Sequence[Count]) -> list[Meter]:
    of = partial(_of, counts)
    return [
        Meter(
            "forbear_operations_accepted_total",
            "counter",
            "Operations stored, by provider and kind.",
            _labelled(of(Tally.ACCEPTED), "provider", "kind"),
        ),
        Meter(
            "forbear_operations_ended_total",
            "counter",
            "Operations that reached a final state, by provider and state.",
            _labelled(of(Tally.ENDED), "provider", "state"),
        ),
        Meter(
            "forbear_requests_total",
            "counter",
            "Reserved requests by what came of them; 429 and 503 apart from their classes.",
            _labelled(of(Tally.REQUESTS), "provider", "outcome", "status"),
        ),
        Meter(
            "forbear_token_requests_total",
            "counter",
            "Requests for access tokens by what came of them, in the same way.",
            _labelled(of(Tally.TOKEN_REQUESTS), "provider", "outcome", "status"),
        ),
        Meter(
            "forbear_requests_saved_total",
            "counter",
            "Requests asked for that did not leave: joined, coalesced, or answered from the store.",
            _labelled(of(Tally.SAVED), "how"),
        ),
        Meter(
            "forbear_waits_total",
            "counter",
            "Planned waits by what decided their length.",
            _labelled(of(Tally.WAITS), "source"),
        ),
        Meter(
            "forbear_wait_seconds_total",
            "counter",
            "Planned seconds of those waits.",
            _labelled(of(Tally.WAIT_MS), "source", scale=1_000),
        ),
        Meter(
            "forbear_cases_opened_total",
            "counter",
            "Cases opened, by reason.",
            _labelled(of(Tally.CASES), "reason"),
        ),
        Meter(
            "forbear_decisions_total",
            "counter",
            "Cases that a person decided, by reason.",
            _labelled(of(Tally.DECISIONS), "reason"),
        ),
        _histogram(
            "forbear_decision_seconds",
            "Time from the opening of a case to its decision.",
            of(Tally.DECISION_TIMES),
            of(Tally.DECISION_MS),
            [(str(bound), str(bound)) for bound in DECISION_BOUNDS],
        ),
        _histogram(
            "forbear_commit_seconds",
            "Time of a commit of any process, the lock between processes included.",
            of(Tally.COMMIT_TIMES),
            of(Tally.COMMIT_MS),
            [(str(bound), f"{bound / 1_000:g}") for bound in COMMIT_BOUNDS],
        ),
    ]


def _of(counts: Sequence[Count], tally: Tally) -> list[Count]:
    return [one for one in counts if one.tally is tally]


def _labelled(counts: Iterable[Count], *names: str, scale: int = 1) -> list[Sample]:
    """The counts with their labels named; a `provider` stands first and is bounded."""
    found = [(one.labels, one.value) for one in counts]
    if names[0] == "provider":
        told = _bounded((labels[0], value) for labels, value in found)
        found = [((told(labels[0]), *labels[1:]), value) for labels, value in found]
    sums: Counter[tuple[str, ...]] = Counter()
    for labels, value in found:
        sums[labels] += value
    return [
        Sample(dict(zip(names, labels, strict=True)), value / scale if scale > 1 else value)
        for labels, value in sorted(sums.items())
    ]


def _bounded(sizes: Iterable[tuple[str, int]]) -> Callable[[str], str]:
    """How each name is told: as itself, or with the others if it is none of the largest."""
    sums: Counter[str] = Counter()
    for name, size in sizes:
        sums[name] += size
    kept = {name for name, _ in sums.most_common(MOST_NAMES)}
    return lambda name: name if name in kept else "(other)"


def _by_name(label: str, sizes: Iterable[tuple[str, int]]) -> list[Sample]:
    sizes = list(sizes)
    told = _bounded(sizes)
    sums: Counter[str] = Counter()
    for name, size in sizes:
        sums[told(name)] += size
    return [Sample({label: name}, size) for name, size in sorted(sums.items())]


def _histogram(
    name: str,
    text: str,
    times: Sequence[Count],
    total: Sequence[Count],
    bounds: Sequence[tuple[str, str]],
) -> Meter:
    """A histogram of counts by bound; `bounds` are the bounds as counted and in seconds."""
    found = {one.labels[0]: one.value for one in times}
    sums = accumulate(found.get(bound, 0) for bound in (*(b for b, _ in bounds), "+Inf"))
    told = [*(seconds for _, seconds in bounds), "+Inf"]
    buckets = [Sample({"le": le}, value, "_bucket") for le, value in zip(told, sums, strict=True)]
    seconds = sum(one.value for one in total) / 1_000
    ends = [Sample({}, seconds, "_sum"), Sample({}, buckets[-1].value, "_count")]
    return Meter(name, "histogram", text, [*buckets, *ends])


# --- what is there now ------------------------------------------------------------------------


def _gauge(name: str, text: str, samples: Sequence[Sample]) -> Meter:
    return Meter(name, "gauge", text, samples)


def _standing(standing: Sequence[Standing], can_send: set[str]) -> list[Meter]:
    alike: Counter[tuple[str, str]] = Counter()
    for one in standing:
        alike[one.state, one.reason] += one.count
    unserved = sum(
        one.count
        for one in standing
        if one.state != "escalated" and one.reason != "approval" and one.binding not in can_send
    )
    return [
        _gauge(
            "forbear_operations",
            "Operations that are not over, by state and by what they wait for or are asked about.",
            [
                Sample({"state": state, "reason": reason}, number)
                for (state, reason), number in sorted(alike.items())
            ],
        ),
        _gauge(
            "forbear_operations_unserved",
            "Operations that are to go on, of contracts that no living process holds.",
            [Sample({}, unserved)],
        ),
    ]


def _unclear(unclear: Sequence[Unclear], now: int) -> list[Meter]:
    counts = {one.within: one.count for one in unclear}
    return [
        _gauge(
            "forbear_unclear_operations",
            "Writes of which nobody knows whether they were applied, by the time since sending.",
            [Sample({"age": name}, counts.get(bound, 0)) for bound, name in AGES.items()],
        ),
        _gauge(
            "forbear_oldest_unclear_age_seconds",
            "Time since the oldest of them was first sent; 0 if there is none.",
            [Sample({}, _age(min((one.oldest for one in unclear), default=None), now))],
        ),
    ]


def _cases(asked: Sequence[Asked], now: int) -> list[Meter]:
    return [
        _gauge(
            "forbear_open_cases",
            "Cases that wait for a person, by reason.",
            [Sample({"reason": one.reason}, one.count) for one in asked],
        ),
        _gauge(
            "forbear_oldest_case_age_seconds",
            "Age of the oldest open case of each reason.",
            [Sample({"reason": one.reason}, _age(one.oldest, now)) for one in asked],
        ),
    ]


def _age(since: int | None, now: int) -> float:
    return 0 if since is None else max(0, now - since) / 1_000


# --- the format -------------------------------------------------------------------------------


def _lines(meter: Meter) -> Iterator[str]:
    yield f"# HELP {meter.name} {meter.help}"
    yield f"# TYPE {meter.name} {meter.kind}"
    for sample in meter.samples:
        told = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
        yield f"{meter.name}{sample.suffix}{f'{{{told}}}' if told else ''} {sample.value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
