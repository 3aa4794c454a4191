"""Permits, requests and a sender for tests of the wire."""

from __future__ import annotations

import ssl
import subprocess
from itertools import count
from pathlib import Path

from forbear.rules.contract import Auth
from forbear.rules.ports import Clock, Outbound, Permit
from forbear.server.credentials import Credentials
from forbear.server.egress import Resolver
from forbear.server.upstream import Target, Upstream

TOKEN = "s3cr3t-T0ken"
BEARER = Auth("bearer", secret="env:EXP_TOKEN")

_numbers = count(1)


def permit(clock: Clock, window: int = 15_000) -> Permit:
    """A fresh permit that may be used for `window` ms from now."""
    now = clock.now()
    return Permit(
        attempt_id=f"attempt-{next(_numbers)}",
        operation_id="operation-1",
        fence=1,
        send_by=now.wall + window,
        send_by_boot=now.boot + window,
        boot_id=now.boot_id,
        provider="exp",
        account="acct_17",
    )


def upstream(
    clock: Clock,
    base_url: str,
    *,
    auth: Auth = BEARER,
    allow_hosts: tuple[str, ...] = (),
    resolver: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
) -> Upstream:
    target = Target(base_url, auth, allow_hosts)
    return Upstream(
        clock,
        lambda provider, account: target,
        Credentials({"EXP_TOKEN": TOKEN}),
        resolver=resolver,
        tls=tls or ssl.create_default_context(),
    )


def get(url: str, timeout: int = 5_000) -> Outbound:
    return Outbound("GET", url, timeout=timeout)


def post(url: str, body: bytes = b"{}", timeout: int = 5_000) -> Outbound:
    fields = (("Content-Type", "application/json"),)
    return Outbound("POST", url, fields, body, timeout=timeout)


def certificate(folder: Path, names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server with a self-signed certificate, and for a client that trusts it."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))
