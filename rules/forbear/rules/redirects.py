"""Redirects of a read: where one leads, whether it is followed, and what goes along.

A redirect is an answer like any other: it settles its attempt, and the request that follows it is
one more attempt with a reservation and a permit of its own. Between the two the address is kept in
`Operation.search`. It serves the very next request only; every later one begins anew at the address
of the contract, so a hop never becomes where a job is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from urllib.parse import urljoin, urlsplit

from forbear.rules.contract import Request
from forbear.rules.model import Operation, State, Step
from forbear.rules.ports import Outbound, Reply
from forbear.rules.reading import read_origin

NONE, SAME_ORIGIN, NO_CREDENTIAL = "none", "same-origin", "no-credential"
"""What a contract may say: follow none; only on the same origin; without anything of ours."""

MAX_HOPS = 3
"""Redirects that one request is followed through."""

_FOLLOWED = frozenset({301, 302, 303, 307, 308})


# --- what an answer says --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Onward:
    """Where a redirect leads: an absolute address without a fragment, or why it is not followed."""

    url: str | None = None
    problem: str = ""


def onward(reply: Reply, request: Request) -> Onward:
    """Where an answer with a 3xx status leads (RFC 9110 sections 10.2.2 and 15.4, RFC 3986).

    Whether the host is allowed is checked where it is sent, as for every address.
    """
    if request.redirect == NONE:
        return Onward(problem="the answer is a redirect, and the contract follows none")
    if reply.status not in _FOLLOWED:
        return Onward(problem=f"HTTP {reply.status} is no redirect that is followed")
    given = [value for name, value in reply.headers if name.lower() == "location"]
    if len(given) != 1 or not given[0]:
        stated = "several Locations" if len(given) > 1 else "no Location"
        return Onward(problem=f"the redirect has {stated}")
    try:
        url = urljoin(reply.url, given[0]).partition("#")[0]
    except ValueError:
        url = ""
    origin = read_origin(url)
    if origin is None or given[0].startswith(
        "///"
    ):  # an empty host, which `urljoin` takes for none
        return Onward(problem="the redirect leads to no absolute https address")
    if url == reply.url:
        return Onward(problem="the redirect leads to itself")
    if request.redirect == SAME_ORIGIN and origin != read_origin(reply.url):
        return Onward(problem=f"the redirect leads to another origin, {place(url)}")
    return Onward(url)


def place(url: str) -> str:
    """The origin of an address, to be shown: never its path, which may hold a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


# --- how far a request is -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hop:
    """One redirect that is followed; kept in `Operation.search` beside what else is there."""

    url: str
    step: Step
    fence: int
    """Of the attempt that was redirected."""
    passed: tuple[str, ...]
    """Digests of the addresses that this request was sent to so far, without its first."""

    @property
    def number(self) -> int:
        return len(self.passed)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.lower()

    @staticmethod
    def due(op: Operation) -> Hop | None:
        """The hop that the next request of `op` takes; None if it goes where its contract says."""
        hop = _kept(op)
        return hop if hop is not None and hop.fence == op.fence else None

    @staticmethod
    def taken(op: Operation) -> Hop | None:
        """The hop that the last attempt of `op` took."""
        hop = _kept(op)
        return hop if hop is not None and hop.fence == op.fence - 1 else None

    @staticmethod
    def after(op: Operation, url: str) -> Hop | str:
        """The hop to the address that the attempt just closed was redirected to, or why not."""
        before = Hop.taken(op)
        passed = () if before is None else before.passed
        digest = sha256(url.encode()).hexdigest()[:16]
        if digest in passed:
            return "the redirects lead in a circle"
        if len(passed) >= MAX_HOPS:
            return f"the request was redirected more than {MAX_HOPS} times"
        return Hop(url, op.step, op.fence, (*passed, digest))

    def kept(self, op: Operation) -> Mapping[str, object]:
        """The value of `Operation.search` with this hop."""
        hop = {"url": self.url, "step": str(self.step), "fence": self.fence}
        return {**(op.search or {}), "hop": {**hop, "passed": list(self.passed)}}

    def requested(self, request: Outbound, mode: str) -> Outbound:
        """The request that follows this redirect in place of `request`.

        Beyond `same-origin` nothing of ours goes along: no credential and no header.
        """
        moved = replace(request, url=self.url, from_answer=True)
        return moved if mode == SAME_ORIGIN else replace(moved, headers=(), authenticate=False)


def _kept(op: Operation) -> Hop | None:
    kept = (op.search or {}).get("hop")
    if kept is None or kept["step"] != op.step:
        return None
    return Hop(kept["url"], op.step, kept["fence"], tuple(kept["passed"]))


def follows(op: Operation) -> bool:
    """Whether a read, which nothing else holds up, is on its way to where it was redirected."""
    match op.state:
        case State.DELAYED:
            return Hop.due(op) is not None
        case State.SENDING:
            return Hop.taken(op) is not None
        case _:
            return False


def forgotten(op: Operation) -> Mapping[str, object]:
    """The changes after which no hop is kept; none if there is no hop."""
    if "hop" not in (op.search or {}):
        return {}
    rest = {name: value for name, value in (op.search or {}).items() if name != "hop"}
    return {"search": rest or None}
