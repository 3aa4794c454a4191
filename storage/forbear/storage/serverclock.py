"""The time of a database server, as the clock of a process."""

from __future__ import annotations

from forbear.rules.ports import Clock, Moment


class ServerClock:
    """The time of the database server, between two looks carried on by the clocks of this machine.

    It is never ahead of the server's. Both clocks of a moment are the server's time: one goes on
    with this machine's wall clock, the other with the clock that counts suspend, so that each
    stays a witness against the other. The moments of all hosts can be compared.
    """

    BOOT = "server"
    """All moments are of one boot: leases end by time, wherever they are looked at."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._wall = self._boot = 0

    def set(self, server: int) -> None:
        """`server` was the server's time a moment ago, ms."""
        here = self._local.now()
        self._wall, self._boot = server - here.wall, server - here.boot

    def now(self) -> Moment:
        here = self._local.now()
        return Moment(here.wall + self._wall, here.boot + self._boot, self.BOOT)

    async def sleep(self, seconds: float) -> None:
        await self._local.sleep(seconds)
