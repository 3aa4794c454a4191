"""A provider to try things on: real sockets, scripted faults, and a memory of what it did.

It keeps jobs and records as a simple provider would and counts whatever arrives. A script for a
route is played first, one step per request; when it is used up, the provider behaves.

    async with FakeProvider() as provider:
        provider.job("exp_1", ["queued", "running", "done"], result={"rows": 3})
        provider.script("GET /exports/exp_1", retry_after(2), Drop("after", "rst"))
        ...
        assert provider.count("POST /exports") == 1

`python -m forbear.server.fake` runs it as a process for several others: it prints its address,
lists arrivals at `GET /__arrivals`, effects at `GET /__effects`, takes jobs at `POST /__job`,
scripts at `POST /__script` and opens gates at `POST /__release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from forbear.server.listener import Answer, Arrival, Drop, Json, Listener, Raw, Step

__all__ = [
    "ON_CONNECT",
    "Answer",
    "Arrival",
    "Drop",
    "Effect",
    "FakeProvider",
    "Json",
    "Raw",
    "Step",
    "gzip_bomb",
    "huge_head",
    "retry_after",
]

ON_CONNECT = "CONNECT"
"""The route whose script is played when a connection is accepted, before anything is read."""


def retry_after(seconds: int | str, status: int = 429) -> Answer:
    """The usual refusal for now."""
    return Answer(status, {"error": "later"}, (("Retry-After", str(seconds)),))


def gzip_bomb(size: int = 50_000_000) -> Answer:
    """`size` zeros in a thousandth of the bytes."""
    return Answer(body=bytes(size), gzip=True)


def huge_head(fields: int = 2_000, width: int = 100) -> Answer:
    return Answer(json={}, headers=tuple((f"X-Filler-{n}", "x" * width) for n in range(fields)))


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that was created, once per entry: the truth that duplicates show up in."""

    collection: str
    id: str
    key: str | None
    ref: str | None
    body: Json


@dataclass(slots=True)
class _Item:
    """A job, or any other created thing: a state sequence that moves with each look."""

    id: str
    collection: str = "/exports"
    states: tuple[str, ...] = ("done",)
    result: Json = None
    looks: int = 0
    body: Json = None
    key: str | None = None
    ref: str | None = None

    @property
    def state(self) -> str:
        return self.states[min(self.looks, len(self.states) - 1)]

    @property
    def ended(self) -> bool:
        return self.looks >= len(self.states) - 1


@dataclass
class FakeProvider(Listener):
    """One provider on a port of its own."""

    honours_keys: bool = True
    """Whether an Idempotency-Key makes a repeated POST return the first outcome."""
    page_size: int = 1_000
    """Items in one page of a list; `next` is the cursor of the page after it."""
    effects: list[Effect] = field(default_factory=list[Effect])

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scripts: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._planned: defaultdict[str, deque[_Item]] = defaultdict(deque)
        self._items: dict[tuple[str, str], _Item] = {}

    # --- for tests and demonstrations -----------------------------------------------------

    def script(self, route: str, *steps: Step) -> None:
        """Play these steps, one per request, for `"GET /path"`, `"GET /prefix/"` or CONNECT."""
        self._scripts[route].extend(steps)

    def job(
        self,
        id: str,
        states: Sequence[str],
        result: Json = None,
        *,
        collection: str = "/exports",
        existing: bool = False,
        ref: str | None = None,
    ) -> None:
        """The next POST to `collection` creates this job; or it exists already, under `ref`."""
        item = _Item(id, collection, tuple(states), result, ref=ref)
        if existing:
            self._items[collection, id] = item
        else:
            self._planned[collection].append(item)

    def count(self, route: str) -> int:
        """Requests that arrived whole on a route; one that ends in a slash counts what is below."""
        return sum(_matches(route, arrival) for arrival in self.arrivals)

    async def arrived(self, route: str, number: int = 1) -> None:
        """Wait until that many requests have arrived."""
        while self.count(route) < number:
            self._arrived.clear()
            await self._arrived.wait()

    # --- answers --------------------------------------------------------------------------

    def _greet(self) -> Step | None:
        if not self._scripts[ON_CONNECT]:
            return None
        step = self._scripts[ON_CONNECT].popleft()
        return step if not isinstance(step, Drop) or step.when == "before" else None

    def _next(self, arrival: Arrival) -> Step:
        routes = sorted((route for route, steps in self._scripts.items() if steps), key=len)
        for route in reversed(routes):
            if _matches(route, arrival):
                step = self._scripts[route].popleft()
                if not isinstance(step, Raw) and step.effect:
                    self._behave(arrival)
                return step
        return self._behave(arrival)

    # --- behaviour ------------------------------------------------------------------------

    def _behave(self, arrival: Arrival) -> Answer:
        """What a simple provider does: create, list, look, fetch the result, cancel."""
        path = arrival.path.rstrip("/") or "/"
        parent, _, last = path.rpartition("/")
        grandparent, _, middle = parent.rpartition("/")
        if arrival.method == "POST":
            job = self._items.get((grandparent, middle))
            if last == "cancel" and job is not None:
                if not job.ended:
                    job.states, job.looks = ("cancelled",), 0
                return Answer(202, self._shown(job))
            return self._create(path, arrival)
        if arrival.method not in ("GET", "HEAD"):
            return Answer(405, {"error": "method"})
        if parent == "/files":
            found = [item for item in self._items.values() if item.id == last]
            return Answer(json=found[0].result) if found else Answer(404, {"error": "unknown"})
        item = self._items.get((parent, last))
        if item is not None:
            shown = self._shown(item)
            item.looks += 1
            return Answer(json=shown)
        if any(collection == path for collection, _ in (*self._items, *self._known())):
            wanted = arrival.query.get("client_ref")
            items = [item for (collection, _), item in self._items.items() if collection == path]
            chosen = [item for item in items if wanted is None or item.ref == wanted]
            return self._page(chosen, int(arrival.query.get("cursor") or "0"))
        return Answer(404, {"error": "unknown"})

    def _page(self, items: list[_Item], start: int) -> Answer:
        end = start + self.page_size
        more = str(end) if end < len(items) else None
        return Answer(json={"items": [self._shown(one) for one in items[start:end]], "next": more})

    def _known(self) -> list[tuple[str, str]]:
        return [("/exports", ""), *((collection, "") for collection in self._planned)]

    def _create(self, collection: str, arrival: Arrival) -> Answer:
        key = arrival.headers.get("idempotency-key")
        try:
            body = arrival.json() if arrival.body else None
        except ValueError:
            return Answer(400, {"error": "body"})
        if key is not None and self.honours_keys:
            for item in self._items.values():
                if (item.collection, item.key) == (collection, key):
                    if item.body != body:
                        return Answer(422, {"error": "key_reused"})
                    return Answer(202, self._shown(item), (("Idempotency-Replayed", "true"),))
        ref = body.get("client_ref") if isinstance(body, dict) else None
        planned = self._planned[collection]
        item = planned.popleft() if planned else _Item(f"{len(self.effects) + 1}", collection)
        item.body, item.key, item.ref = body, key, ref
        self._items[collection, item.id] = item
        self.effects.append(Effect(collection, item.id, key, ref, body))
        place = f"{collection}/{item.id}"
        return Answer(202, self._shown(item), (("Location", place),))

    def _shown(self, item: _Item) -> Json:
        shown: dict[str, Json] = {"id": item.id, "state": item.state, "client_ref": item.ref}
        if item.ended and item.result is not None:
            shown["result"] = {"url": f"{self.base_url}/files/{item.id}"}
        return shown

    # --- control of a process -------------------------------------------------------------

    def _control(self, arrival: Arrival) -> Answer:
        match arrival.method, arrival.path:
            case "GET", "/__arrivals":
                return Answer(json=[_as_json(each) for each in self.arrivals])
            case "GET", "/__effects":
                return Answer(json=[_as_json(each) for each in self.effects])
            case "POST", "/__script":
                wish = arrival.json()
                self.script(wish["route"], *(_step(each) for each in wish["steps"]))
            case "POST", "/__job":
                self.job(**arrival.json())
            case "POST", "/__release":
                self.release(arrival.json()["gate"])
            case _:
                return Answer(404, {"error": "no such control"})
        return Answer(204)


def _matches(route: str, arrival: Arrival) -> bool:
    method, _, path = route.partition(" ")
    if method != arrival.method:
        return False
    return arrival.path.startswith(path) if path.endswith("/") else arrival.path == path


def _step(wish: dict[str, Json]) -> Step:
    """A step as `POST /__script` states it: `{"do": "answer", "status": 429, …}`."""
    kinds: dict[str, type[Step]] = {"answer": Answer, "drop": Drop, "raw": Raw}
    named = {name: value for name, value in wish.items() if name != "do"}
    if "headers" in named:
        named["headers"] = tuple((name, value) for name, value in named["headers"])
    return kinds[wish["do"]](**named)


def _as_json(seen: Arrival | Effect) -> Json:
    shown = {name: getattr(seen, name) for name in seen.__slots__}
    if isinstance(seen, Arrival):
        shown["body"] = seen.body.decode("utf-8", "replace")
    return shown


async def _main() -> None:
    async with FakeProvider() as provider:
        sys.stdout.write(f"{provider.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
