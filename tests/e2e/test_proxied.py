"""A whole process behind the proxy of its `config.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import MINUTE, furnished, process
from tests.server.test_proxy import PASSWORD, connect_proxy
from tests.support import ManualClock

pytestmark = pytest.mark.anyio


def stored_in(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("forbear.db*"))


@pytest.mark.requirement("R16", "R08")
async def test_a_proxy_that_refuses_sends_nothing_and_every_connect_has_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_PASSWORD", PASSWORD)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with (
        connect_proxy(answer=b"HTTP/1.1 407 No\r\n\r\n") as proxy,
        furnished(tmp_path, states=None, base_url="https://api.exp.example") as provider,
    ):
        (tmp_path / "config.toml").write_text(
            f'[proxy]\nurl = "http://127.0.0.1:{proxy.port}"\n'
            'user = "forbear"\npassword = "env:PROXY_PASSWORD"\n'
        )
        async with process(provider, tmp_path, ManualClock()) as on:
            job = (await on.asked())["operation_id"]
            await on.passes(5 * MINUTE)
            attempts = await on.app.store.read.attempts_of(job)
            full = await on.full(job, timeline=True)

        assert len(proxy.heads) == len(attempts) > 1
        assert {one.outcome for one in attempts} == {"not_sent"}
        note = f"the proxy 127.0.0.1:{proxy.port} answered 407 to CONNECT api.exp.example:443"
        assert {one.note for one in attempts} == {note}
        assert "submission not sent (proxy)" in "\n".join(full["timeline"])
        assert full["budgets"]["attempts"]["used"] == 0
        assert PASSWORD.encode() not in stored_in(tmp_path)
        assert PASSWORD not in repr(full)
