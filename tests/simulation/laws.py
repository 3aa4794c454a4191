"""What must hold at every commit, at every first byte, and at the end.

The judge reads the store with a connection of its own, and believes the provider's record of what
reached it. `Laws.broken` is the list of what did not hold.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forbear.rules.contract import Contract
from forbear.storage import verifying
from forbear.storage.store import Store
from tests.simulation import contract as published
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Socket
from tests.simulation.process import START, Host, Process
from tests.simulation.provider import Exchange, Provider
from tests.storage.house import rebuilt, told

FINAL = ("succeeded", "failed", "cancelled", "expired", "discarded")
COUNTERS = (
    *("attempts", "status_requests", "transport_failures", "rate_limited", "lookups", "wait"),
    "extensions",
)
NEVER = ("credential_missing", "egress_refused")
"""Reasons for which nothing can stop here."""

LATE = 75_000
"""How long after its end an operation that somebody could end may stay open, ms: a lease, the
notice that nobody holds its contract, and some heartbeats."""

_OPERATIONS = (
    "SELECT id, ref, action, kind, state, step, certainty, revision, fence, next_at, deadline_at,"
    " once_until, approve_by, waiting_for, lease_owner, wire_key, intent, authorisation, sent_at, "
    + ", ".join(f"{name}_used, {name}_max" for name in COUNTERS)
    + " FROM operations"
)
_ATTEMPTS = (
    "SELECT id, operation_id, number, step, owner, fence, reserved_at, reserved_boot, send_by,"
    " hold_until, closed_at, outcome, status, late, authorisation FROM attempts ORDER BY rowid"
)


@dataclass
class Laws:
    """See the module."""

    path: Path
    host: Host
    loop: VirtualLoop
    provider: Provider
    contract: Contract
    processes: list[Process]
    note: Callable[[str], None]
    stop: Callable[[], None]
    broken: list[str] = field(default_factory=list[str])
    operations: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    attempts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    pauses: frozenset[str] = frozenset()
    approved: set[str] = field(default_factory=set[str])
    """Items that a person allowed to be done again, or said something untrue of."""
    touched: set[str] = field(default_factory=set[str])
    """Operations that a person decided about."""
    grants: Counter[str] = field(default_factory=Counter[str])
    """How often a person decided about each operation."""
    decided: Counter[str] = field(default_factory=Counter[str])
    """How often each case was decided with success."""
    items: dict[str, str] = field(default_factory=dict[str, str])
    """The item of each operation, by its id."""
    jumps: list[int] = field(default_factory=list[int])
    """When the wall clock was set forward, or the machine slept, true ms."""
    worked_since: int | None = None
    """Since when some process has been at work without a break, true ms."""
    fresh: list[str] = field(default_factory=list[str])
    """Attempts that the last commit made."""
    behind: int = 0
    _mark: Any = None

    def __post_init__(self) -> None:
        self._store = sqlite3.connect(self.path, isolation_level=None)
        self._store.row_factory = sqlite3.Row

    def close(self) -> None:
        self._store.close()

    def must(self, holds: bool, law: str, what: str = "") -> None:
        """Note that a law was broken, and end the seed."""
        if not holds:
            self.broken.append(f"{law}: {what}")
            self.note(f"BROKEN {law}: {what}")
            self.stop()

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._store.execute(query, values).fetchall()

    # --- at every commit ----------------------------------------------------------------------

    def committed(self) -> bool:
        """Look at what a commit changed. True if it was anything that matters."""
        mark = tuple(
            self._store.execute(
                "SELECT (SELECT sum(revision) FROM operations), (SELECT count(*) FROM attempts),"
                " (SELECT count(*) FROM attempts WHERE closed_at IS NULL),"
                " (SELECT count(*) FROM pauses), (SELECT count(*) FROM attempts WHERE late)"
            ).fetchone()
        )
        self.fresh = []
        if mark == self._mark:
            return False
        self._mark = mark
        paused, self.pauses = self.pauses, self._paused()
        before, self.operations = self.operations, self._read(_OPERATIONS)
        known, self.attempts = self.attempts, self._read(_ATTEMPTS)
        for name, op in self.operations.items():
            old = before.get(name)
            if old is None or old["revision"] != op["revision"]:
                self._changed(old, op)
        for name in before.keys() - self.operations.keys():
            self.must(False, "an operation is gone", name)
        for name, attempt in self.attempts.items():
            if name not in known:
                self.fresh.append(name)
                self._reserved(attempt, before.get(attempt["operation_id"]), paused & self.pauses)
            elif known[name] != attempt:
                self._closed(known[name], attempt)
        return True

    def _read(self, query: str) -> dict[str, dict[str, Any]]:
        return {row["id"]: dict(row) for row in self._store.execute(query)}

    def _paused(self) -> frozenset[str]:
        return frozenset(row["target"] for row in self.rows("SELECT target FROM pauses"))

    def _changed(self, old: dict[str, Any] | None, op: dict[str, Any]) -> None:
        name = f"{op['action']} {op['id']}"
        if old is None or old["state"] != op["state"]:
            was = "new" if old is None else old["state"]
            self.note(f"{name} {was} -> {op['state']} ({op['certainty']}, {op['step']})")
        for counter in COUNTERS:
            used, most = op[f"{counter}_used"], op[f"{counter}_max"]
            # A decision's single permit ignores the exhausted maximum.
            most += self.grants[op["id"]]
            self.must(
                counter == "wait" or used <= most, "a budget is exceeded", f"{name} {counter}"
            )
        if op["state"] == "escalated":
            case = self.rows(
                "SELECT reason FROM cases WHERE operation_id = ? AND closed_at IS NULL", op["id"]
            )
            self.must(bool(case), "nobody is asked about what is escalated", name)
            self._reason(op, case[0]["reason"] if case else "")
        live = op["state"] not in (*FINAL, "escalated")
        self.must(not live or op["next_at"] is not None, "a live operation is forgotten", name)
        if old is None:
            return
        for counter in COUNTERS:
            fell = old[f"{counter}_used"] - op[f"{counter}_used"]
            failed = op["transport_failures_used"] - old["transport_failures_used"]
            moved = counter == "attempts" and fell == 1 and failed == 1
            self.must(fell <= 0 or moved, "a counter fell", f"{name} {counter}")
        self.must(op["fence"] >= old["fence"], "the fence fell", name)
        for same in ("ref", "intent", "wire_key"):
            self.must(op[same] == old[same], "what must not change did", f"{name} {same}")
        if old["state"] in FINAL:
            self.must(op["state"] == old["state"], "what was over went on", name)

    def _reason(self, op: dict[str, Any], reason: str) -> None:
        """Nothing stops for a reason that is not there: contract and credential never change."""
        self.must(reason not in NEVER, "stopped without a cause", f"{op['id']} {reason}")
        if reason == "contract_changed":  # only what was decided may be over
            over = self.rows(
                "SELECT 1 FROM authorisations WHERE case_id = ? AND expires_at < ?",
                op["authorisation"],
                self.host.now().wall,
            )
            self.must(bool(over), "stopped without a cause", f"{op['id']} {reason}")

    def _reserved(
        self, attempt: dict[str, Any], old: dict[str, Any] | None, paused: frozenset[str]
    ) -> None:
        """A permit was made."""
        name = f"attempt {attempt['number']} of {attempt['operation_id']}"
        self.note(f"reserved {name} ({attempt['step']})")
        if old is not None:
            self.must(old["state"] not in FINAL, "a permit for what is over", name)
            self.must(old["state"] != "escalated", "a permit for what is with a person", name)
            self.must(old["approve_by"] is None, "a permit before the approval", name)
        stopped = paused and attempt["step"] != "lookup"
        self.must(not stopped, "a permit while paused", name)
        open_ones = [
            one
            for one in self.attempts.values()
            if one["operation_id"] == attempt["operation_id"] and one["closed_at"] is None
        ]
        self.must(len(open_ones) <= 1, "two open attempts of one operation", name)

    def _closed(self, old: dict[str, Any], attempt: dict[str, Any]) -> None:
        name = f"attempt {attempt['number']} of {attempt['operation_id']}"
        self.note(f"{name}: {attempt['outcome']} {attempt['status'] or ''}")
        if old["closed_at"] is not None:
            later = attempt["late"] and not old["late"]
            self.must(bool(later), "a stored outcome changed", name)
        if attempt["outcome"] == "not_sent":
            mine = [one for one in self.provider.exchanges if one.attempt == attempt["id"]]
            self.must(not mine, "what was sent is called not sent", name)

    # --- at every first byte ------------------------------------------------------------------

    def first_byte(self, socket: Socket, data: bytes) -> Exchange | None:
        """Bytes leave a process. A new exchange where they begin a request."""
        for one in reversed(self.provider.exchanges):
            if one.socket is socket:
                if not one.arrived:
                    return None
                break
        head = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        ref = next(
            (line.partition(":")[2].strip() for line in head if line.lower().startswith("x-ref:")),
            "",
        )
        process = next(one for one in self.processes if one.lane is socket.lane)
        number = len(self.provider.exchanges) + 1
        true = self.host.true
        exchange = Exchange(number, socket, true / 1_000, method, path, ref, process.owner)
        self.provider.exchanges.append(exchange)
        self.note(f"{process.name} sends {method} {path} of {ref}")
        now = self.host.now()
        open_ones = self.rows(
            "SELECT a.id, a.owner, a.send_by, a.hold_until, a.reserved_at, a.reserved_boot,"
            " o.action FROM attempts a JOIN operations o ON o.id = a.operation_id"
            " WHERE o.ref = ? AND a.closed_at IS NULL",
            ref,
        )
        mine = [row for row in open_ones if row["owner"] == process.owner]
        self.must(bool(mine), "a request without a committed reservation", f"{method} {path}")
        if not mine:
            return exchange
        attempt = mine[0]
        used = [one for one in self.provider.exchanges if one.attempt == attempt["id"]]
        self.must(not used, "a permit was used twice", f"{method} {path}")
        self.must(now.wall <= attempt["send_by"], "a request after send_by", f"{method} {path}")
        window = attempt["send_by"] - attempt["reserved_at"]
        spent = now.boot - attempt["reserved_boot"]
        self.must(spent <= window, "a request after send_by", f"{method} {path} (boot)")
        exchange.attempt = attempt["id"]
        hold = attempt["hold_until"] - attempt["reserved_at"] + attempt["reserved_boot"]
        exchange.hold_until = (hold - now.boot + true) / 1_000
        self._slots(exchange)
        return exchange

    def _slots(self, new: Exchange) -> None:
        """What is out, within the time that it is given, has a slot of each of its scopes."""
        for scope in self.contract.scopes:
            out = [one for one in self.provider.exchanges if self._counts(one, scope.actions)]
            if new in out:
                most = scope.max_concurrent_requests
                self.must(len(out) <= most, "slots are exceeded", f"{len(out)} of {scope.name}")

    def _counts(self, one: Exchange, actions: Sequence[str]) -> bool:
        now = self.host.true / 1_000
        if one.heard or not one.socket.open or one.socket.lane.dead or now > one.hold_until:
            return False
        if any(one.at < jump / 1_000 <= now for jump in self.jumps):
            return False
        return "*" in actions or self.action_of(one.ref) in actions

    def action_of(self, ref: str) -> str:
        return next((op["action"] for op in self.operations.values() if op["ref"] == ref), "")

    def set_back(self, ms: int) -> None:
        """The wall clock was set back: what is due by it comes so much later."""
        self.behind += ms

    # --- as time goes by ----------------------------------------------------------------------

    def at_work(self) -> None:
        """Note whether anybody is at work: called whenever a process begins, ends or stands."""
        works = any(one.up for one in self.processes)
        if not works:
            self.worked_since = None
        elif self.worked_since is None:
            self.worked_since = self.host.true

    def nothing_is_forgotten(self) -> None:
        """Whatever is over its end, and somebody was there to end it, has ended."""
        if self.worked_since is None:
            return
        now = self.host.now().wall
        since = self.host.true - self.worked_since
        jumped = self.host.true - self.jumps[-1] if self.jumps else since
        for op in self.operations.values():
            if op["state"] in (*FINAL, "escalated"):
                continue
            ends = max(op["deadline_at"], op["once_until"] or 0, op["approve_by"] or 0)
            late = min(now - ends, since, jumped)
            self.must(late <= LATE, "an operation outlived its deadline", f"{op['id']} {late} ms")

    # --- at the end ---------------------------------------------------------------------------

    def rest(self) -> bool:
        """Whether every operation has ended or waits for a person, and no attempt is open."""
        now = self.host.now().wall

        def rests(op: dict[str, Any]) -> bool:
            # A decision's single permit may wait for a day: for the provider's word, or a key.
            far = (op["next_at"] or 0) > now + 2 * LATE or op["waiting_for"] == "credential"
            waits = op["once_until"] is not None and far
            return op["state"] in (*FINAL, "escalated") or waits

        over = all(rests(op) for op in self.operations.values())
        return over and all(one["closed_at"] is not None for one in self.attempts.values())

    def at_the_end(self) -> None:
        self._effects()
        self._truth()
        self._rates()
        self._evidence()
        self._requests()
        self._decisions()

    def _effects(self) -> None:
        by_ref, by_item = Counter[str](), Counter[str]()
        for effect in self.provider.effects:
            by_ref[effect.ref] += 1
            by_item[effect.item] += 1
        for op in self.operations.values():
            if op["kind"] not in ("job", "call"):
                continue
            made = by_ref[op["ref"]]
            if op["action"] in published.KEYED:
                self.must(made <= 1, "a keyed effect happened twice", op["id"])
            else:
                self.must(made <= 1, "an unkeyed effect happened twice", op["id"])
        for item, made in by_item.items():
            if item not in self.approved:
                self.must(made <= 1, "the same intent took effect twice", f"{item}: {made}")
        for op in self.operations.values():
            finds = op["action"] in (*published.KEYED, *published.FINDABLE, *published.READS)
            if op["kind"] in ("job", "call") and not finds and op["id"] not in self.touched:
                came = self.provider.arrivals.get(op["ref"], 0)
                if came > 1:
                    self._sent_again(op, came)

    def _sent_again(self, op: dict[str, Any], came: int) -> None:
        """A write with neither key nor lookup goes out again only where it was surely refused."""
        self.must(False, "an unfindable write was sent again", f"{op['id']}: {came}")

    def _truth(self) -> None:
        """What is said of effects is so."""
        for op in self.operations.values():
            if op["kind"] not in ("job", "call") or op["action"] in published.READS:
                continue
            made = self.provider.made(op["ref"])
            if op["id"] in self.touched:
                continue
            if op["certainty"] in ("not_sent", "not_applied") and op["lease_owner"] is None:
                self.must(not made, "an effect is denied", f"{op['id']} is {op['certainty']}")
            if op["state"] == "succeeded":
                self.must(bool(made), "a success without an effect", op["id"])

    def _rates(self) -> None:
        """Of what left, no stretch of the published length has more than the published count."""
        left = [
            (attempt["reserved_boot"], self.operations[attempt["operation_id"]]["action"])
            for attempt in self.attempts.values()
            if attempt["outcome"] != "not_sent"
        ]
        booted = self.host.now().boot - self.host.true
        for scope in self.contract.scopes:
            times = sorted(
                at - booted
                for at, action in left
                if "*" in scope.actions or action in scope.actions
            )
            count, per = scope.rate
            for index, start in enumerate(times):
                breaks = [jump for jump in self.jumps if start < jump <= start + per]
                end = min([start + per, *breaks])
                many = sum(at < end for at in times[index:])
                self.must(many <= count, "a rate is exceeded", f"{many} of {scope.name}")

    def unkept(self, within: float = 1e9) -> list[str]:
        """Answers that reached a process which lives, this long ago at the most, and are not
        stored, however late they came."""
        found: list[str] = []
        since = self.loop.time() - within
        for one in self.provider.exchanges:
            attempt = self.attempts.get(one.attempt)
            if attempt is None or not one.in_time or one.heard_at < since or one.socket.lane.dead:
                continue
            process = next(each for each in self.processes if each.lane is one.socket.lane)
            kept = attempt["outcome"] == "answered" and str(attempt["status"]) == one.answered
            if process.up and not kept:
                found.append(f"{one.method} {one.path} -> {one.answered} {attempt}")
        return found

    def _evidence(self) -> None:
        for one in self.unkept():
            self.must(False, "an answer was not kept", one)

    def _requests(self) -> None:
        """The store knows of every request, and counts each."""
        sent = Counter[tuple[str, str]]()
        for one in self.provider.exchanges:
            attempt = self.attempts.get(one.attempt)
            if attempt is not None:
                sent[attempt["operation_id"], attempt["step"]] += 1
        names = {"send": "attempts", "status": "status_requests", "lookup": "lookups"}
        pages = ("pages",)
        for (name, step), count in sent.items():
            op = self.operations[name]
            if op["action"] in pages:
                continue
            used = op[f"{names[step]}_used"]
            self.must(count <= used, "requests that were not counted", f"{name} {step}")

    async def audited(self, store: Store) -> None:
        """The trail tells state and budgets of every operation."""
        for name in self.operations:
            op, history = await store.read.operation(name), await store.read.events_of(name)
            assert op is not None
            kept, row = rebuilt(history), told(op)
            differs = {key for key in row if kept.get(key) != row[key]}
            self.must(not differs, "state and audit differ", f"{name} {sorted(differs)}")

    def verified(self) -> None:
        """The trail is whole."""
        with verifying.read(self.path) as evidence:
            broken = verifying.verify(evidence).broken
        self.must(broken is None, "the audit log is broken", str(broken))

    def _decisions(self) -> None:
        for case, times in self.decided.items():
            self.must(times <= 1, "a decision was used twice", case)
        spent = defaultdict[str, int](int)
        for row in self.rows("SELECT case_id, attempt_id FROM authorisations"):
            if row["attempt_id"] is not None:
                spent[row["attempt_id"]] += 1
        for attempt, times in spent.items():
            self.must(times <= 1, "two decisions for one attempt", attempt)


__all__ = ["LATE", "START", "Laws"]
