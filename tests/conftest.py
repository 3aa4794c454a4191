"""Fixtures for every test: the backend of asynchronous tests, a clock and randomness."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import stores
from tests.support import FixedRandom, ManualClock

# A shared machine is slow at random, so no property has a time limit. Where a change is judged, the
# examples are the same in every run, so that chance blames no change.
settings.register_profile("local", deadline=None)
settings.register_profile("judged", deadline=None, derandomize=True)
# `pytest --hypothesis-profile=long tests/rules` looks for what a short run misses.
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("judged" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        choices=(stores.SQLITE, stores.POSTGRESQL),
        help="where the stores of all tests lie; without it those marked `postgresql` use both",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test run on the stores that it is for."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    stated = metafunc.config.getoption("--store")
    if "sqlite" in marks:
        chosen = [stores.SQLITE] if stated in (None, stores.SQLITE) else []
    elif stated is not None:
        chosen = [stated]
    else:
        chosen = [stores.SQLITE, stores.POSTGRESQL] if "postgresql" in marks else []
    if "only_postgresql" in marks:
        chosen = [stores.POSTGRESQL] if stated != stores.SQLITE else []
    if stated is not None or chosen:
        metafunc.parametrize("store", chosen, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> stores.Server:
    """A PostgreSQL server."""
    url = os.environ.get("FORBEAR_TEST_DATABASE_URL")
    if url:
        return stores.Server(url)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid():x}")
    return stores.embedded(run[:12])


@pytest.fixture(autouse=True, scope="session")
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the stores of a test lie: `sqlite` or `postgresql`."""
    chosen: str = getattr(request, "param", stores.SQLITE)
    if chosen == stores.SQLITE:
        yield chosen
        return
    stores.current.server = request.getfixturevalue("server")
    with asyncio.Runner() as runner:
        stores.current.runner = runner
        yield chosen
    stores.current = stores.Current()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None:
        stores.drop(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """On a server a test of the ledger runs inside a loop; see `stores`."""
    ledgers = stores.current.runner is not None and "storage" in pyfuncitem.path.parts
    if not ledgers or inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    stores.within(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def randomness() -> FixedRandom:
    """Every `uniform` is 0.5."""
    return FixedRandom()
