"""What is known of each shared limit: rate, quota, queue, outages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forbear.rules.pacing import ScopeState, slowness
from forbear.storage.store import Store
from forbear.tools.times import rfc3339


async def known(store: Store, now: int) -> list[dict[str, Any]]:
    """All scopes that were ever used, as of `now`."""
    outages = await store.read.outages()
    return [_described(row, outages, now) for row in await store.read.scopes()]


def _described(
    row: Mapping[str, Any], outages: Sequence[Mapping[str, Any]], now: int
) -> dict[str, Any]:
    """One scope as of `now`, from its row and the open outages of the store."""
    until: int = row["next_allowed_at"]
    reset_at: int = row["reset_at"] or 0
    stated = reset_at > now
    seen = ScopeState(slowed=row["slowed"], slowed_at=row["slowed_at"])
    down = [one for one in outages if one["scope"] == row["key"]]
    return {
        "scope": row["key"],
        "next_allowed_at": rfc3339(until) if until > now else None,
        "source": row["source"] if until > now or stated else None,
        "remaining": row["remaining"] if stated else None,
        "reset_at": rfc3339(reset_at) if stated else None,
        "slowed_to": 1 / (1 << slowness(seen, now)),
        "waiting": row["waiting"],
        "unreachable": [
            {
                "host": one["host"],
                "since": rfc3339(one["open_since"]),
                "next_probe_at": rfc3339(one["probe_at"]),
                "probes": one["probes"],
            }
            for one in down
        ],
    }


def in_words(one: Mapping[str, Any]) -> str:
    """What is known of a described scope, in one line without its name."""
    blocked = one["next_allowed_at"]
    told = [f"closed until {blocked} ({one['source']})" if blocked else "open"]
    if one["remaining"] is not None:
        told.append(f"{one['remaining']} left until {one['reset_at']}")
    if one["slowed_to"] < 1:
        told.append(f"at {one['slowed_to']:.3g} of its rate after a 429")
    if one["waiting"]:
        told.append(f"{one['waiting']} waiting")
    told += [
        f"{down['host']} unreachable since {down['since']}, next probe {down['next_probe_at']}"
        for down in one["unreachable"]
    ]
    return "; ".join(told)
