"""The network guard: which addresses a request may go to, decided before a socket is opened.

Two gates. `check_url` compares the URL with the contract as text and knows no network. `Resolver`
turns the host into addresses once, and every one of them must pass `check_address`; the sender
connects to exactly these. Whatever is not understood is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")  # RFC 3986, section 2
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Origin:
    """RFC 6454: scheme, host in lower case (IPv6 without brackets), port."""

    scheme: str
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether the host is this machine by its very name, whatever a resolver says."""
        if self.host == "localhost":
            return True
        address = _literal(self.host)
        return address is not None and address.is_loopback


def read_origin(url: str) -> Origin | str:
    """The origin of an absolute http or https URL, or why it is refused.

    Only one spelling of each host passes: no user information, fragment, dot segment, trailing dot,
    zone, percent-encoded or non-ASCII name, and no number that some resolvers read as an address.
    """
    if not _URL.fullmatch(url):
        return "has characters that a URL cannot hold"
    if "#" in url:
        return "has a fragment"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in _PORTS:
        return "is not an https URL"
    if "@" in parts.netloc:
        return "has user information before the host"
    if {".", ".."} & set(unquote(parts.path).split("/")):
        return "has a dot segment in its path"
    if parts.netloc.endswith(":") or port == 0:
        return "has an empty port"
    host = (parts.hostname or "").lower()
    if (parts.netloc.startswith("[")) != (":" in host):
        return "has no valid host"
    if not _valid_host(host):
        return "has a host in a form that is not accepted"
    return Origin(parts.scheme, host, port or _PORTS[parts.scheme])


@lru_cache(maxsize=64)
def _base_origin(base_url: str) -> Origin | str:
    """Kept, as contracts have few. Other addresses may hold a secret, and are not."""
    return read_origin(base_url)


def check_url(
    url: str, base_url: str, allow_hosts: Sequence[str], from_answer: bool = False
) -> str | None:
    """None if a request may go to `url`; otherwise the reason, without path and query.

    Allowed are the origin of `base_url` and the hosts of `allow_hosts`: `host` means port 443,
    else `host:port`; `*.host` is one leading label. Plain http is for this machine alone, and only
    if `base_url` is on this machine.
    """
    whose = "the address in the provider's answer" if from_answer else "the address"
    base = _base_origin(base_url)
    if isinstance(base, str):
        return f"base_url {base}"
    origin = read_origin(url)
    if isinstance(origin, str):
        return f"{whose} {origin}"
    if origin.loopback and not base.loopback:
        return f"{whose} is on this machine, the provider is not"
    if origin.scheme == "http" and not origin.loopback:
        return f"{whose} is not an https URL"
    if origin == base or lists(allow_hosts, origin):
        return None
    place = f"{origin.scheme}://{origin.host}:{origin.port}"
    return f"{whose} leads to {place}, which is neither base_url's origin nor in allow_hosts"


def takes_credential(url: str, base_url: str, request_hosts: Sequence[str]) -> bool:
    """Whether the provider's credential may go to `url`, which `check_url` has accepted.

    Only base_url's origin gets it, at paths below base_url's own, and hosts that the request itself
    names exactly.
    """
    origin = read_origin(url)
    if isinstance(origin, str):
        return False
    exact = (entry for entry in request_hosts if not entry.startswith("*"))
    ours = origin == _base_origin(base_url) and _is_below(urlsplit(url).path, base_url)
    return ours or any(_allows(entry, origin) for entry in exact)


def lists(hosts: Sequence[str], origin: Origin) -> bool:
    """Whether a list of hosts, written as `allow_hosts`, names an origin."""
    return any(_allows(entry, origin) for entry in hosts)


def _is_below(path: str, base_url: str) -> bool:
    """Whether a path without dot segments is base_url's own, or below it."""
    base = urlsplit(base_url).path.rstrip("/")
    return path == base or path.startswith(f"{base}/") or not base


def _allows(entry: str, origin: Origin) -> bool:
    stated = ":" in entry and not entry.endswith("]")
    name, _, port = (entry if stated else f"{entry}:443").lower().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) != origin.port:
        return False
    if name.startswith("*."):
        label, _, rest = origin.host.partition(".")
        return rest == name[2:] and bool(label) and _literal(origin.host) is None
    return name.strip("[]") == origin.host


def _valid_host(host: str) -> bool:
    if ":" in host:
        address = _literal(host)
        return address is not None and str(address) == host and "%" not in host
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    if labels[-1].isdigit() or re.fullmatch(r"0x[0-9a-f]*", labels[-1]):
        return _literal(host) is not None
    return True


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address if `host` is one in its usual spelling (no octal, hexadecimal or short forms)."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_REFUSED = [
    (ipaddress.ip_network(network), kind)
    for network, kind in (
        ("169.254.0.0/16", "link-local or metadata"),
        ("168.63.129.16/32", "metadata"),
        ("192.0.0.0/24", "protocol assignment or metadata"),
        ("100.64.0.0/10", "carrier-grade NAT or metadata"),
        ("192.88.99.0/24", "6to4 relay"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2002::/16", "6to4"),
        ("2001::/32", "Teredo"),
        ("fc00::/7", "private or metadata"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
    )
]


def check_address(address: str, *, loopback: bool) -> str | None:
    """None if one may connect to this resolved address; otherwise what kind of address it is.

    `loopback` is true when the host is this machine by name: then nothing but loopback passes.
    """
    read = _literal(address)
    if read is None:
        return "unreadable"
    if loopback:
        return None if read.is_loopback else "not on this machine"
    if read.is_loopback:
        return "loopback"
    for network, kind in _REFUSED:
        if read.version == network.version and read in network:
            return kind
    if read.is_multicast:
        return "multicast"
    return None if read.is_global else "private or reserved"


def refused_literal(origin: Origin) -> str | None:
    """What kind of refused address a host itself is; None for one that passes, and for a name."""
    if _literal(origin.host) is None:
        return None
    return check_address(origin.host, loopback=origin.loopback)


class EgressRefused(Exception):
    """An address that must not be connected to; `str` is the reason."""


Lookup = Callable[[str], Sequence[str]]
"""A blocking name lookup: host to addresses; raises OSError."""


def system_lookup(host: str) -> list[str]:
    """What the system's resolver says, in its order, each address once."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """Names to checked addresses, in at most `limit` threads of its own.

    A lookup cannot be interrupted, so its thread stays until the system's resolver returns; the
    waiting request leaves at its own time-out. Stuck threads never number more than `limit`, hold
    up neither the default executor nor the end of the process, and equal questions share one.
    """

    def __init__(self, lookup: Lookup = system_lookup, limit: int = 8) -> None:
        self._lookup = lookup
        self._free = asyncio.Semaphore(limit)
        self._open: dict[str, asyncio.Task[tuple[str, ...]]] = {}

    async def resolve(self, origin: Origin) -> tuple[str, ...]:
        """All addresses of the host, every one of them checked; never empty.

        Raises `EgressRefused` if any of them is refused, OSError if the name is not found.
        """
        found = await self.look_up(origin.host)
        for address in found:
            kind = check_address(address, loopback=origin.loopback)
            if kind is not None:
                raise EgressRefused(f"{origin.host} has an address that is refused: {kind}")
        return found

    async def look_up(self, host: str) -> tuple[str, ...]:
        """All addresses of a host, unchecked; never empty. Raises OSError if it is not found."""
        found = (host,) if _literal(host) else await self._addresses(host)
        if not found:
            raise OSError(0, "the name has no address")
        return found

    async def _addresses(self, host: str) -> tuple[str, ...]:
        task = self._open.get(host)
        if task is None:
            task = asyncio.create_task(self._ask(host))
            self._open[host] = task
            task.add_done_callback(lambda done: self._forget(host, done))
        return await asyncio.shield(task)

    def _forget(self, host: str, task: asyncio.Task[tuple[str, ...]]) -> None:
        del self._open[host]
        if not task.cancelled():
            task.exception()  # retrieved, in case every waiter has left

    async def _ask(self, host: str) -> tuple[str, ...]:
        async with self._free:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

            def settle(found: tuple[str, ...] | OSError) -> None:
                if answer.done():
                    return
                if isinstance(found, OSError):
                    answer.set_exception(found)
                else:
                    answer.set_result(found)

            def work() -> None:
                found: tuple[str, ...] | OSError
                try:
                    found = tuple(self._lookup(host))
                except OSError as error:
                    found = error
                except UnicodeError:
                    found = OSError(0, "not a name that can be looked up")
                with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                    loop.call_soon_threadsafe(settle, found)

            threading.Thread(target=work, name="forbear-dns", daemon=True).start()
            return await answer
