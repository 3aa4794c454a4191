"""`serve` and `worker`: the processes that send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from forbear.server.cli.home import run, settings
from forbear.server.cli.terminal import Failure, remark
from forbear.server.config import host_and_port

if TYPE_CHECKING:
    import asyncio

    from forbear.server.config import Settings


class _Serve(TyperCommand):
    """`--http` alone is `--http` with the usual address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--http" in args:
            after = args.index("--http") + 1
            if after == len(args) or args[after].startswith("-"):
                args = [*args[:after], "", *args[after:]]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command(cls=_Serve)(serve)
    app.command()(worker)


def serve(
    http: Annotated[
        str | None,
        typer.Option(metavar="[HOST:PORT]", help="MCP over HTTP, and the console beside it."),
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Answer only; leave sending to `forbear worker`.")
    ] = False,
) -> None:
    """Speak MCP on standard input and output, where agents start this, or over HTTP."""
    home = settings()
    if http is not None:
        _serve_http(home, http or home.console, worker=not no_worker)
        return

    async def served() -> None:
        from forbear.server.app import serve_stdio

        await serve_stdio(home, worker=not no_worker, stopped=until_signalled())

    if sys.stdin.isatty():
        remark("`forbear serve` speaks MCP; an MCP client starts this. Ctrl-C ends it.")
    run(served)


def _serve_http(home: Settings, place: str, *, worker: bool) -> None:
    try:
        host_and_port(place)
    except ValueError as error:
        raise Failure(f"--http: {error}.") from error

    def ready(url: str) -> None:
        remark(f"MCP of {home.home} is at {url}/mcp, and its console at {url}. Ctrl-C ends both.")
        remark("`forbear console` prints a link that signs a browser in.")

    async def served() -> None:
        from forbear.server.http.serving import NotServed, serve_http
        from forbear.storage.errors import StoreTooNew

        try:
            await serve_http(home, place, worker=worker, stopped=until_signalled(), ready=ready)
        except NotServed as error:
            raise Failure(str(error)) from error
        except StoreTooNew as error:
            raise Failure(f"{error}.", 3) from error

    run(served)


def worker() -> None:
    """Watch and send until stopped, whether or not a client is open."""
    home = settings()

    async def stay() -> None:
        from forbear.server.app import first_of, running
        from forbear.storage.writer import UPGRADED

        stopped = until_signalled()
        async with running(home, role="worker", worker=True) as app:
            jobs = sum(len(one.jobs) for one in app.contracts.contracts().values())
            plural = "" if jobs == 1 else "s"
            remark(f"Watching {home.home} with {jobs} job{plural} under contract. Ctrl-C stops.")
            await first_of(stopped, app.superseded)
            if app.superseded.is_set():
                raise Failure(f"{UPGRADED}.", 3)
            remark("Stopping; requests under way get a moment to end.")

    run(stay)


def until_signalled() -> asyncio.Event:
    """Set once somebody asks this process to end."""
    import asyncio
    import signal

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(name, stopped.set)
        except NotImplementedError:  # Windows: its loops have no signals of their own
            signal.signal(name, lambda *_: loop.call_soon_threadsafe(stopped.set))
    return stopped
