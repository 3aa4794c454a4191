"""What is sent to people goes through the same guards as what is sent to providers."""

from __future__ import annotations

import pytest
from tests.server.sending import post, upstream
from tests.support import ManualClock

from forbear.server.egress import Resolver
from forbear.server.fake import Answer, FakeProvider

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("E14")]


async def test_a_telling_carries_no_credential_of_a_provider_and_follows_nothing(
    clock: ManualClock,
) -> None:
    async with FakeProvider() as hook:
        elsewhere = (("Location", f"{hook.base_url}/elsewhere"),)
        hook.script("POST /hook", Answer(307, headers=elsewhere), Answer(204))
        async with upstream(clock, hook.base_url) as sender:
            first = await sender.post(post(f"{hook.base_url}/hook"))
            second = await sender.post(post(f"{hook.base_url}/hook"))
        assert (first.status, second.status) == (307, 204)
        assert [one.path for one in hook.arrivals] == ["/hook", "/hook"]
        assert all("authorization" not in one.headers for one in hook.arrivals)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://hooks.example/x", "10.0.0.7"),
        ("https://hooks.example/x", "169.254.169.254"),
        ("https://hooks.example/x", "127.0.0.1"),
        ("http://hooks.example/x", "93.184.215.14"),
    ],
)
async def test_a_telling_goes_to_public_addresses_by_https_or_to_this_machine(
    clock: ManualClock, url: str, address: str
) -> None:
    resolver = Resolver(lambda host: [address])
    async with upstream(clock, "https://api.example", resolver=resolver) as sender:
        reply = await sender.post(post(url))
    assert (reply.sent, reply.fault) == (False, "egress_refused")
