"""OAuth 2.0 client credentials (RFC 6749, section 4.4): the request, its answer, what follows.

Values in, values out; the one place that holds a token for longer than a moment is the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlsplit

from forbear.rules import backoff, timing
from forbear.rules.contract import Auth
from forbear.rules.ports import Json, Number, Outbound, Reply, TokenAnswer
from forbear.rules.values import Unreadable, decimal_of, decode, members

TIMEOUT = 10_000
"""Total time of a token request, ms."""

UNSTATED = 300_000
"""Life of a token, ms, whose answer states none that makes sense."""

LONGEST = 86_400_000
"""No token is used for longer, ms."""

SHORTEST = 500
"""A token with less of its life left when it comes, ms, is of no use: the next would follow at
once, and the next after that."""

SKEW = 60_000
"""How long before its end a token is renewed at most, ms; of a short life it is a tenth."""

FIRST_WAIT, LONGEST_WAIT = 2_000, 300_000
"""Wait after a failed token request, ms: doubled with each until the longest."""

_MAX_ANSWER = 65_536
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BUSY = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
_LATER = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Grant:
    """A token and how long it lives from the answer, ms."""

    token: str = field(repr=False)
    life: int
    others: tuple[str, ...] = field(default=(), repr=False)
    """Other tokens of the answer: used for nothing, and hidden like the first."""


def uses_tokens(auth: Auth) -> bool:
    """Whether requests carry a token that has to be fetched first."""
    return auth.scheme == "oauth2_client"


def token_request(auth: Auth) -> Outbound:
    """The request for a token, without the client's credential."""
    fields = [("grant_type", "client_credentials")]
    if auth.scope:
        fields.append(("scope", auth.scope))
    body = "&".join(f"{name}={quote_plus(value)}" for name, value in fields)
    return Outbound(
        method="POST",
        url=auth.token_url or "",
        headers=(
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Accept", "application/json"),
        ),
        body=body.encode(),
        max_bytes=_MAX_ANSWER,
        timeout=TIMEOUT,
        fresh_connection=True,
    )


def token_host(auth: Auth) -> str:
    """The host that tokens come from, lower case and with its port where that is stated."""
    return host_of(auth.token_url or "")


def host_of(url: str) -> str:
    return urlsplit(url).netloc.lower()


# --- the answer -----------------------------------------------------------------------------


def read(reply: Reply, now: int) -> Grant | TokenAnswer:
    """The token of a whole answer, or why there is none (RFC 6749, sections 5.1 and 5.2).

    Nothing of the provider's but a known kind of code is in the reason.
    """
    status = reply.status or 0
    try:
        held = members(decode(reply.body)) or {}
    except Unreadable:
        held = {}
    if not 200 <= status < 300:
        return _denied(reply, status, held.get("error"), now)
    kind, token = held.get("token_type", "Bearer"), held.get("access_token")
    if not isinstance(token, str) or isinstance(token, Number) or not _TOKEN.fullmatch(token):
        return TokenAnswer(why=f"{status} without an access_token that a header can carry")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return TokenAnswer(why=f"{status} with a token_type other than Bearer")
    others = (held.get(name) for name in ("refresh_token", "id_token"))
    hidden = tuple(one for one in others if isinstance(one, str) and not isinstance(one, Number))
    life = _life(held.get("expires_in"))
    if life - (now - reply.started_at) < SHORTEST:
        return TokenAnswer(why=f"{status} with a token that is over at once", later=True)
    return Grant(token, life, hidden)


def _denied(reply: Reply, status: int, code: Json, now: int) -> TokenAnswer:
    told = code if isinstance(code, str) and _CODE.fullmatch(code) else ""
    why = f"{status} {told}".strip()
    if 300 <= status < 400:
        return TokenAnswer(why=f"{status}, and no redirect is followed: correct token_url")
    if status >= 500 or status in _LATER or told in _BUSY:
        asked, _ = timing.longest_wait(reply.fields("Retry-After"), reply.header("Date"), now)
        return TokenAnswer(why=why, later=True, wait=asked.delay if asked is not None else None)
    return TokenAnswer(why=why)


def _life(stated: Json) -> int:
    """`expires_in` in ms; some write it as a text. What makes no sense counts as not stated."""
    written = isinstance(stated, str) and re.fullmatch("[0-9]{1,18}", stated)
    seconds = decimal_of(Number(stated) if written else stated)
    if seconds is None or seconds <= 0:
        return UNSTATED
    return LONGEST if seconds > LONGEST // 1_000 else int(seconds * 1_000)


# --- what follows ---------------------------------------------------------------------------


def renewed_after(life: int) -> int:
    """How long after its answer a token is to be replaced by the next, ms."""
    return life - min(SKEW, life // 10)


def next_wait(failures: int, asked: int | None, u: float) -> int:
    """The wait after so many failures in a row, ms; what a provider asks for is never shortened."""
    own = backoff.doubled(FIRST_WAIT, max(0, failures - 1), LONGEST_WAIT)
    jittered = round(own * (0.5 + u / 2))
    return jittered if asked is None else max(jittered, backoff.stretched(asked, u))
