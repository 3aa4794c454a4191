"""The files of results, and whose they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forbear.server.artifacts import Artifacts

LARGE = b"x" * 100_000


def kept(artifacts: Artifacts, owned: str, body: bytes = LARGE) -> Path:
    told = asyncio.run(artifacts.keep(owned, "result", "text/plain", body, partial=False))
    return Path(str(told["file"]))


@pytest.mark.requirement("D02")
def test_a_late_owner_never_touches_the_file_of_the_result(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    result = kept(artifacts, "op_a.2")
    late = kept(artifacts, "op_a.1", b"y" * 100_000)
    assert late != result
    assert result.read_bytes() == LARGE


@pytest.mark.requirement("A06")
def test_every_file_of_an_operation_is_removed_and_no_other(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    gone = [kept(artifacts, owned) for owned in ("op_a.1", "op_a.12")]
    left = [kept(artifacts, owned) for owned in ("op_ab.1", "op_b.1")]
    older, draft = tmp_path / "op_a", tmp_path / ".op_a.3"
    older.write_bytes(LARGE)
    draft.write_bytes(LARGE)

    artifacts.remove("op_a")

    assert [path for path in (*gone, older, draft) if path.exists()] == []
    assert all(path.exists() for path in left)
