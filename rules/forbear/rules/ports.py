"""What the pure core and the layers above need from the outside, as protocols and plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of all clocks. `boot` counts suspend and belongs to `boot_id` only."""

    wall: int
    """Milliseconds since the epoch, UTC."""
    boot: int
    """Milliseconds of CLOCK_BOOTTIME (or the system's equivalent)."""
    boot_id: str


class Clock(Protocol):
    def now(self) -> Moment: ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the monotonic clock."""
        ...


class Random(Protocol):
    def uniform(self) -> float:
        """A number in [0, 1)."""
        ...

    def token(self, size: int) -> str:
        """`size` characters of unguessable lower-case base32."""
        ...


@dataclass(frozen=True, slots=True)
class Outbound:
    """A rendered request without secrets. Its digest is what approvals and attempts bind to."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    authenticate: bool = True
    """Whether the provider's credential goes on this request."""
    secret: str | None = None
    """Reference of a narrower secret for this request, in place of the provider's own."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that the request itself names, beside the base URL's origin and the contract's."""
    from_answer: bool = False
    """The URL came out of a provider answer, so it must pass the same-origin or allow-list rule."""
    max_bytes: int = 1_000_000
    timeout: int = 30_000
    """Total time in ms around connect, write, read and body."""
    fresh_connection: bool = False


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to send one request once. Only a committed reservation makes one."""

    attempt_id: str
    operation_id: str
    fence: int
    send_by: int
    """Wall clock ms."""
    send_by_boot: int
    """CLOCK_BOOTTIME ms on `boot_id`."""
    boot_id: str
    provider: str
    account: str
    for_token: bool = False
    """The request fetches a token for the provider's credential: it goes to `token_url` alone."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What a token request brought. The token itself stays with the sender."""

    why: str
    """Why there is no token, in a few words without a secret; empty if there is one."""
    later: bool = False
    """Asking again may help; else something has to be changed first."""
    wait: int | None = None
    """The least wait that the provider asks for, ms."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one permit.

    `sent` is False only if no byte of the request can have left. `complete` means a whole answer:
    status, headers and every byte of the body. `fault` names what went wrong otherwise.
    """

    sent: bool
    complete: bool
    started_at: int
    ended_at: int
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    url: str = ""
    """The final request URL, base for a relative Location."""
    fault: str | None = None
    """dns, connect, proxy, tls, timeout, closed, malformed, truncated_body, body_too_large,
    headers_too_large, too_late, egress_refused, credential_missing, local."""
    detail: str = ""
    """One line for a person; never a secret, never a query string."""
    token: TokenAnswer | None = None
    """Of a token request that was answered completely; its body is not in the reply."""

    def header(self, name: str) -> str | None:
        """The value of a field sent once; several lines are joined with a comma and a space."""
        found = self.fields(name)
        return ", ".join(found) if found else None

    def fields(self, name: str) -> tuple[str, ...]:
        """The value of each line of a field, in order."""
        wanted = name.lower()
        return tuple(value for key, value in self.headers if key.lower() == wanted)


class Sender(Protocol):
    async def send(self, permit: Permit, request: Outbound) -> Reply:
        """Use the permit. Never raises for anything the network or the provider does."""
        ...


Json = Any
"""A JSON value from a provider: None, bool, str, Number, list, dict. Numbers keep their text."""


class Number(str):
    """A JSON number as its exact decimal text (ids are int64; doubles would round them)."""

    __slots__ = ()
