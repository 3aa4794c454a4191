"""Results of jobs: small ones stand in the answer, large ones become files in `artifacts/`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from forbear.rules.inert import inert
from forbear.rules.values import check_depth

INLINE = 16_000
"""Bytes of text or JSON that stand in an answer."""

PREVIEW = 500
"""Characters of a larger text that stand in an answer."""

_TEXTUAL = ("text/", "application/json", "application/xml", "application/x-ndjson")


class Artifacts:
    """The folder of result files of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(
        self,
        owned: str,
        name: str,
        content_type: str | None,
        body: bytes,
        *,
        partial: bool,
    ) -> Mapping[str, object]:
        """The descriptor of a result; a file, if one is needed, is durable when this returns.

        The file is called `owned`: the operation and what names the attempt, so that a late owner,
        whose answer no longer counts, never touches the file of the result.
        """
        kind = inert((content_type or "application/octet-stream").split(";")[0].strip(), 100)
        if len(body) <= INLINE:
            text = _text(kind, body)
            if text is not None:
                described = _described(name, kind, body, partial)
                return {**described, "inline": _parsed(kind, text), "truncated": False}
        return await asyncio.to_thread(self._filed, owned, name, kind, body, partial)

    def _filed(
        self, owned: str, name: str, kind: str, body: bytes, partial: bool
    ) -> Mapping[str, object]:
        path = self._write(owned, body)
        result = {**_described(name, kind, body, partial), "file": str(path), "truncated": True}
        text = _text(kind, body)
        return result if text is None else {**result, "preview": text[:PREVIEW]}

    def remove(self, operation_id: str) -> None:
        """Take away what any owner of an operation kept of its result."""
        for path in self._folder.glob(f"*{operation_id}*"):
            if path.name.lstrip(".").split(".")[0] == operation_id:
                path.unlink(missing_ok=True)

    def _write(self, owned: str, body: bytes) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, draft = self._folder / owned, self._folder / f".{owned}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        return path


def _described(name: str, kind: str, body: bytes, partial: bool) -> dict[str, object]:
    return {
        "name": name,
        "content_type": kind,
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "partial": partial,
    }


def _text(kind: str, body: bytes) -> str | None:
    if not kind.startswith(_TEXTUAL) and not kind.endswith(("+json", "+xml")):
        return None
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _parsed(kind: str, text: str) -> object:
    """JSON as JSON where writing it again changes nothing of value, else the text.

    What is nested too deeply would break everything that shows it.
    """
    if "json" not in kind:
        return text
    try:
        check_depth(text)
        value = json.loads(text)
    except ValueError:
        return text
    return value if json.dumps(value) == json.dumps(json.loads(text, parse_float=str)) else text
