"""How what is sealed is made small before, and whole again after: rows of the log, and values.

What a row tells is

    form   one byte: `PLAIN`, or the number of the dictionary that the text is deflated with
    time   two bytes: milliseconds within the minute that the header has
    text   the body as JSON: times as distances to the row's own, digests as bytes, and its own
           operation by a mark instead of its name

Each row and each value is packed by itself, so its length tells nothing of another. A dictionary is
a part of the format: it has a number and never changes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, cast

MINUTE = 60_000
PLAIN = 0
MOST = 16_777_216
"""Bytes of a text that is deflated, at the most: nothing longer is ever inflated."""

_WINDOW = -12
"""Raw deflate with a window of 4 KiB: a dictionary and a usual body."""
_HEAD = 3

_TIMES = frozenset(
    {
        *("accepted_at", "approve_by", "approve_deadline", "created_at", "deadline_at"),
        *("expected_at", "http_at", "next_at", "not_before", "observed_at", "once_until"),
        *("progress_at", "provider_expiry_at", "send_by", "sent_at", "updated_at", "useful_until"),
    }
)
"""Names of moments, ms: those of the body and of its `set`. Part of the format."""

_OWN, _DIGEST = "\x01", b"\x02"
"""Stand in JSON for the row's own operation, and before the bytes of a digest: JSON has no such
characters."""
_HEX = re.compile(rb'"([0-9a-f]{64})"')
_MARKS = re.compile(rb"\x01|\x02(.{32})", re.DOTALL)


def packed(at: int, operation_id: str | None, body: Mapping[str, object]) -> bytes:
    """What is sealed of a row at `at`, ms."""
    text = _encode(_moved(body, -at))
    own = _own(operation_id)
    if own is not None:
        text = text.replace(own, _OWN)
    data = text.encode("ascii")
    if b'"binding"' in data:  # the first row of an operation: no other is full of digests
        data = _HEX.sub(lambda found: _DIGEST + bytes.fromhex(found[1].decode()), data)
    form, smaller = _ROWS, _deflated(_ROWS, data)
    if smaller is None:
        form, smaller = PLAIN, data
    return form.to_bytes() + (at % MINUTE).to_bytes(2) + smaller


def unpacked(minute: int, operation_id: str | None, whole: bytes) -> tuple[int, dict[str, Any]]:
    """The exact time, ms, and the body of a row of this minute, ms.

    Raises:
        ValueError: it is nothing that `packed` makes.
    """
    form, data = whole[0] if whole else -1, whole[_HEAD:]
    if form != PLAIN:
        data = _inflated(form, data)
    own = (_own(operation_id) or "").encode()
    text = _MARKS.sub(lambda found: own if found[1] is None else b'"%s"' % _hex(found[1]), data)
    at, body = minute + int.from_bytes(whole[1:_HEAD]), json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("it is no object")
    return at, _moved(cast(dict[str, Any], body), at)


def shortened(value: bytes) -> bytes | None:
    """A value, deflated; None if that makes it no shorter."""
    smaller = _deflated(_VALUES, value) if len(value) >= _SHORT else None
    if smaller is None or len(smaller) + 1 >= len(value):
        return None
    return _VALUES.to_bytes() + smaller


def lengthened(short: bytes) -> bytes:
    """The value of what `shortened` made.

    Raises:
        ValueError: it is nothing of that kind.
    """
    return _inflated(short[0] if short else -1, short[1:])


_SHORT = 16


def _deflated(form: int, data: bytes) -> bytes | None:
    """None if it is longer than what is inflated, or would be."""
    if len(data) > MOST:
        return None
    deflate = _DEFLATES[form].copy()
    smaller = deflate.compress(data) + deflate.flush()
    return smaller if len(smaller) < len(data) else None


def _inflated(form: int, data: bytes) -> bytes:
    dictionary = DICTIONARIES.get(form)
    if dictionary is None:
        raise ValueError(f"there is no dictionary {form}")
    inflate = zlib.decompressobj(_WINDOW, dictionary)
    try:
        text = inflate.decompress(data, MOST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError("the text is cut off, longer than any, or followed by more")
    return text


def _moved(body: Mapping[str, object], by: int) -> dict[str, Any]:
    """A body with its times moved."""
    told = _shifted(body, by)
    changed = told.get("set")
    if isinstance(changed, dict):
        told["set"] = _shifted(cast(dict[str, Any], changed), by)
    return told


def _shifted(told: Mapping[str, object], by: int) -> dict[str, Any]:
    return {
        name: value + by if name in _TIMES and type(value) is int else value
        for name, value in told.items()
    }


def _own(operation_id: str | None) -> str | None:
    """The part of an operation's name that is its own, where it can be no other word."""
    if operation_id is None:
        return None
    _, _, own = operation_id.partition("_")
    return own if len(own) >= _TOKEN and own.isalnum() else None


_TOKEN = 12


def _hex(digest: bytes) -> bytes:
    return digest.hex().encode()


_encode = json.JSONEncoder(check_circular=False, sort_keys=True, separators=(",", ":")).encode

_FIRST = "".join(
    (
        # Words of the rules and fields that come seldom.
        '"option":"extend","why":"no longer wanted","channel":"terminal","operator":"',
        '"times":1,"sent":true,"again_at":"host":"',
        '"because":"op_"notice":"may_still_run","outcome":"answered","take":{"id":"',
        '"retry_after_ms":"fault":"timeout","closed","connect","crash"',
        'rate_limited","retry_later","server_error","no_answer","rejected","unknown_state',
        '"reason":"unclear_write","approval_required","deadline_exceeded","integration_failure',
        'provider_unreachable","request_budget_exhausted","transport_budget_exhausted',
        '"authorisation":"esc_"manual_extension","provider_retry_after","circuit_open',
        '"priority":"background","request_class":"safe_write","key":"parent_id":"op_',
        '"approve_by":null,"approve_deadline":null,"not_before":"once":null,"once_until":null,',
        '"pending":null,"result_name":"superseded_by":"useful_until":"wait_used":"search":{',
        '"rate_limited_used":1,"lookups_used":1,"failed","escalated',
        '{"certainty":"unknown"}{"task":"',
        '"case":"esc_","event":"stopped","fault":"","meaning":"reason":"","set":{"answered":false,',
        '"certainty":"maybe_applied","failure":{"code":"","message":"","status":"},"next_at":null,',
        '"sent":true,"state":"escalated","transport_failures_used":1,"waiting_for":null}}',
        '{"event":"held","set":{"delay":1000,"delay_source":"scope_limit","next_at":1000,',
        '"waiting_for":"slot"}}{"event":"postponed","set":{"state":"delayed","waiting_for":"scope',
        '"task":"","set":{"account":"default","action":"","answered":false,"attempts_max":1,',
        '"attempts_used":0,"authorisation":"contract","binding":"certainty":"not_sent",',
        '"created_at":0,"deadline_at":3600000,"extensions_max":2,"extensions_used":0,"fence":0,',
        '"id":"op_\x01","intent":"kind":"call","kind":"job","lookups_max":0,"lookups_used":0,',
        '"next_at":0,"notices":[],"parsed":0,"principal":"local","priority":"interactive",',
        '"provider":"","rate_limited_max":3,"rate_limited_used":0,"ref":"fb_","request_class":',
        '"read","request_digest":"request_class":"uncertain_write","section":"sent":false,',
        '"state":"queued","status_requests_max":0,"status_requests_used":0,"step":"send","take":',
        '{},"terminal_seen":false,"timeout":30000,"transport_failures_max":5,',
        '"transport_failures_used":0,"treat":{},"wait_max":0,"wait_used":0}}',
        # Requests and their answers.
        '{"attempt":"att_\x01_1","elapsed_ms":10,"event":"accepted","http":202,"meaning":',
        '"accepted","set":{"accepted_at":0,"answered":true,"certainty":"applied","delay":5000,',
        '"delay_source":"local_backoff","expected_at":600000,"http_at":0,"http_status":202,',
        '"next_at":5000,"progress_at":0,"provider_job":"","provider_state":"queued","sent":true,',
        '"state":"waiting","step":"status","take":{"id":""},"waiting_for":"provider"},"state":"',
        '{"attempt":"att_\x01_1","elapsed_ms":10,"event":"succeeded","http":200,"meaning":"done",',
        '"set":{"answered":true,"certainty":"applied","http_at":0,"http_status":200,"next_at":null,',
        '"result":{"bytes":1,"content_type":"application/json","name":"","sha256":"sent":true,',
        '"state":"succeeded","validated":true}}',
        '{"attempt":"att_\x01_1","elapsed_ms":1,"event":"succeeded","http":200,"meaning":',
        '"succeeded","set":{"delay":null,"delay_source":null,"http_at":0,"next_at":null,',
        '"observed_at":0,"progress_at":0,"provider_state":"succeeded","state":"succeeded",',
        '"terminal_seen":true,"validated":true,"waiting_for":null},"state":"done"}',
        '{"attempt":"att_\x01_1","authorisation":"contract","event":"admitted","number":1,"scope":',
        '["","send_by":10000,"set":{"attempts_used":1,"fence":1,"next_at":45000,"sent_at":0,',
        '"state":"sending"},"step":"send","trigger":"agent"}',
        '{"attempt":"att_\x01_3","elapsed_ms":10,"event":"observed","http":200,"meaning":"waiting",',
        '"set":{"delay":5000,"delay_source":"budget_pace","http_at":0,"next_at":5000,',
        '"observed_at":0,"parsed":2,"progress_at":0,"provider_state":"running"},"state":"running"}',
        '{"attempt":"att_\x01_2","authorisation":"contract","event":"noted","number":2,"scope":["',
        '"],"send_by":10000,"set":{"fence":2,"next_at":45000,"status_requests_used":1},',
        '"step":"status","trigger":"schedule"}',
    )
).encode()
"""Dictionary 1, of rows: what bodies say most often, the most usual last."""

_SECOND = "".join(
    (
        '{"code":"","message":"","error":{"type":"","detail":"","id":"","status":"","state":"",',
        '"name":"","created_at":"2026-01-01T00:00:00Z","updated_at":"","progress":0,"result":{',
        '"data":[{"url":"',
        '[["Server","nginx"],["Transfer-Encoding","chunked"],["Vary","Accept-Encoding, Origin"],',
        '["Strict-Transport-Security","max-age=31536000; includeSubDomains; preload"],',
        '["X-Content-Type-Options","nosniff"],["X-Frame-Options","DENY"],["Referrer-Policy","',
        '["Access-Control-Allow-Origin","*"],["Access-Control-Expose-Headers","["Alt-Svc","h3=',
        '["cf-ray","["cf-cache-status","DYNAMIC"],["Via","1.1 google"],["Age","0"],["Location","',
        'https://["Link","<https://["Set-Cookie","["WWW-Authenticate","Bearer"],["Idempotency-Key","',
        '["X-RateLimit-Reset","17"],["X-RateLimit-Remaining","99"],["X-RateLimit-Limit","100"],',
        '["RateLimit-Policy","["Retry-After","5"],["ETag","W/["Last-Modified","["Cache-Control","',
        'no-cache, no-store, max-age=0, must-revalidate, private"],["Pragma","no-cache"],["Expires',
        '","0["X-Request-Id","["Connection","keep-alive"],["Content-Encoding","gzip"],["Content-',
        'Length","["Content-Type","application/json; charset=utf-8"],["Date","Mon, 01 Jan 2026 00:',
        '00:00 GMT"],["date","Mon, 01 Feb 2026 00:00:00 GMT"],["server","uvicorn"],',
        '["content-length","100"],',
        '["content-type","application/json"]]{"dataset":"","arguments":{"id":"","',
        '{"method":"GET","url":"https://api.","method":"POST","url":"https://api.","headers":[["Accept",',
        '"application/json"],["Content-Type","application/json"]],"authenticate":true,"secret":false,',
        '"allow_hosts":[],"from_answer":false,"max_bytes":1048576,"timeout":30000,',
        '"fresh_connection":false}',
    )
).encode()
"""Dictionary 2, of values: requests, answers, and headers."""

DICTIONARIES = {1: _FIRST, 2: _SECOND}
"""By their numbers. None ever changes: another one gets another number."""
_ROWS, _VALUES = 1, 2
_DEFLATES = {
    form: zlib.compressobj(6, zlib.DEFLATED, _WINDOW, 4, zlib.Z_DEFAULT_STRATEGY, dictionary)
    for form, dictionary in DICTIONARIES.items()
}
"""Copied for each text, which is faster than to begin anew."""
