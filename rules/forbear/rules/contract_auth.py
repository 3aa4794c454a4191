"""The credential of a contract, and whether every request can carry it where it is to go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forbear.rules.contract import Action, Auth, Job, Request, Template, Tree
from forbear.rules.contract_keys import CLIENT_AUTH, SCHEME
from forbear.rules.contract_kinds import Fault, Place, Section, nearest
from forbear.rules.contract_request_terms import (
    CLIENT_ID_HEADER,
    PREFIX,
    REFERENCE,
    TOKEN_URL,
    fill_token_url,
)
from forbear.rules.contract_terms import TEXT, TEXTS
from forbear.rules.requests import member_steps
from forbear.rules.toml_lines import Path
from forbear.rules.values import members

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "bearer": ("secret",),
    "basic": ("user",),
    "header": ("name", "secret"),
    "query": ("name", "secret"),
    "body": ("name", "secret"),
    "oauth2_client": ("token_url", "client_id", "client_secret"),
}
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    **_NEEDED,
    "basic": ("user", "password"),
    "header": ("name", "prefix", "secret"),
    "oauth2_client": (
        *_NEEDED["oauth2_client"],
        "scope",
        "client_auth",
        "client_id_header",
    ),
}


def auth(section: Section, account: Mapping[str, str]) -> Auth:
    """References to the credential; its keys are those of its scheme."""
    scheme = section.get("scheme", SCHEME, "none")
    for key in _NEEDED[scheme]:
        if section.has("scheme") and not section.has(key):
            section.place.complain(f"is {scheme} and has no {key}", f"add {key} = …")
    for key in section.values:
        if key not in ("scheme", "exec", *_ALLOWED[scheme]):
            section.complain(
                key, f"is no key of the scheme {scheme}", nearest(key, _ALLOWED[scheme])
            )
    found = Auth(
        scheme,
        section.get("name", TEXT),
        section.get("secret", REFERENCE),
        section.get("user", TEXT),
        section.get("password", REFERENCE),
        _token_url(section, account),
        section.get("client_id", TEXT),
        section.get("client_secret", REFERENCE),
        section.get("scope", TEXT),
        section.get("exec", TEXTS),
        section.get("client_auth", CLIENT_AUTH),
        section.get("client_id_header", CLIENT_ID_HEADER),
        section.get("prefix", PREFIX),
    )
    if scheme == "basic" and found.user is not None and not section.has("password"):
        section.place.at("user").read(REFERENCE, found.user)  # it is itself the secret
    _check_command(section, found)
    return found


def _token_url(section: Section, account: Mapping[str, str]) -> str | None:
    stated = section.get("token_url", TOKEN_URL)
    if stated is None:
        return None
    try:
        return fill_token_url(stated, account)
    except Fault as fault:
        section.complain("token_url", fault.problem, fault.fix)
        return None


def _check_command(section: Section, found: Auth) -> None:
    """`exec:` stands for the one command in `exec`."""
    commands = [
        secret
        for secret in (found.secret, found.user, found.password, found.client_secret)
        if secret == "exec:"
    ]
    if commands and not found.exec:
        section.place.complain(
            "runs a command and does not say which", 'add exec = ["program", "argument"]'
        )
    if len(commands) > 1:
        section.complain("exec", "is one command for two secrets", "use env: or file: for one")
    if found.exec is not None and not commands:
        section.complain("exec", "is used by no secret", 'write secret = "exec:"')


def check_carriers(place: Place, action: Action, shared: Auth) -> None:
    """A narrower secret needs a way in, and a secret in the body needs a body with room for it."""
    if isinstance(action, Job) and action.status.secret is not None:
        _check_narrower(place.at("status", "secret"), action.status.secret, shared)
    if shared.scheme != "body" or shared.name is None:
        return
    for path, request in _requests(action):
        if request.authenticate and request.name != "absent":
            _check_body(place.at(*path), request, shared.name)
    rule = action.idempotency
    if rule is not None and rule.place == "body":
        for key, names in (("at", (rule.name,)), ("on_repeat", tuple(rule.on_repeat or ()))):
            if shared.name in names:
                place.at("idempotency", key).complain(
                    f"puts {shared.name!r} into the body, where [auth] puts the secret",
                    "give one of the two another place",
                )


def _check_narrower(place: Place, secret: str, shared: Auth) -> None:
    if shared.scheme in ("none", "oauth2_client"):
        place.complain(
            f"cannot go onto a request with the scheme {shared.scheme}",
            "write [auth] with bearer, basic, header, query or body",
        )
    if secret == "exec:":
        place.complain(
            "has no command of its own", 'use "env:NAME", "file:/path" or "keyring:service/user"'
        )


def _requests(action: Action) -> Iterator[tuple[Path, Request]]:
    """The requests of an action, each with its place in it."""
    if isinstance(action, Job):
        yield ("submit",), action.send
        yield ("status",), action.status
        alone = set(action.results) == {"result"}
        for name, result in action.results.items():
            yield ("result",) if alone else ("results", name), result
        if action.cancel is not None:
            yield ("cancel",), action.cancel
    else:
        yield (), action.send
    if action.lookup is not None:
        yield ("lookup",), action.lookup.request


def _check_body(place: Place, request: Request, name: str) -> None:
    if request.body is None and not request.form:
        place.complain(
            f"has no body, and the secret goes into its member {name!r}",
            'write a method with a body and body = {} (a read by POST also class = "read"), or '
            "auth = false",
        )
    elif request.form and name.startswith("/"):
        place.complain(
            f"is a form, and the secret goes to {name!r}",
            "write the plain name of a field into [auth] name",
        )
    elif _taken(request, name):
        place.complain(
            f"states {name!r}, where [auth] puts the secret", "take it out: the sender adds it"
        )


def _taken(request: Request, name: str) -> bool:
    """Whether the contract itself already puts something where the secret goes."""
    steps = member_steps(name)
    if request.form:
        return any(field == name for field, _ in request.form)
    if any(pointer.steps[: len(steps)] == steps for pointer, _ in request.merge):
        return True
    here: Tree = request.body
    for step in steps[:-1]:
        held = members(here)
        if held is None or step not in held:
            return held is None and here is not None and not isinstance(here, Template)
        here = held[step]
    held = members(here)
    return steps[-1] in held if held is not None else not isinstance(here, Template)


def check_hosts(place: Place, job: Job, allow_hosts: tuple[str, ...]) -> None:
    """No credential goes to hosts that a wildcard names."""
    for name, result in job.results.items():
        wild = any(host.startswith("*.") for host in allow_hosts)
        if wild and result.url is not None and result.authenticate:
            path = ("result",) if set(job.results) == {"result"} else ("results", name)
            place.at(*path, "auth").complain(
                "would send the credential to any host of a wildcard in allow_hosts",
                "name the host in full, or write auth = false",
            )
