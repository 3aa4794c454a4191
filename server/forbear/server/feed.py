"""Standard input that can be ended from within: a read of a terminal or pipe cannot be."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

CHUNK = 65_536


class Feed:
    """Passes on what comes in until it ends or `end` is called; the reader then sees its end."""

    def __init__(self, descriptor: int, outlet: socket.socket) -> None:
        self._descriptor = descriptor
        self._outlet = outlet

    def copy(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._descriptor, CHUNK):
                self._outlet.sendall(chunk)
        self.end()

    def end(self) -> None:
        # Shut down, not closed: a late write must fail, never meet a recycled descriptor.
        with suppress(OSError):
            self._outlet.shutdown(socket.SHUT_WR)


@contextmanager
def standard_input() -> Generator[Feed]:
    """Let `sys.stdin` be a stream that `Feed.end` ends.

    The thread that reads the real one is a daemon: it does not keep the process alive.
    """
    outlet, inlet = socket.socketpair()
    feed = Feed(0, outlet)
    before, sys.stdin = sys.stdin, inlet.makefile("r", encoding="utf-8", errors="replace")
    try:
        threading.Thread(target=feed.copy, name="standard input", daemon=True).start()
        yield feed
    finally:
        feed.end()
        sys.stdin = before
