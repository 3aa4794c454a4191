"""A recorded exchange (HAR 1.2): the submission of a job in it, and what asked for its state."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from forbear.rules.draft_exchanges import Exchange
from forbear.rules.exchanges import Received, Sent, Unusable, received, sent
from forbear.rules.ports import Json
from forbear.rules.proposals import fields, state
from forbear.rules.values import elements, members, text_of

MOST_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """The job in a recording."""

    submit: Exchange
    status: Exchange
    others: int
    """Requests of the recording that are something else."""


def job_in(recording: Json) -> Found:
    """The submission in a recording, and all requests that asked for the state of its job.

    The submission is the write whose answer has a value that later reads carry in their address;
    of several, the one that was asked about most. Raises Unusable where there is none.
    """
    entries = list(_entries(recording))
    best: tuple[int, Exchange, Exchange] | None = None
    for at, (request, answer) in enumerate(entries):
        if request.method in ("GET", "HEAD") or not _went_well(answer):
            continue
        polls = _polls(answer, entries[at + 1 :])
        if polls and (best is None or len(polls) > best[0]):
            answers = tuple(one for _, one in polls)
            best = len(polls), Exchange(request, (answer,)), Exchange(polls[0][0], answers)
    if best is None:
        raise Unusable(
            f"{_told(entries)}, and no read that carries an id out of a write's answer: record "
            "from before the job is started until it is done, with contents"
        )
    count, submit, status = best
    return Found(submit, status, len(entries) - count - 1)


def _told(entries: Sequence[object]) -> str:
    return (
        f"it has {len(entries)} requests with a JSON answer"
        if entries
        else ("it has no request with a JSON answer")
    )


def _went_well(answer: Received) -> bool:
    return answer.status is None or 200 <= answer.status < 300


def _polls(
    submitted: Received, later: Sequence[tuple[Sent, Received]]
) -> list[tuple[Sent, Received]]:
    """The later reads of one address that has a value of the submission's answer in it."""
    values = {
        text
        for one in fields([submitted])
        for value in one.values
        if (text := text_of(value)) is not None and len(text) > 1
    }
    if (located := submitted.header("location")) is not None:
        values.add(located)
    by_address: dict[str, list[tuple[Sent, Received]]] = {}
    for request, answer in later:
        if request.method == "GET" and values & set(_carried(request)):
            address = f"{request.origin}{request.path}"
            by_address.setdefault(address, []).append((request, answer))
    with_state = {
        address: found
        for address, found in by_address.items()
        if state(fields([answer for _, answer in found])) is not None
    }
    none: list[tuple[Sent, Received]] = []
    return max((with_state or by_address).values(), key=len, default=none)


def _carried(request: Sent) -> Iterator[str]:
    """What an address carries: its segments, its parameters, and itself."""
    yield from map(unquote, request.segments)
    yield from (value for _, value in request.query)
    yield f"{request.origin}{request.path}"
    yield request.path


# --- the file -------------------------------------------------------------------------------


def _entries(recording: Json) -> Iterator[tuple[Sent, Received]]:
    """The requests with a JSON answer, in their order."""
    log = members((members(recording) or {}).get("log"))
    entries = elements(log.get("entries")) if log is not None else None
    if entries is None:
        raise Unusable("it is no HAR file: there is no log with entries in it")
    if len(entries) > MOST_ENTRIES:
        raise Unusable(f"it has more than {MOST_ENTRIES:,} entries; record only the job")
    for entry in entries:
        held = members(entry) or {}
        request, response = members(held.get("request")), members(held.get("response"))
        if request is None or response is None:
            continue
        try:
            yield _sent(request), _received(response)
        except Unusable:
            continue  # a picture, a page: a recording has many


def _sent(request: Mapping[str, Json]) -> Sent:
    posted = members(request.get("postData")) or {}
    kind = text_of(posted.get("mimeType")) or ""
    headers = [pair for pair in _pairs(request.get("headers")) if not pair[0].startswith(":")]
    body = text_of(posted.get("text"))
    parameters = _pairs(posted.get("params"))
    if kind and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", kind))
    multipart = "multipart" in kind or (not body and bool(parameters))
    cookies = _pairs(request.get("cookies"))
    if cookies and not any(name.lower() == "cookie" for name, _ in headers):
        headers.append(("Cookie", "; ".join(f"{name}={value}" for name, value in cookies)))
    return sent(
        (text_of(request.get("method")) or "").upper(),
        text_of(request.get("url")) or "",
        headers,
        None if multipart else body,
        fields=parameters if multipart else None,
    )


def _received(response: Mapping[str, Json]) -> Received:
    content = members(response.get("content")) or {}
    text = text_of(content.get("text")) or ""
    body = text.encode()
    if content.get("encoding") == "base64":
        try:
            body = base64.b64decode(text, validate=True)
        except ValueError:
            raise Unusable("its content is no base64") from None
    status = text_of(response.get("status")) or ""
    code = int(status) if status.isascii() and status.isdecimal() and len(status) == 3 else None
    headers = tuple(_pairs(response.get("headers")))
    if not body.strip():
        return Received(None, code, headers)
    return Received(received(body).body, code, headers)


def _pairs(value: Json) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in elements(value) or ():
        held = members(one) or {}
        name, text = text_of(held.get("name")), text_of(held.get("value"))
        if name:
            found.append((name, text or ""))
    return found
