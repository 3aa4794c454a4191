"""Access tokens of an authorisation server: which are let in, as whom, and what others are told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt import algorithms, utils
from tests.e2e.harness import NO_RESULT, QUICK, Data, call, error, furnished
from tests.e2e.over_http import MODERN, Served, configure, rpc, rpc_headers, served

from forbear.server.clock import SystemClock
from forbear.server.fake import Answer, FakeProvider

pytestmark = pytest.mark.anyio

JOB: Data = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}
RESOURCE = "https://forbear.example/mcp"


def now() -> int:
    """Seconds since the epoch; servers of their own processes look at the real time."""
    return SystemClock().now().wall // 1_000


OURS = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65_537, 2_048)


def published(name: str, key: Any) -> Data:
    kind = algorithms.RSAAlgorithm if key is RSA else algorithms.ECAlgorithm
    told: Data = json.loads(kind.to_jwk(key.public_key()))
    return {**told, "kid": name, "use": "sig"}


KEYS = {"keys": [published("ours", OURS), published("rsa", RSA)]}
PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


class Issued:
    """Tokens of an issuer, good unless told otherwise."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def claims(self, **other: Any) -> Data:
        good = {
            "iss": self.issuer,
            "aud": RESOURCE,
            "sub": "alice",
            "exp": now() + 3_600,
            "scope": "forbear other",
        }
        return {name: value for name, value in {**good, **other}.items() if value is not None}

    def token(
        self,
        key: Any = OURS,
        kid: str | None = "ours",
        alg: str = "ES256",
        typ: str = "at+jwt",
        **other: Any,
    ) -> str:
        headers = {"typ": typ} if kid is None else {"typ": typ, "kid": kid}
        return jwt.encode(self.claims(**other), key, alg, headers)


def forged(token: str) -> str:
    """Signed with the published key as if it were a shared secret (an old attack)."""
    head = {"alg": "HS256", "typ": "at+jwt", "kid": "rsa"}
    claims = jwt.decode(token, options={"verify_signature": False})

    def part(value: Any) -> bytes:
        return utils.base64url_encode(json.dumps(value).encode())

    told = part(head) + b"." + part(claims)
    signature = algorithms.HMACAlgorithm(algorithms.HMACAlgorithm.SHA256)
    return (told + b"." + utils.base64url_encode(signature.sign(told, PEM))).decode()


BAD: dict[str, Callable[[Issued], str]] = {
    "signed by another": lambda by: by.token(OTHER),
    "with a key that nobody published": lambda by: by.token(OTHER, kid="new"),
    "not signed": lambda by: by.token(None, alg="none"),
    "signed with the public key": lambda by: forged(by.token()),
    "of another issuer": lambda by: by.token(iss="https://evil.example"),
    "for another resource": lambda by: by.token(aud="https://other.example/mcp"),
    "for nothing": lambda by: by.token(aud=None),
    "over": lambda by: by.token(exp=now() - 60),
    "without an end": lambda by: by.token(exp=None),
    "not yet good": lambda by: by.token(nbf=now() + 600),
    "of nobody": lambda by: by.token(sub=None),
    "bound to a sender": lambda by: by.token(cnf={"jkt": "x"}),
    "of another kind": lambda by: by.token(typ="logout+jwt"),
    "cut": lambda by: by.token()[:-4],
    "no token": lambda by: "a.b.c",
}


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as found:
        yield found


@pytest.fixture(name="signed", scope="module")
async def _signed(
    issuer: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    home = tmp_path_factory.mktemp("oauth")
    issuer.script("GET /jwks", *[Answer(json=KEYS)] * 4)
    configure(
        home,
        f'[http.oauth]\nissuer = "{issuer.base_url}"\njwks = "{issuer.base_url}/jwks"\n'
        f'resource = "{RESOURCE}"\nscopes = ["forbear"]\n',
    )
    async with furnished(home, JOB), served(home, "--no-worker") as server:
        yield server


async def listed(server: Served, token: str) -> Any:
    async with server.web(token) as web:
        headers = rpc_headers("tools/list")
        return await web.post("/mcp", json=rpc("tools/list"), headers=headers)


@pytest.mark.requirement("M06")
@pytest.mark.parametrize(
    "token",
    [
        pytest.param(lambda by: by.token(), id="elliptic"),
        pytest.param(lambda by: by.token(RSA, kid="rsa", alg="RS256"), id="RSA"),
        pytest.param(lambda by: by.token(kid=None), id="without the name of a key"),
        pytest.param(lambda by: by.token(typ="JWT"), id="without a kind"),
        pytest.param(lambda by: by.token(aud=["x", RESOURCE]), id="for several"),
        pytest.param(lambda by: by.token(exp=now() - 1), id="of a clock that is a little off"),
    ],
)
async def test_a_token_of_the_issuer_for_us_is_let_in(
    issuer: FakeProvider, signed: Served, token: Callable[[Issued], str]
) -> None:
    answer = await listed(signed, token(Issued(issuer.base_url)))
    assert answer.status_code == 200, answer.text


@pytest.mark.requirement("M06")
@pytest.mark.parametrize("what", BAD)
async def test_any_other_token_is_refused_and_told_where_to_get_one(
    issuer: FakeProvider, signed: Served, what: str
) -> None:
    answer = await listed(signed, BAD[what](Issued(issuer.base_url)))
    assert answer.status_code == 401
    challenge = answer.headers["www-authenticate"]
    assert 'error="invalid_token"' in challenge
    place = "https://forbear.example/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{place}"' in challenge
    assert 'scope="forbear"' in challenge


async def test_a_token_without_the_scope_is_told_so(issuer: FakeProvider, signed: Served) -> None:
    answer = await listed(signed, Issued(issuer.base_url).token(scope="other"))
    assert answer.status_code == 403
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


async def test_the_resource_describes_itself(issuer: FakeProvider, signed: Served) -> None:
    async with signed.web() as web:
        told = (await web.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert told["resource"] == RESOURCE
    assert told["authorization_servers"] == [issuer.base_url]
    assert told["scopes_supported"] == ["forbear"]


async def test_two_subjects_are_two_principals(issuer: FakeProvider, tmp_path: Path) -> None:
    by = Issued(issuer.base_url)
    issuer.script("GET /jwks", Answer(json=KEYS))
    configure(
        tmp_path,
        f'[http.oauth]\nissuer = "{issuer.base_url}"\njwks = "{issuer.base_url}/jwks"\n'
        f'audience = "{RESOURCE}"\n',
    )
    async with (
        furnished(tmp_path, JOB, states=("queued",)),
        served(tmp_path) as server,
        server.client(MODERN, by.token()) as alice,
        server.client(MODERN, by.token(sub="bob")) as bob,
    ):
        asked = {"provider": "exp", "job": "export", "arguments": {"dataset": "s"}}
        job = (await call(alice, "submit_job", **asked))["operation_id"]
        told = error(await call(bob, "operation_status", operation_id=job))
        assert told["code"] == "unknown_operation"


@pytest.mark.requirement("M06")
async def test_the_issuer_is_asked_about_tokens_that_say_nothing(
    issuer: FakeProvider, tmp_path: Path
) -> None:
    claims = Issued(issuer.base_url).claims
    configure(
        tmp_path,
        f'[http.oauth]\nissuer = "{issuer.base_url}"\nresource = "{RESOURCE}"\n'
        f'introspection = "{issuer.base_url}/introspect"\n'
        'client_id = "forbear"\nclient_secret = "env:SECRET"\n',
    )
    issuer.script(
        "POST /introspect",
        Answer(json={"active": True, **claims(iss=None)}),
        Answer(json={"active": False}),
        Answer(json={"active": True, **claims(aud="https://other.example")}),
        Answer(json={"active": True, **claims(iss="https://evil.example")}),
        Answer(503),
    )
    async with furnished(tmp_path, JOB), served(tmp_path, "--no-worker", SECRET="s3cret") as server:
        good = [(await listed(server, "opaque-1")).status_code for _ in range(3)]
        assert good == [200, 200, 200]
        assert issuer.count("POST /introspect") == 1
        for number in (2, 3, 4):
            assert (await listed(server, f"opaque-{number}")).status_code == 401
        unknown = await listed(server, "opaque-5")
        assert unknown.status_code == 503
        assert unknown.headers["retry-after"]
        asked = [one for one in issuer.arrivals if one.path == "/introspect"]
        assert asked[0].headers["authorization"].startswith("Basic ")
        assert asked[0].body == b"token=opaque-1&token_type_hint=access_token"
