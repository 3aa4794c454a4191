"""The proxy of `config.toml`: a tunnel through it is opened before anything of a request leaves.

What the proxy is told is a name, a port and its own credential. Whatever goes wrong here happened
before the provider's request: no byte of that has left. Of the proxy's answer only the status code
is kept. It resolves the name, so which address that has is no longer for us to check.
"""

from __future__ import annotations

from dataclasses import dataclass

from forbear.rules.contract import Auth
from forbear.server.credentials import Credentials, MissingCredential
from forbear.server.egress import Origin, Resolver, lists
from forbear.server.wire import Wire, system_words

MAX_ANSWER = 16_384
"""Bytes of the proxy's answer to CONNECT."""

_NO_LOGIN = Auth("none")


@dataclass(frozen=True, slots=True)
class Proxy:
    """What `[proxy]` says."""

    host: str
    port: int
    auth: Auth = _NO_LOGIN
    """Its own credential (basic), which no provider gets."""
    no_proxy: tuple[str, ...] = ()
    """Hosts that are reached directly, written as in `allow_hosts`."""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    def serves(self, origin: Origin) -> bool:
        """Whether an origin is reached through the proxy: all but this machine and `no_proxy`."""
        return not origin.loopback and not lists(self.no_proxy, origin)


class NoTunnel(Exception):
    """There is no way through the proxy; `str` says why, with nothing secret in it."""


class Tunnels:
    """Opens tunnels through one proxy."""

    def __init__(self, proxy: Proxy, credentials: Credentials, resolver: Resolver) -> None:
        self._proxy = proxy
        self._credentials = credentials
        self._resolver = resolver

    def serves(self, origin: Origin) -> bool:
        return self._proxy.serves(origin)

    @property
    def place(self) -> str:
        return self._proxy.place

    async def open(self, origin: Origin, ends: float) -> Wire:
        """A connection to `origin` through the proxy (RFC 9110 section 9.3.6), without TLS yet.

        `ends` is the time of the event loop at which the caller gives up. Raises `NoTunnel`.
        """
        fields = await self._credential()
        try:
            addresses = await self._resolver.look_up(self._proxy.host)
            wire = await Wire.dial(addresses, self._proxy.port, ends)
        except OSError as error:
            raise self._failed(f"was not reached: {system_words(error)}") from None
        try:
            host = f"[{origin.host}]" if ":" in origin.host else origin.host
            authority = f"{host}:{origin.port}"
            lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *fields, "", ""]
            await wire.send("\r\n".join(lines).encode("latin-1"))
            status = await self._status(wire)
        except OSError as error:
            wire.abort()
            raise self._failed(f"did not answer: {system_words(error)}") from None
        except BaseException:
            wire.abort()
            raise
        if 200 <= status <= 299:
            return wire
        wire.abort()
        if status == 407:
            self._credentials.refused(self._proxy.auth)
        raise self._failed(f"answered {status} to CONNECT {authority}")

    async def _credential(self) -> list[str]:
        await self._credentials.arrived(self._proxy.auth)
        credential = self._credentials.resolve(self._proxy.auth)
        if isinstance(credential, MissingCredential):
            raise self._failed(f"needs its credential, {credential}")
        return [f"Proxy-Authorization: {value}" for _, value in credential.headers()]

    async def _status(self, wire: Wire) -> int:
        """The status code of the answer, of which every byte is read."""
        head = bytearray()
        while b"\r\n\r\n" not in head:
            data = await wire.receive(4_096)
            head += data
            if not data or len(head) > MAX_ANSWER:
                raise self._failed("gave no whole answer to CONNECT")
        version, _, rest = head.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise self._failed("gave an answer to CONNECT that is not HTTP")
        status = int(rest[:3])
        if 200 <= status <= 299 and not head.endswith(b"\r\n\r\n"):
            raise self._failed("sent more than its answer to CONNECT")
        return status

    def _failed(self, what: str) -> NoTunnel:
        return NoTunnel(f"the proxy {self.place} {what}")
