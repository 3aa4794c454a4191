"""Hosts with a network between them, of which one is cut off and comes back.

It takes half a minute on a busy machine, so it runs where FORBEAR_TEST_NETWORK is set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests import stores
from tests.crash.network import PATIENCE, Impossible, Network, network
from tests.crash.test_hosts import another_host, shop, write_of
from tests.crash.world import Nursery, World, fast, nursed, world
from tests.e2e.harness import KEYED, WRITE, Data

from forbear.rules.model import Case
from forbear.server.app import open_store
from forbear.server.config import Settings
from forbear.server.fake import Answer
from forbear.storage import connecting

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.only_postgresql,
    pytest.mark.requirement("D07"),
    pytest.mark.skipif(
        not os.environ.get("FORBEAR_TEST_NETWORK"), reason="FORBEAR_TEST_NETWORK is not set"
    ),
]

LONG: Data = {"timeout": "30s"}
"""Of a request: its answer comes while its host is cut off, and in time."""
LEASE = 45_000
"""That and 15 seconds, ms."""
OUT = "SELECT number FROM attempts WHERE closed_at IS NULL"


@dataclass
class Site:
    """Two hosts and their database."""

    network: Network
    server: stores.OwnServer
    nurseries: dict[str, Nursery]


@pytest.fixture(scope="module")
def site(store: str) -> Iterator[Site]:
    with ExitStack() as ends:
        try:
            net = ends.enter_context(network("a", "b"))
        except Impossible as error:
            pytest.skip(str(error))
        server = ends.enter_context(stores.own_server())
        net.move(server)
        born = {host: net.inside(host, lambda: ends.enter_context(nursed())) for host in ("a", "b")}
        yield Site(net, server, born)


@asynccontextmanager
async def two_hosts(site: Site, folder: Path, contract: str) -> AsyncIterator[tuple[World, World]]:
    """Two homes on two hosts. One provider answers on the loopback address of both."""
    async with world(folder / "a", site.nurseries["a"], contract) as on:
        near = site.network.environment(site.server.database(on.home))
        other = await another_host(on, folder / "b")
        ports = [
            await asyncio.start_server(
                on.provider._serve, sock=site.network.port(host, on.provider.port)
            )
            for host in ("a", "b")
        ]
        first = replace(on, store=near)
        try:
            yield first, replace(first, home=other, nursery=site.nurseries["b"])
        finally:
            site.network.mend("a")
            for port in ports:
                port.close()


async def cases_of(on: World) -> list[Case]:
    settings = Settings.load({"FORBEAR_HOME": str(on.home), **stores.environment(on.home)})
    store = await asyncio.to_thread(open_store, settings)
    try:
        return await store.read.cases_of(write_of(on)["id"])
    finally:
        await store.close()


@pytest.mark.requirement("D02", "R13", "R15", "R24")
@pytest.mark.parametrize(
    ("more", "state", "sent"),
    [({}, "escalated", 1), (KEYED, "succeeded", 2)],
    ids=["unkeyed", "keyed"],
)
async def test_a_host_that_was_cut_off_with_a_request_out_comes_back_and_decides_nothing(
    tmp_path: Path,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    more: Data,
    state: str,
    sent: int,
) -> None:
    monkeypatch.setattr(stores.current, "server", site.server)
    async with two_hosts(site, tmp_path, shop(**more, **LONG)) as (a, b):
        clock = fast(10)
        a.provider.script(WRITE, Answer(201, {"id": "of-a"}, gate="answered", effect=True))
        a.start(writes=("transfer",), **clock)
        await a.until(lambda: a.provider.count(WRITE) and a.rows(OUT))
        (out,) = a.rows(OUT)
        site.network.cut("a")
        a.provider.release("answered")
        b.start(**clock)
        await b.until(lambda: write_of(b)["state"] == state, patience=2)
        before = write_of(b)

        (cut,) = b.rows(f"SELECT * FROM attempts WHERE number = {out['number']}")
        assert (cut["outcome"], cut["late"]) == ("unknown", False)
        assert cut["closed_at"] - cut["reserved_at"] >= LEASE

        site.network.mend("a")
        await b.until(lambda: b.rows("SELECT 1 FROM attempts WHERE late"), patience=2)
        (late,) = b.rows("SELECT * FROM attempts WHERE late")
        assert (late["number"], late["outcome"], late["status"]) == (out["number"], "answered", 201)
        after = write_of(b)
        assert (after["state"], after["fence"]) == (state, before["fence"])
        assert after["result"] == before["result"]
        assert a.provider.count(WRITE) == sent
        assert len(a.provider.effects) == 1
        cases = await cases_of(b)
        assert len(cases) == (state == "escalated")
        assert all("late answer 201" in case.text for case in cases)


@pytest.mark.requirement("D09")
@pytest.mark.parametrize("asks", ["before", "after"])
def test_a_connection_ends_on_both_sides_when_the_other_is_not_heard_of_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """Whether it was asked before the cable was cut, and answers never, or is asked after."""
    monkeypatch.setattr(connecting, "GONE", 2)

    async def lost() -> BaseException | None:
        connection = await connecting.connected(url)
        if asks == "before":
            answer = asyncio.ensure_future(connection.execute("SELECT pg_sleep(600)"))
            await so(lambda: there("query LIKE 'SELECT pg_sleep%'"))
            site.network.cut("a")
        else:
            site.network.cut("a")
            answer = asyncio.ensure_future(connection.execute("SELECT 1"))
            # Nobody asked for anything, as far as the server knows.
            await so(lambda: not there(f"pid = {connection.get_server_pid()}"))
        await asyncio.wait([answer], timeout=PATIENCE)
        site.network.mend("a")
        connection.terminate()
        return answer.exception() if answer.done() else None

    def there(which: str) -> object:
        query = f"SELECT 1 FROM pg_stat_activity WHERE {which}"
        return stores.apart(stores._fetched(site.server.url, query))

    async def so(what: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(what):
                pass

    url = site.network.environment(site.server.url)["FORBEAR_DATABASE_URL"]
    error = site.network.inside("a", lambda: asyncio.run(lost()))
    assert error is not None, "it would wait for ever"
    assert connecting.passes(error)
