"""The provider: it keeps the promises of its contract, and nothing else can be relied on.

It speaks bytes. Connections are refused, hang and break at every boundary that matters; answers are
slow, late, cut, garbled or contradictory; whole minutes are nothing but 429 or 503. What it did is
on the record here, and that record is the judge of everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.simulation import contract
from tests.simulation.loop import Lane, VirtualLoop
from tests.simulation.network import Network, Socket

# --- what becomes of a request ----------------------------------------------------------------

EARLY = ("reset_at_first_byte", "close_unread", "lost_before")
"""It is not processed, and no answer comes."""
BROKEN = ("lost_after", "cut_head", "cut_body", "garbled", "never", "too_late")
"""It is processed, and no whole answer comes in time."""
ODD = ("two_answers", "no_id", "other_id", "unknown_state", "no_json", "slow", "split")
"""It is processed, and the answer is strange or takes its time."""
REFUSED = ("429", "429_soon", "429_far", "503", "503_soon", "rejected", "conflict", "408", "500")
"""It is not processed, and the answer says so, more or less."""
DONE_ANYWAY = ("503_done", "500_done", "504_done", "late_504")
"""It is processed, and the answer is an error that leaves that open."""
RARE = ("denied", "forbidden")

FATES = (*EARLY, *BROKEN, *ODD, *REFUSED, *DONE_ANYWAY)
CONNECTS = ("refused", "hangs")


@dataclass(slots=True)
class Exchange:
    """One request as the provider saw it."""

    number: int
    socket: Socket
    at: float
    """When its first byte left the sender, true seconds."""
    method: str
    path: str
    ref: str
    owner: str
    attempt: str = ""
    """The id of the attempt whose permit it used, as the store said then."""
    hold_until: float = 0.0
    """Until when it has its slot, true seconds."""
    arrived: bool = False
    arrived_at: float = 0.0
    processed: bool = False
    answered: str = ""
    """The status of an answer that was sent in full."""
    heard: bool = False
    """The whole answer reached its sender's event loop."""
    began: float = 0.0
    """When its sender began with it, by the loop."""
    heard_at: float = 0.0
    """When, by the loop."""
    in_time: bool = False
    """And that was before its total time-out."""
    length: int = 0
    """Bytes of the answer that are still to be heard."""


@dataclass(slots=True)
class Effect:
    """Something that cannot be undone."""

    id: str
    ref: str
    item: str
    at: float
    seen_at: float
    """From when on lookups and checks show it."""


@dataclass(slots=True)
class Job:
    """A job at the provider: how it goes on is fixed when it is made."""

    id: str
    ref: str
    item: str
    script: tuple[str, ...]
    polls: int = 0
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad things are."""

    faults: float = 0.2
    connects: float = 0.05
    fates: tuple[str, ...] = FATES
    storms: tuple[tuple[float, float, str], ...] = ()
    """Stretches of true time with one fate for everybody."""
    clear_from: float = 1e9
    """From then on nothing goes wrong."""
    lag: float = 4.0
    """Until an effect is listed, seconds, at the most."""


@dataclass
class Provider:
    """See the module. `note` hears what happens, for the trace."""

    loop: VirtualLoop
    draws: Random
    weather: Weather
    true: Callable[[], float]
    note: Callable[[str], None]
    lane: Lane | None = None
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    effects: list[Effect] = field(default_factory=list[Effect])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    keys: dict[str, tuple[float, Effect]] = field(default_factory=dict[str, tuple[float, Effect]])
    arrivals: dict[str, int] = field(default_factory=dict[str, int])
    """Writes that were not refused outright, by item."""

    def accepts(self, socket: Socket) -> Connection | str:
        """The other end of a new connection, or what becomes of it instead."""
        if self.true() < self.weather.clear_from and self.draws.random() < self.weather.connects:
            return self.draws.choice(CONNECTS)
        return Connection(self, socket)

    def fate(self) -> str:
        now, weather = self.true(), self.weather
        if now >= weather.clear_from:
            return "ok"
        for begins, ends, fate in weather.storms:
            if begins <= now < ends:
                return fate
        if self.draws.random() >= weather.faults:
            return "ok"
        if self.draws.random() < 0.01:
            return self.draws.choice(RARE)
        return self.draws.choice(weather.fates)

    def made(self, ref: str) -> list[Effect]:
        return [one for one in self.effects if one.ref == ref]

    # --- what a request does ------------------------------------------------------------------

    def process(self, exchange: Exchange, headers: dict[str, str], body: bytes) -> Any:
        """Do what was asked, now; what a whole answer would say."""
        exchange.processed = True
        url = urlsplit(exchange.path)
        path = url.path.removeprefix("/v1/")
        if exchange.method == "POST" and path.endswith("/cancel"):
            job = self.jobs.get(path.split("/")[1])
            if job is None:
                return 404, {}
            job.cancelled = True
            return 200, {"id": job.id, "state": "cancelled"}
        if exchange.method == "POST":
            return self._write(exchange, path, headers.get("idempotency-key"), body)
        if path in ("exports", "transfers"):
            wanted = parse_qs(url.query).get("reference", [""])[0]
            shown = [one for one in self.made(wanted) if one.seen_at <= self.true()]
            return 200, {"items": [{"reference": one.ref, "id": one.id} for one in shown]}
        if path.endswith("/rows"):
            return 200, {"rows": [1, 2, 3]}
        if path.startswith("exports/"):
            return self._status(path.split("/")[1])
        if path.startswith("pages/"):
            page = int(parse_qs(url.query).get("cursor", ["1"])[0])
            return 200, {"data": [page], "next": str(page + 1) if page < 3 else None}
        return 200, {"item": path}

    def _status(self, name: str) -> tuple[int, dict[str, Any]]:
        job = self.jobs.get(name)
        if job is None:
            return 404, {}
        state = job.script[min(job.polls, len(job.script) - 1)]
        if job.cancelled and state in ("queued", "running"):
            state = "cancelled"
        job.polls += 1
        return 200, {"id": job.id, "state": state, "rows": 3}

    def _write(
        self, exchange: Exchange, path: str, key: str | None, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        now, item = self.true(), json.loads(body)["item"]
        known = self.keys.get(key or "")
        if known is not None and exchange.arrived_at < known[0] + contract.WINDOW:
            effect = known[1]
        else:
            name = f"{path[:3]}_{len(self.effects) + 1}"
            lag = self.draws.uniform(0, self.weather.lag)
            effect = Effect(name, exchange.ref, item, now, now + lag)
            self.effects.append(effect)
            self.note(f"effect {effect.id} of {item} for {exchange.ref}")
            if key is not None:
                self.keys[key] = now, effect
            if path == "exports":
                self.jobs[name] = Job(name, exchange.ref, item, self._script())
        return 201, {"id": effect.id, "state": "queued"}

    def _script(self) -> tuple[str, ...]:
        """How a job goes on, poll by poll."""
        runs = ("running",) * self.draws.randrange(4)
        return self.draws.choice(
            (
                ("queued", *runs, "done"),
                ("queued", *runs, "done"),
                ("queued", *runs, "done"),
                (*runs, "queued", "running", "done", "running", "done"),
                ("queued", *runs, "failed"),
                ("running",),
                (*runs, "held"),
                (*runs, "paused?"),
                (*runs, "cancelled"),
            )
        )


class Connection:
    """The provider's end of one connection: requests one after the other."""

    def __init__(self, provider: Provider, socket: Socket) -> None:
        self._provider = provider
        self._socket = socket
        self._buffer = b""
        self._fate: str | None = None
        self._over = False

    def received(self, data: bytes, at: float) -> None:
        if self._over:
            return
        self._buffer += data
        if self._fate is None:
            self._fate = self._provider.fate()
            if self._fate == "reset_at_first_byte":
                self._close(ConnectionResetError(104, "reset"))
                return
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            if self._fate == "close_unread":
                self._close(None)
            return
        self._buffer = rest[length:]
        fate, self._fate = self._fate, None
        # As it was when its first byte left: `Laws` wrote it down.
        exchange = next(
            one
            for one in self._provider.exchanges
            if one.socket is self._socket and not one.arrived
        )
        exchange.arrived, exchange.arrived_at = True, at
        self._serve(exchange, headers, rest[:length], fate)

    def ended(self) -> None:
        self._over = True

    def _close(self, error: OSError | None) -> None:
        self._over = True
        self._socket.reset(error)

    # --- one request --------------------------------------------------------------------------

    def _serve(self, exchange: Exchange, headers: dict[str, str], body: bytes, fate: str) -> None:
        provider, draws = self._provider, self._provider.draws
        provider.note(f"{exchange.method} {exchange.path} of {exchange.ref} -> {fate}")
        refuses = fate in REFUSED or fate in EARLY or fate in RARE
        if exchange.method == "POST" and fate not in ("rejected", "conflict", "429", "denied"):
            provider.arrivals[exchange.ref] = provider.arrivals.get(exchange.ref, 0) + 1
        if fate in ("close_unread", "lost_before"):
            self._close(None if draws.random() < 0.5 else ConnectionResetError(104, "reset"))
            return
        if refuses:
            self._after(draws.uniform(0, 0.5), lambda: self._refuse(exchange, fate))
            return
        # Effects come late, but soon enough for what the contract promises of lookups.
        late = draws.uniform(0, 0.3)
        if fate in ("never", "too_late", "late_504", "slow"):
            late = draws.uniform(0, contract.SETTLE - provider.weather.lag - 3)
        self._after(late, lambda: self._do(exchange, headers, body, fate), always=True)

    def _do(self, exchange: Exchange, headers: dict[str, str], body: bytes, fate: str) -> None:
        status, told = self._provider.process(exchange, headers, body)
        match fate:
            case "never":
                return
            case "lost_after":
                self._close(None)
            case "too_late" | "late_504":
                wait = contract.TIMEOUT + 1
                answer = (504, {}) if fate == "late_504" else (status, told)
                self._after(wait, lambda: self._answer(exchange, *answer))
            case "slow":
                wait = self._provider.draws.uniform(0.5, contract.TIMEOUT)
                self._after(wait, lambda: self._answer(exchange, status, told))
            case "503_done" | "500_done" | "504_done":
                self._answer(exchange, int(fate[:3]), {})
            case "no_id":
                self._answer(exchange, status, {k: v for k, v in told.items() if k != "id"})
            case "other_id":
                self._answer(
                    exchange, status, {**told, **({"id": "other"} if "id" in told else {})}
                )
            case "unknown_state":
                self._answer(exchange, status, {**told, "state": "dreaming"})
            case _:
                self._answer(exchange, status, told, fate=fate)

    def _refuse(self, exchange: Exchange, fate: str) -> None:
        after = {"429_soon": 4, "429_far": 4_000, "503_soon": 3}.get(fate)
        headers = () if after is None else (("Retry-After", str(after)),)
        status = {"rejected": 422, "conflict": 409, "denied": 401, "forbidden": 403}.get(fate)
        self._answer(exchange, status or int(fate[:3]), {"error": {"code": fate}}, headers)

    def _answer(
        self,
        exchange: Exchange,
        status: int,
        told: object,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        fate: str = "ok",
    ) -> None:
        body = b"<html>" if fate == "no_json" else json.dumps(told).encode()
        lines = [f"HTTP/1.1 {status} Words", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        match fate:
            case "cut_head":
                self._socket.deliver(head[: len(head) // 2])
                self._close(None)
            case "cut_body":
                self._socket.deliver(head + body[: len(body) // 2])
                self._close(None)
            case "garbled":
                self._socket.deliver(b"\x15\x03\x01\x00" + head)
                self._close(None)
            case _:
                whole = head + body
                exchange.answered, exchange.length = str(status), len(whole)
                if fate == "two_answers":
                    whole += head + body
                if fate == "split":
                    cut = self._provider.draws.randrange(1, len(whole))
                    self._socket.deliver(whole[:cut])
                    whole = whole[cut:]
                self._socket.deliver(whole)

    def _after(self, seconds: float, act: Callable[[], None], *, always: bool = False) -> None:
        """Do something unless the connection is gone by then; what was begun is `always` done."""

        def due() -> None:
            if always or not self._over:
                act()

        provider = self._provider
        provider.loop.later(provider.lane or provider.loop.world, seconds, due)


__all__ = ["Connection", "Effect", "Exchange", "Network", "Provider", "Weather"]
