"""Hosts as network namespaces: each has its own interfaces, addresses and ports.

One of them has the database, and a cable of its own to every other. A cable can be pulled, and what
was on it is lost; both ends keep their connections and hear nothing, as on a network.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.stores import OwnServer

T = TypeVar("T")

DATABASE = "db"
PATIENCE = 30.0
"""Seconds after which something that should have happened did not."""
PORT = 5432
_ADDRESS = "10.231.0.1"
_CLONE_NEWNET = 0x40000000
_NAMED = Path("/run/netns")


class Impossible(Exception):
    """There can be no namespaces here; the message says why."""


class Network:
    """Hosts by short names, of which `db` has the database."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts

    def inside(self, host: str, function: Callable[[], T]) -> T:
        """Call something on a host. A socket that is made there, and a process that is started
        there, stay there."""

        def call() -> T:
            with (_NAMED / _space(host)).open() as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        # Of a thread of its own, which nobody uses after that.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).result()

    def port(self, host: str, number: int) -> socket.socket:
        """A port of this number on the loopback address of a host."""
        return self.inside(host, lambda: socket.create_server(("127.0.0.1", number)))

    def cut(self, host: str) -> None:
        """Pull the cable between a host and the database."""
        _ip("-n", _space(DATABASE), "link", "set", "dev", host, "down")

    def mend(self, host: str) -> None:
        """Plug it in again, and wait until the host has found the database."""
        _ip("-n", _space(DATABASE), "link", "set", "dev", host, "up")
        self.inside(host, _reached)

    def move(self, server: OwnServer) -> None:
        """Let a server listen on the host of the database. Its own socket stays where it is."""
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.231.0.0/16 trust\n")
        folder = dict(word.split("=") for word in urlsplit(server.url).query.split("&"))["host"]
        options = f"-h {_ADDRESS} -p {PORT} -k {folder} -F"
        self.inside(DATABASE, partial(server.restart, "fast", options))

    @staticmethod
    def environment(url: str) -> Mapping[str, str]:
        """What tells a process on a host where a database of the server is."""
        parts = urlsplit(url)._replace(netloc=f"postgres@{_ADDRESS}", query="")
        return {"FORBEAR_DATABASE_URL": urlunsplit(parts)}


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """A host with the database, and these.

    Raises:
        Impossible
    """
    if shutil.which("ip") is None:
        raise Impossible("there is no `ip` (iproute2)")
    try:
        _made(hosts)
        yield Network(hosts)
    finally:
        for host in (DATABASE, *hosts):
            if (_NAMED / _space(host)).exists():
                _ip("netns", "del", _space(host))


def _made(hosts: Sequence[str]) -> None:
    database = _space(DATABASE)
    try:
        for host in (DATABASE, *hosts):
            _ip("netns", "add", _space(host))
            _ip("-n", _space(host), "link", "set", "dev", "lo", "up")
        _ip("-n", database, "address", "add", f"{_ADDRESS}/32", "dev", "lo")
        for number, host in enumerate(hosts, 1):
            space, near, far = _space(host), f"10.231.{number}.1", f"10.231.{number}.2"
            cable = ("type", "veth", "peer", "name", host, "netns", database)
            _ip("-n", space, "link", "add", "up0", *cable)
            for where, name, address in ((database, host, near), (space, "up0", far)):
                _ip("-n", where, "address", "add", f"{address}/30", "dev", name)
                _ip("-n", where, "link", "set", "dev", name, "up")
            _ip("-n", space, "route", "add", "default", "via", near)
    except subprocess.CalledProcessError as error:
        raise Impossible(f"no network namespaces here: {error.stderr.strip()}") from error


def _reached() -> None:
    until = monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((_ADDRESS, PORT), timeout=1).close()
            return
        except OSError:
            if monotonic() > until:
                raise


def _space(host: str) -> str:
    return f"forbear-{os.getpid()}-{host}"


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True, text=True)
