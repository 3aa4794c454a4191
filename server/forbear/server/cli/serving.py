"""`serve` and `worker`: the processes that send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.home import run, settings
from forbear.server.cli.terminal import Failure, remark

if TYPE_CHECKING:
    import asyncio


def register(app: typer.Typer) -> None:
    app.command()(serve)
    app.command()(worker)


def serve(
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="MCP over HTTP (a later version).")
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Answer only; leave sending to `forbear worker`.")
    ] = False,
) -> None:
    """Speak MCP on standard input and output; agents start this."""
    if http is not None:
        raise Failure(
            "MCP over HTTP comes with a later version. Leave --http out: `forbear serve` speaks "
            "over standard input and output, and every client can start it."
        )
    home = settings()

    async def served() -> None:
        from forbear.server.app import serve_stdio

        await serve_stdio(home, worker=not no_worker, stopped=until_signalled())

    if sys.stdin.isatty():
        remark("`forbear serve` speaks MCP; an MCP client starts this. Ctrl-C ends it.")
    run(served)


def worker() -> None:
    """Watch and send until stopped, whether or not a client is open."""
    home = settings()

    async def stay() -> None:
        from forbear.server.app import running

        stopped = until_signalled()
        async with running(home, role="worker", worker=True) as app:
            jobs = sum(len(one.jobs) for one in app.contracts.contracts().values())
            plural = "" if jobs == 1 else "s"
            remark(f"Watching {home.home} with {jobs} job{plural} under contract. Ctrl-C stops.")
            await stopped.wait()
            remark("Stopping; requests under way get a moment to end.")

    run(stay)


def until_signalled() -> asyncio.Event:
    """Set once somebody asks this process to end."""
    import asyncio
    import signal

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    return stopped
