"""`console`: serves the pages where a person decides, and prints the links that sign in."""

from __future__ import annotations

import typer

from forbear.server.cli.home import run, settings
from forbear.server.cli.serving import until_signalled
from forbear.server.cli.terminal import Failure, remark, say


def register(app: typer.Typer) -> None:
    app.command()(console)


def console() -> None:
    """Serve the web console beside the store, and print a link that signs in once.

    Where it is served already, this prints a new link and ends.
    """
    home = settings()

    async def served() -> None:
        from forbear.server.app import running
        from forbear.server.console.sessions import Sessions
        from forbear.server.http.serving import NotServed, listening, serve_console

        async with running(home, role="console", worker=False) as app:
            sessions = Sessions(home.home, app.store.key, app.clock, app.random)

            def invite(url: str) -> None:
                say("Open this within 10 minutes; it signs one browser in, once:")
                say(f"  {url}/sign-in/{sessions.new_link()}")

            there = app.store.console()
            if there is not None:
                invite(there)
                return
            try:
                listener = listening(home, home.console, "FORBEAR_CONSOLE")
            except NotServed as error:
                raise Failure(str(error)) from error

            def ready(url: str) -> None:
                invite(url)
                remark(f"The console of {home.home} is at {url}. Ctrl-C stops it.")

            await serve_console(app, listener, stopped=until_signalled(), ready=ready)

    run(served)
