"""The tokens of this process: one per client credential, in memory only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from forbear.rules.ports import Clock
from forbear.rules.tokens import Grant, renewed_after


@dataclass(frozen=True, slots=True)
class Kept:
    """A token with its end, and when the next is fetched, on the boot clock."""

    value: str = field(repr=False)
    renew_at: int
    ends_at: int


class Tokens:
    """What was granted last, by the client that it was granted to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[bytes, Kept] = {}

    def keep(self, client: Sequence[str], grant: Grant, age: int) -> None:
        """Use this token from now on; its life began `age` ms ago at the earliest."""
        began = self._clock.now().boot - age
        self._kept[_name(client)] = Kept(
            grant.token, began + renewed_after(grant.life), began + grant.life
        )

    def drop(self, client: Sequence[str], value: str) -> None:
        """Use this token no more; one that has taken its place stays."""
        name = _name(client)
        kept = self._kept.get(name)
        if kept is not None and kept.value == value:
            del self._kept[name]

    def of(self, client: Sequence[str]) -> str | None:
        """The token to send, if one lives."""
        kept = self._kept.get(_name(client))
        return kept.value if kept is not None and self._clock.now().boot < kept.ends_at else None

    def due(self, client: Sequence[str]) -> bool:
        """Whether it is time to fetch the first token, or the next. May be asked in any thread."""
        kept = self._kept.get(_name(client))
        return kept is None or self._clock.now().boot >= kept.renew_at


def _name(client: Sequence[str]) -> bytes:
    framed = b"".join(len(part).to_bytes(4, "big") + part.encode() for part in client)
    return hashlib.sha256(framed).digest()
