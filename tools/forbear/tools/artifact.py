"""Large results: a file for callers of this machine, a resource for callers of any other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from forbear.rules.inert import discreet
from forbear.rules.model import Operation

URI = "forbear://artifacts/"
"""What an artifact's address begins with; the id of its operation follows."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The content of a large result."""

    content: str | bytes
    content_type: str


def as_resource(op: Operation) -> Operation:
    """The operation with its large result as an address that MCP reads, and no path of ours."""
    if op.result is None or "file" not in op.result:
        return op
    shown = {
        "resource" if name == "file" else name: f"{URI}{op.id}" if name == "file" else value
        for name, value in op.result.items()
    }
    return replace(op, result=shown)


def read(op: Operation) -> Artifact | None:
    """What stands in the file of an operation's result; None if there is none. Reads the disk.

    Of a text, addresses are without their queries, as in every answer.
    """
    if op.result is None or "file" not in op.result:
        return None
    try:
        body = Path(op.result["file"]).read_bytes()
    except FileNotFoundError:
        return None
    text = "preview" in op.result
    content = discreet(body.decode("utf-8-sig", "replace")) if text else body
    return Artifact(content, str(op.result.get("content_type") or "application/octet-stream"))
