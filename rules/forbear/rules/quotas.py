"""What an answer says is left of a scope's quota; every reader here is total: it never raises.

No RFC defines these fields. The first of these forms that says something usable counts:

1. the contract's own `remaining` and `reset` of the scope, in the contract's unit;
2. `RateLimit` as a list, with `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-08 to -11);
3. `RateLimit` as a dictionary (draft -07);
4. `RateLimit-Remaining` and `RateLimit-Reset` (drafts up to -06), also as `X-RateLimit-` and
   `X-Rate-Limit-`.

A quota paces what comes. It is no promise, and never shortens a wait that an answer asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import http_sf

from forbear.rules import reading
from forbear.rules.contract import Contract, Header, Scope, Unit
from forbear.rules.evidence import View
from forbear.rules.ports import Reply
from forbear.rules.steps import scopes_of
from forbear.rules.timing import read_instant

LONGEST_RESET = 31 * 86_400_000
"""A reset further off is not believed, ms: a month is the longest quota that providers publish."""

OLDEST_RESET = 86_400_000
"""A reset longer past is not believed, ms; one nearer may be a clock that is wrong."""


class Form(StrEnum):
    """Where a quota was read."""

    CONTRACT = "contract"
    RATELIMIT = "RateLimit"
    DRAFT_07 = "RateLimit-07"
    DRAFT_06 = "RateLimit-06"
    """Also the `X-` spellings that were there before it."""


class Fault(StrEnum):
    """Why something that was there does not count."""

    MALFORMED = "malformed"
    INCOMPLETE = "incomplete"
    """What remains without a reset, or a reset without what remains."""
    ABSURD = "absurd"
    """A reset that is not believed."""
    OTHER_UNIT = "other_unit"
    """It counts bytes, or requests at the same time."""
    CACHED = "cached"
    """The answer came out of a cache, so that its numbers are of another time."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Not more than so many requests within so much time."""

    remaining: int
    """Requests that may still leave."""
    reset_after: int
    """Milliseconds from the receipt of the answer until there are more; 0: there are already."""
    source: Form


Found = Quota | str
"""A quota, or what does not count as `field: fault`."""


def stated(view: View) -> tuple[tuple[tuple[str, Quota], ...], tuple[str, ...]]:
    """What is left to each scope that the action counts in, by name, and what was ignored.

    Of several quotas of one form the most restrictive counts: the longest wait where nothing is
    left, else the lowest rate. The fields that every provider may send belong to the first scope.
    """
    quotas: list[tuple[str, Quota]] = []
    ignored: list[str] = []
    for index, scope in enumerate(scopes_of(view.contract.scopes, view.action.name)):
        quota, odd = quota_of(view, scope, general=index == 0)
        ignored += odd
        if quota is not None:
            quotas.append((scope.name, quota))
    if (quotas or ignored) and _is_cached(view.reply):
        return (), (_fault("limits", Fault.CACHED),)
    return tuple(quotas), tuple(dict.fromkeys(ignored))


def quota_of(view: View, scope: Scope, *, general: bool) -> tuple[Quota | None, tuple[str, ...]]:
    """What is left to one scope, and what was ignored on the way to it.

    `general` reads the fields that every provider may send, beside those that the scope names.
    """
    ignored: list[str] = []
    for found in _forms(view, scope, general=general):
        ignored += [one for one in found if isinstance(one, str)]
        quotas = [one for one in found if isinstance(one, Quota)]
        if quotas:
            return min(quotas, key=_leeway), tuple(ignored)
    return None, tuple(ignored)


def _forms(view: View, scope: Scope, *, general: bool) -> Iterator[tuple[Found, ...]]:
    yield _by_contract(view, scope)
    if general:
        yield _by_field(view.reply)
        yield _by_plain_fields(view)


def _leeway(quota: Quota) -> tuple[int, float]:
    if quota.reset_after == 0:
        return 2, 0.0
    if quota.remaining == 0:
        return 0, -float(quota.reset_after)
    return 1, quota.remaining / quota.reset_after


def _is_cached(reply: Reply) -> bool:
    """RFC 9111, section 5.1: of several values the first counts, and what is no number does not."""
    age = (reply.header("Age") or "").partition(",")[0].strip(" \t")
    return re.fullmatch("[0-9]*[1-9][0-9]*", age) is not None


def _believed(form: Form, label: str, remaining: int, reset_after: int) -> Found:
    if not -OLDEST_RESET <= reset_after <= LONGEST_RESET:
        return _fault(label, Fault.ABSURD)
    return Quota(remaining, max(0, reset_after), form)


def _fault(label: str, fault: Fault) -> str:
    return f"{label}: {fault}"


# --- a number and a time --------------------------------------------------------------------


def _by_contract(view: View, scope: Scope) -> tuple[Found, ...]:
    remaining = None if scope.remaining is None else reading.text_at(view.answer, scope.remaining)
    source, unit = scope.reset or (None, Unit.SECONDS)
    reset = None if source is None else reading.text_at(view.answer, source)
    return _pair(view, Form.CONTRACT, f"scopes.{scope.name}", remaining, reset, unit)


_PLAIN = re.compile("[0-9]{1,15}")
_SPELLINGS = ("RateLimit", "X-RateLimit", "X-Rate-Limit")


def _by_plain_fields(view: View) -> tuple[Found, ...]:
    """Plain integers only: what other units a vendor has under these names is for the contract."""
    named = _named(view.contract)
    found: list[Found] = []
    for spelling in _SPELLINGS:
        names = (f"{spelling}-Remaining", f"{spelling}-Reset")
        remaining, reset = (
            None if name.lower() in named else view.reply.header(name) for name in names
        )
        if all(text is None or _PLAIN.fullmatch(text.strip(" \t")) for text in (remaining, reset)):
            unit = _plain_unit(int(reset or 0))
            found += _pair(view, Form.DRAFT_06, spelling, remaining, reset, unit)
        else:
            found.append(_fault(spelling, Fault.MALFORMED))
    return tuple(found)


def _named(contract: Contract) -> frozenset[str]:
    """Fields that some scope of the contract reads in its own way; nobody else reads them."""
    sources = (
        source
        for scope in contract.scopes
        for source in (scope.remaining, scope.reset[0] if scope.reset else None)
    )
    return frozenset(source.name.lower() for source in sources if isinstance(source, Header))


def _plain_unit(value: int) -> Unit:
    """Drafts up to -06 say seconds to go; under the same names others send epochs."""
    if value > 10**12:
        return Unit.EPOCH_MS
    return Unit.EPOCH if value > 10**9 else Unit.SECONDS


def _pair(
    view: View, form: Form, label: str, remaining: str | None, reset: str | None, unit: Unit
) -> tuple[Found, ...]:
    if remaining is None and reset is None:
        return ()
    if remaining is None or reset is None:
        return (_fault(label, Fault.INCOMPLETE),)
    count = _count(remaining)
    reset_at = read_instant(reset, unit, view.now, view.date)
    if count is None or reset_at is None:
        return (_fault(label, Fault.MALFORMED),)
    return (_believed(form, label, count, reset_at - view.now),)


def _count(text: str) -> int | None:
    """Whole requests: a fraction of one is none. A negative number is a placeholder."""
    found = re.fullmatch(r"([0-9]{1,15})(?:\.[0-9]+)?", text.strip(" \t"))
    return None if found is None else int(found[1])


# --- structured fields (RFC 9651) -----------------------------------------------------------

Kinds = Mapping[str, Callable[[object], bool]]
Params = Mapping[str, object]


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_window(value: object) -> bool:
    return _is_amount(value) and value != 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_octets(value: object) -> bool:
    return isinstance(value, bytes)


_LIMIT: Kinds = {"r": _is_amount, "t": _is_amount, "pk": _is_octets}
_POLICY: Kinds = {"q": _is_amount, "qu": _is_text, "w": _is_window, "pk": _is_octets}
_DICTIONARY: Kinds = {"limit": _is_amount, "remaining": _is_amount, "reset": _is_amount}


def _well_typed(params: Params, kinds: Kinds) -> bool:
    """Whether what is known has its type; all else is a comment."""
    return all(is_kind(params[name]) for name, is_kind in kinds.items() if name in params)


def _by_field(reply: Reply) -> tuple[Found, ...]:
    """`RateLimit` in either syntax; none of it counts where any of it is malformed."""
    text = reply.header("RateLimit")
    if text is None:
        return ()
    limits = _items(text, "r", _LIMIT)
    if limits is not None:
        return tuple(_by_list(limits, reply.header("RateLimit-Policy")))
    values = _values(text)
    if values is None:
        return (_fault(Form.RATELIMIT, Fault.MALFORMED),)
    return (_limit(Form.DRAFT_07, values.get("remaining"), values.get("reset")),)


def _by_list(limits: list[tuple[str, Params]], policy: str | None) -> Iterator[Found]:
    """One finding per member. The policy of its name tells the unit, and the window if it has none.

    Draft -11, section 4.1.2: not more than `r` within `t`. Earlier drafts: more of it after `t`.
    """
    policies = _items(policy or "", "q", _POLICY)
    if policies is None:
        yield _fault("RateLimit-Policy", Fault.MALFORMED)
    known = dict(policies or ())
    for name, params in limits:
        rule = known.get(name, {})
        if rule.get("qu", "requests") == "requests":
            yield _limit(Form.RATELIMIT, params["r"], params.get("t", rule.get("w")))
        else:
            yield _fault(Form.RATELIMIT, Fault.OTHER_UNIT)


def _limit(form: Form, remaining: object, seconds: object) -> Found:
    if not isinstance(remaining, int) or not isinstance(seconds, int):
        return _fault(form, Fault.INCOMPLETE)
    return _believed(form, form, remaining, seconds * 1000)


def _items(text: str, required: str, kinds: Kinds) -> list[tuple[str, Params]] | None:
    """A list of names with parameters; None where it is anything else.

    Names are Strings, or Tokens as the drafts allowed for a while; both name the same policy.
    """
    parsed = _parsed(text, "list")
    if not isinstance(parsed, list):
        return None
    items: list[tuple[str, Params]] = []
    for member in parsed:
        name, params = member if isinstance(member, tuple) else (member, {})
        if not isinstance(name, str | http_sf.Token):
            return None
        if required not in params or not _well_typed(params, kinds):
            return None
        items.append((str(name), params))
    return items


def _values(text: str) -> Params | None:
    """The values of a dictionary of draft -07; None where it is anything else."""
    parsed = _parsed(text, "dictionary")
    if not isinstance(parsed, dict):
        return None
    values = {
        name: member[0] if isinstance(member, tuple) else member for name, member in parsed.items()
    }
    return values if _well_typed(values, _DICTIONARY) else None


def _parsed(text: str, kind: str) -> http_sf.StructuredType | None:
    if not text.isascii():
        return None
    try:
        return http_sf.parse(text.strip(" \t").encode("ascii"), tltype=kind)
    except http_sf.StructuredFieldError:
        return None
