"""`contract check --online`: one harmless read of each provider, and what it brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forbear.server.cli.home import run
from forbear.server.cli.terminal import Failure, say

if TYPE_CHECKING:
    from forbear.rules.contract import Contract
    from forbear.server.app import App
    from forbear.server.config import Settings
    from forbear.server.reaching import Reached

NEAR = 2_000
"""Clocks that differ by no more than this, ms, differ by how a Date field is rounded."""


def reached(
    home: Settings, contracts: Sequence[Contract], *, account_only: bool
) -> list[dict[str, Any]]:
    """Ask each provider once, through the store of the home; what came of it, and what is wrong."""

    async def asked() -> list[dict[str, Any]]:
        from forbear.server.app import running

        async with running(home, role="check", worker=True) as app:
            return [await _ask(app, one, account_only=account_only) for one in contracts]

    return run(asked)


async def _ask(app: App, contract: Contract, *, account_only: bool) -> dict[str, Any]:
    from forbear.rules.model import Refusal
    from forbear.server.cli.wanted import in_words
    from forbear.server.credentials import MissingCredential
    from forbear.server.reaching import harmless, reach

    provider = contract.provider
    held = app.contracts.contracts().get(provider)
    if held is None or held.digest != contract.digest:
        folder = app.settings.contracts
        raise Failure(
            f"--online asks as the home would: {contract.file} is not the contract of {provider} "
            f"there. Copy it to {folder} first."
        )
    call = harmless(held, account_only=account_only)
    if call is None:
        wanted = "[account] check" if account_only else "[account] check or read without arguments"
        told = f"the contract has no {wanted}, so nothing was sent"
        return {"provider": provider, "ok": True, "sent": False, "told": told}
    missing = app.contracts.credential(held)
    if isinstance(missing, MissingCredential):
        told = f"the key is missing, so nothing was sent: {missing}"
        return {"provider": provider, "ok": False, "sent": False, "told": told}
    found = await reach(app, held, call)
    if isinstance(found, Refusal):
        told = str(in_words(found, provider, app.contracts))
        return {"provider": provider, "ok": False, "sent": False, "told": told}
    return _told(found, held.account["id"])


def _told(found: Reached, account: str) -> dict[str, Any]:
    operation = found.operation
    return {
        "provider": found.provider,
        "ok": found.ok,
        "sent": True,
        "request": found.request,
        "operation_id": operation.id,
        "state": operation.state,
        "status": found.status,
        "took_ms": found.took,
        "account": found.account,
        "account_expected": account if found.account_read_at is not None else None,
        "account_read_at": found.account_read_at,
        "clock_behind_ms": found.behind,
        "case": found.case and {"number": found.case.number, "reason": found.case.reason},
    }


def show(one: dict[str, Any]) -> None:
    """What one read brought, as a person reads it."""
    name = one["provider"]
    if not one["sent"]:
        say(f"{name} online: {one['told']}", "yellow" if one["ok"] else "red")
        return
    answer = "no answer" if one["status"] is None else str(one["status"])
    took = "" if one["took_ms"] is None else f" after {one['took_ms']} ms"
    style = "green" if one["ok"] else "red"
    say(f"{name} online: {one['request']}: {answer}{took}, {one['state']}", style)
    if one["account_read_at"] is not None:
        say(f"  account: {_account(one)}")
    if one["clock_behind_ms"] is not None:
        say(f"  clock: {_clock(one['clock_behind_ms'])}")
    if one["case"] is not None:
        number, reason = one["case"]["number"], one["case"]["reason"]
        say(f"  stopped: {reason} -> forbear decide {number} …", "yellow")
    say(f"  its story: forbear show {one['operation_id']}")


def _account(one: dict[str, Any]) -> str:
    at, expected, named = one["account_read_at"], one["account_expected"], one["account"]
    if named is None:
        return f"{at} names none, the contract says {expected!r}"
    if named == expected:
        return f"{named}, as the contract says"
    return (
        f"{at} says {named!r}, the contract says {expected!r} -> correct [account] id, or the key"
    )


def _clock(behind: int) -> str:
    if abs(behind) <= NEAR:
        return "as the provider's"
    return f"{abs(behind) / 1_000:.0f} s {'behind' if behind > 0 else 'before'} the provider's"
