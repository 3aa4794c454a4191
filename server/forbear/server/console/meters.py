"""`/metrics` in the text format of Prometheus (version 0.0.4), counted from the store each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forbear.server.app import App
from forbear.server.cli.home import senders

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Meter:
    """One metric with its samples: labels and a number each."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


async def meters(app: App) -> list[Meter]:
    """Everything that is measured, as of now."""
    figures, now = app.store.figures, app.clock.now().wall
    asked = await figures.asked()
    due = await figures.oldest_due(now)
    roles = Counter(process.role for process in await senders(app.store))
    requests = await figures.requests()
    return [
        Meter(
            "forbear_operations",
            "gauge",
            "Operations by state.",
            [({"state": state}, number) for state, number in (await figures.by_state()).items()],
        ),
        Meter(
            "forbear_open_cases",
            "gauge",
            "Cases that wait for a person, by reason.",
            [({"reason": one.reason}, one.count) for one in asked],
        ),
        Meter(
            "forbear_oldest_case_age_seconds",
            "gauge",
            "Age of the oldest open case of each reason.",
            [({"reason": one.reason}, max(0, now - one.oldest) / 1_000) for one in asked],
        ),
        Meter(
            "forbear_requests_total",
            "counter",
            "Requests reserved, by what came of them; 429 and 503 apart.",
            [
                ({"outcome": one.outcome, "status": one.status or "none"}, one.count)
                for one in requests
            ],
        ),
        Meter(
            "forbear_scope_queue_length",
            "gauge",
            "Operations that wait for a shared limit.",
            [({"scope": scope}, number) for scope, number in (await figures.queues()).items()],
        ),
        Meter(
            "forbear_oldest_due_age_seconds",
            "gauge",
            "For how long the longest due operation has been due; 0 if none is.",
            [({}, 0 if due is None else max(0, now - due) / 1_000)],
        ),
        Meter(
            "forbear_processes_alive",
            "gauge",
            "Living processes that can send, by role.",
            [({"role": role}, number) for role, number in roles.items()] or [({}, 0)],
        ),
    ]


def exposition(measured: Sequence[Meter]) -> str:
    return "".join(f"{line}\n" for meter in measured for line in _lines(meter))


def as_json(measured: Sequence[Meter]) -> dict[str, list[dict[str, object]]]:
    return {
        meter.name: [{**labels, "value": value} for labels, value in meter.samples]
        for meter in measured
    }


def _lines(meter: Meter) -> Iterator[str]:
    yield f"# HELP {meter.name} {meter.help}"
    yield f"# TYPE {meter.name} {meter.kind}"
    for labels, value in meter.samples:
        told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{meter.name}{f'{{{told}}}' if told else ''} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
