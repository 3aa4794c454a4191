"""The signed webhook that is told of open cases (requirement E14), after Standard Webhooks 1.0.

Every try is committed before it leaves (`announcing.announce`) and goes out in a task of its own,
so that a slow or dead webhook delays no operation. What is sent is the case text: the facts and
the options, no raw body and no secret. It decides nothing; it carries a link to where one can.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from forbear.rules.model import Case
from forbear.rules.ports import Clock, Outbound, Reply
from forbear.server.credentials import Credentials, MissingCredential
from forbear.server.tables import Notify
from forbear.storage import announcing
from forbear.storage.announcing import Telling
from forbear.storage.errors import StoreError
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools.times import rfc3339

TIMEOUT = 10_000
"""Total time of one try, ms."""

MOST = 8
"""Tries under way at a time; what is due beyond that waits for the next round."""

SHORTEST_KEY = 24
"""Bytes of a signing key (Standard Webhooks asks for 24 to 64)."""

LAST = "notified.json"
"""In the home: when the webhook last took a telling, and when and why it last did not."""

_PREFIX = "whsec_"
_log = logging.getLogger(__name__)

Post = Callable[[Outbound], Awaitable[Reply]]


class Herald:
    """Sends tellings to one webhook. Close it with `aclose`."""

    def __init__(
        self,
        notify: Notify,
        store: Store,
        post: Post,
        credentials: Credentials,
        clock: Clock,
        console: str,
    ) -> None:
        """`console` is the address of the console in links, where none is served right now."""
        self._notify = notify
        self._store = store
        self._post = post
        self._credentials = credentials
        self._clock = clock
        self._console = console
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def free(self) -> bool:
        """Whether one more telling can be sent now."""
        return len(self._under_way) < MOST

    def wants(self, case: Case) -> bool:
        """Whether it is urgent enough to be sent."""
        return self._notify.wants(case)

    def tell(self, telling: Telling, holding: Holding | None, alike: int = 1) -> None:
        """Send a telling that is committed; returns at once.

        It speaks for `alike` open cases: itself, and the others of its group.
        """
        send = self._send(telling, holding, alike)
        sending = asyncio.create_task(send, name=f"tell {telling.case.id}")
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)

    async def aclose(self) -> None:
        """Stop. A try that is cut off counts; another process goes on with the rest."""
        for sending in self._under_way:
            sending.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _send(self, telling: Telling, holding: Holding | None, alike: int) -> None:
        try:
            wrong = await self._try(telling, alike)
            if wrong is None:
                now = self._clock.now().wall
                arrived = partial(announcing.delivered, telling=telling, holding=holding, now=now)
                await self._store.write(arrived)
            else:
                _log.warning("case %s could not be told: %s", telling.case.id, wrong)
            await asyncio.to_thread(self._note, wrong)
        except (StoreError, OSError) as error:
            _log.warning("telling of case %s: %s", telling.case.id, error)
        except Exception:
            _log.exception("telling of case %s failed", telling.case.id)

    async def _try(self, telling: Telling, alike: int) -> str | None:
        """One try; None if it was taken, else what went wrong."""
        key = signing_key(self._notify, self._credentials)
        if isinstance(key, str):
            return key
        now = self._clock.now().wall
        body = message(telling, self._store.console() or self._console, alike)
        fields = signed(body, telling, key, now // 1_000)
        request = Outbound("POST", self._notify.webhook, fields, body, False, timeout=TIMEOUT)
        reply = await self._post(request)
        if reply.status is None or not reply.complete:
            return f"{self._notify.place}: {reply.detail or reply.fault}"
        return None if 200 <= reply.status < 300 else f"{self._notify.place} said {reply.status}"

    def _note(self, wrong: str | None) -> None:
        now = self._clock.now().wall
        known = last(self._store.home)
        known |= {"worked_at": now} if wrong is None else {"failed_at": now, "why": wrong}
        path = self._store.home / LAST
        draft = path.with_suffix(f".{self._store.liveness.owner}")
        draft.write_text(json.dumps(known), encoding="utf-8")
        draft.replace(path)


def last(home: Path) -> dict[str, Any]:
    """What is known of the webhook of a home: `worked_at`, `failed_at` (ms) and `why`."""
    try:
        known: object = json.loads((home / LAST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], known) if isinstance(known, dict) else {}


def signing_key(notify: Notify, credentials: Credentials) -> bytes | str:
    """The key of the signatures, or why there is none.

    `whsec_` before it says that the rest is Base64; anything else is taken as it is.
    """
    secret = credentials.secret(notify.secret)
    if isinstance(secret, MissingCredential):
        return str(secret)
    key = secret.encode()
    if secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            return f"{notify.secret}: what follows {_PREFIX} is not Base64 -> copy it again"
    if len(key) < SHORTEST_KEY:
        return f"{notify.secret}: shorter than {SHORTEST_KEY} bytes -> use a longer one"
    return key


def message(telling: Telling, console: str, alike: int) -> bytes:
    """The body: what a person needs to see that, and where, something is to be decided."""
    case = telling.case
    told = {
        "type": "case.announced",
        "timestamp": rfc3339(telling.at),
        "data": {
            "case": case.id,
            "number": case.number,
            "operation_id": case.operation_id,
            "reason": str(case.reason),
            "urgency": case.urgency,
            "text": case.text,
            "options": [str(option["id"]) for option in case.options],
            "decide_at": f"{console}/escalations/{case.id}",
            "opened_at": rfc3339(case.opened_at),
            "times": telling.times,
            "group": case.group,
            "alike": alike,
        },
    }
    return json.dumps(told, separators=(",", ":")).encode("ascii")


def signed(
    body: bytes, telling: Telling, key: bytes, timestamp: int
) -> tuple[tuple[str, str], ...]:
    """The headers of one try: its id is the same for every try of a telling."""
    name = f"{telling.case.id}.{telling.times}"
    content = f"{name}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode("ascii")
    return (
        ("Content-Type", "application/json"),
        ("webhook-id", name),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", f"v1,{signature}"),
    )
