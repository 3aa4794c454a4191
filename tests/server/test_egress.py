"""The network guard, on texts and with a resolver that a test controls."""

from __future__ import annotations

import asyncio
import re
import socket
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forbear.server.egress import (
    EgressRefused,
    Origin,
    Resolver,
    check_address,
    check_url,
    read_origin,
    takes_credential,
)

BASE = "https://api.exp.example/v1"
HOSTS = ("files.exp.example", "eu.exp.example:8443", "*.blob.example")


@pytest.mark.parametrize(
    "url",
    [
        "https://api.exp.example/v1/exports/1?x=%2F&y=a+b",
        "https://API.Exp.Example:443/other",
        "HTTPS://api.exp.example",
        "https://files.exp.example/f.csv?sig=abc%3D",
        "https://eu.exp.example:8443/",
        "https://acct.blob.example/c",
    ],
)
def test_the_origin_and_the_listed_hosts_are_allowed(url: str) -> None:
    assert check_url(url, BASE, HOSTS, from_answer=True) is None


@pytest.mark.requirement("C04")
@pytest.mark.parametrize(
    "url",
    [
        "http://api.exp.example/v1",
        "ftp://api.exp.example/v1",
        "//api.exp.example/v1",
        "/v1/exports",
        "https://api.exp.example:8443/",
        "https://api.exp.example:0/",
        "https://api.exp.example:/",
        "https://api.exp.example:99999/",
        "https://evil.example/",
        "https://api.exp.example.evil.example/",
        "https://api.exp.example./",
        "https://api.exp.example@evil.example/",
        "https://user:pw@api.exp.example/",
        "https://api.exp.example\\@evil.example/",
        "https://evil.example\\.api.exp.example/",
        "https://api.exp.example#@evil.example/",
        "https://api.exp.example/x#y",
        "https://api.exp.example/../admin",
        "https://api.exp.example/a/%2e%2E/admin",
        "https://api.exp.example/a/..%2fadmin",
        "https://api.exp.example/a b",
        "https://api.exp.example/\r\nX: y",
        "https://api.exp.ex%61mple/",
        "https://ap\u0131.exp.example/",
        "https://\uff41pi.exp.example/",
        "https://files.exp.example:8443/",
        "https://eu.exp.example/",
        "https://blob.example/",
        "https://a.b.blob.example/",
        "https://.blob.example/",
        "https://evilblob.example/",
        "https://169.254.169.254/latest/meta-data",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://[::1]/",
    ],
)
def test_any_other_address_is_refused(url: str) -> None:
    for from_answer in (True, False):
        assert check_url(url, BASE, HOSTS, from_answer) is not None


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "https://evil.example/op/1"])
def test_SE_03_a_status_address_elsewhere_is_refused_by_place_not_path(url: str) -> None:
    reason = check_url(url + "?sig=TOPSECRET", BASE, HOSTS, from_answer=True)
    assert reason is not None
    assert "provider's answer" in reason
    assert "TOPSECRET" not in reason


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f.1", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5"),
        *("[::ffff:7f00:1%25eth0]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]x", "[v1.x]", "256.1.1.1"),
        *("-api.exp.example", "api..exp.example", "a" * 64 + ".example", "0x.example.0x7f"),
    ],
)
def test_other_spellings_of_addresses_are_not_hosts(host: str) -> None:
    assert isinstance(read_origin(f"https://{host}/"), str)


def test_plain_http_is_for_this_machine_and_a_provider_on_it() -> None:
    assert check_url("http://127.0.0.1:9000/x", "http://127.0.0.1:9000", ()) is None
    assert check_url("http://[::1]:9000/x", "http://[::1]:9000", ()) is None
    assert check_url("http://localhost:9001/x", "http://localhost:9000", ()) is not None
    assert check_url("http://localhost:9001/", "http://localhost:9000", ("localhost:9001",)) is None
    assert check_url("http://exp.example:9000/", "http://exp.example:9000", ()) is not None
    assert check_url("https://localhost/", BASE, ("localhost",)) is not None


@pytest.mark.requirement("C02")
def test_the_credential_goes_below_base_url_and_to_hosts_the_request_names() -> None:
    assert takes_credential("https://api.exp.example/v1/jobs?x=/v2", BASE, ())
    assert takes_credential("https://api.exp.example/v1", f"{BASE}/", ())
    assert takes_credential("https://api.exp.example?x=1", "https://api.exp.example", ())
    for elsewhere in ("", "/", "/v2", "/v10/jobs", "/V1/jobs", "/%76%31/jobs"):
        assert not takes_credential(f"https://api.exp.example{elsewhere}", BASE, ())
    assert takes_credential("https://api.exp.example/v2", BASE, ("api.exp.example",))
    assert not takes_credential("https://files.exp.example/", BASE, ())
    assert takes_credential("https://files.exp.example/", BASE, ("files.exp.example",))
    assert not takes_credential("https://files.exp.example:8443/", BASE, ("files.exp.example",))
    assert not takes_credential("https://a.blob.example/", BASE, ("*.blob.example",))
    assert not takes_credential("http://api.exp.example/", BASE, ())


@pytest.mark.requirement("C04")
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1"),
        *("192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16"),
        *("192.0.0.192", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "192.88.99.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8"),
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::1", "2001:0:1::1"),
        *("fe80::1", "fe80::1%eth0", "fec0::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "x"),
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert check_address(address, loopback=False) is not None


def test_public_addresses_pass_and_a_local_name_takes_local_ones_only() -> None:
    assert check_address("93.184.216.34", loopback=False) is None
    assert check_address("2606:2800:220:1::1", loopback=False) is None
    assert check_address("127.0.0.1", loopback=True) is None
    assert check_address("::1", loopback=True) is None
    assert check_address("93.184.216.34", loopback=True) is not None
    assert check_address("169.254.169.254", loopback=True) is not None


@given(st.text(max_size=60))
@example("A?")
@example("a:80/")
@example("[::1]:80?")
def test_no_text_makes_the_check_fail_or_pass_another_host(text: str) -> None:
    check_url(text, BASE, HOSTS)
    origin = read_origin(f"https://{text}.exp.example/")
    if isinstance(origin, Origin):
        # RFC 3986, section 3.2: the authority ends at the first slash, question mark or hash.
        authority = re.split("[/?#]", f"{text}.exp.example")[0].lower()
        shown = re.sub(r":\d*$", "", authority).strip("[]")
        assert origin.host == shown


API = Origin("https", "api.exp.example", 443)


@pytest.mark.anyio
async def test_one_bad_address_among_good_ones_refuses_the_name() -> None:
    resolver = Resolver(lambda host: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(EgressRefused, match=r"api\.exp\.example .* private"):
        await resolver.resolve(API)


@pytest.mark.anyio
async def test_an_address_in_the_url_is_checked_without_a_lookup() -> None:
    def no_lookup(host: str) -> list[str]:
        raise AssertionError(host)

    resolver = Resolver(no_lookup)
    assert await resolver.resolve(Origin("https", "93.184.216.34", 443)) == ("93.184.216.34",)
    with pytest.raises(EgressRefused):
        await resolver.resolve(Origin("https", "169.254.169.254", 443))


@pytest.mark.anyio
async def test_an_unknown_name_is_an_os_error() -> None:
    def unknown(host: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(OSError, match="not known"):
        await Resolver(unknown).resolve(API)
    with pytest.raises(OSError, match="no address"):
        await Resolver(lambda host: []).resolve(API)


@pytest.mark.anyio
async def test_TR_02_stuck_lookups_never_hold_more_than_their_threads() -> None:
    unblock = threading.Event()
    started = threading.Semaphore(0)
    asked: list[str] = []

    def stuck(host: str) -> list[str]:
        asked.append(host)
        started.release()
        unblock.wait(30)
        return ["93.184.216.34"]

    resolver = Resolver(stuck, limit=2)
    tasks = [
        asyncio.create_task(resolver.resolve(Origin("https", f"h{number}.example", 443)))
        for number in (0, 1, 2, 3, 0, 1)
    ]
    for _ in range(2):
        await asyncio.to_thread(started.acquire)
    done, waiting = await asyncio.wait(tasks, timeout=0.05)
    assert not done
    assert sorted(asked) == ["h0.example", "h1.example"]
    for task in list(waiting)[:3]:
        task.cancel()
    unblock.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(result == ("93.184.216.34",) for result in results) == 3
    assert len(asked) == len(set(asked))
