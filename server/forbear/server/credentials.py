"""From the contract's references to the secrets that go on the wire, and to nowhere else.

A secret lives in a `Credential` from the moment it is resolved to the moment the sender adds it
to the final request and learns what to hide in the answer. It has no other exit: `repr`, errors and
fingerprints do not show it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote_plus

from forbear.rules.contract import Auth
from forbear.rules.ports import Clock
from forbear.rules.tokens import Grant
from forbear.server.clock import SystemClock
from forbear.server.fetching import MAX_SECRET, Fetcher, Found, checked, from_command, from_keyring
from forbear.server.tokens import Tokens

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2: token
_FIELD_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_NO_FIELD_VALUE = "the value has characters that no header can carry -> check it"


@dataclass(frozen=True, slots=True)
class MissingCredential:
    """Why there is no credential, and what to do. Never holds a secret."""

    reference: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reference.removesuffix(':')}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Credential:
    """What one request needs to be let in. Keep it only as long as that request takes."""

    _headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _body: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _bound: tuple[str, ...] = field(default=(), repr=False)
    """What the fingerprint covers: secrets of `env:` and literals, references of the others."""
    _secrets: tuple[str, ...] = field(default=(), repr=False)
    _client: tuple[str, ...] = field(default=(), repr=False)
    """Of a credential whose token is fetched: all that its grant depends on."""
    lacks_token: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    """Whether it is time to fetch its token, now. One that lives on is sent all the same."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Header fields for the final request only."""
        return self._headers

    def query(self) -> tuple[tuple[str, str], ...]:
        """Query parameters, not yet percent-encoded, for the final request only."""
        return self._query

    def body(self) -> tuple[tuple[str, str], ...]:
        """Members or form fields, by name or JSON pointer, for the final request's body only."""
        return self._body

    def fingerprint(self, store_key: bytes) -> str:
        """A keyed name of this credential, 64 hexadecimal digits.

        Changes when the value of an `env:` reference or a literal part of basic changes; rotation
        behind a `file:`, `keyring:` or `exec:` reference keeps it.
        """
        return _digest(store_key, b"credential\0", self._bound)

    def secrets(self) -> tuple[str, ...]:
        """What must be shown nowhere; of a header's value also the last word, after its scheme."""
        return (*self._secrets, *(secret.rpartition(" ")[2] for secret in self._secrets))

    def version(self, store_key: bytes) -> str:
        """A keyed name of the very value in use: a refusal counts until it changes.

        A token is none: its name is that of the client that it was granted to.
        """
        if self._client:
            return _digest(store_key, b"version\0", self._client)
        sent = (text for pair in (*self._headers, *self._query, *self._body) for text in pair)
        return _digest(store_key, b"version\0", tuple(sent))


def _digest(store_key: bytes, purpose: bytes, parts: Sequence[str]) -> str:
    encoded = (part.encode() for part in parts)
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in encoded)
    return hmac.new(store_key, purpose + framed, hashlib.sha256).hexdigest()


class Credentials:
    """Resolves references: `env:` and `file:` anew at each call, the slow ones from a `Fetcher`.

    One that `waits` blocks its thread for the first fetch of a `keyring:` or `exec:` secret, for
    commands; else such a secret counts as missing until it has `arrived`, and nothing ever blocks.
    """

    __slots__ = ("_environment", "_fetcher", "_tokens", "_waits")

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self._environment = environment
        self._fetcher = Fetcher(clock or SystemClock())
        self._tokens = Tokens(clock or SystemClock())
        self._waits = waits

    async def arrived(self, auth: Auth) -> None:
        """Return when every slow secret of `auth` was fetched once, or could not be."""
        slow = dict(self._slow(auth))
        if slow:
            for source, fetch in slow.items():
                self._fetcher.get(source, fetch)
            await self._fetcher.arrived(slow)

    def refused(self, auth: Auth, used: Credential | None = None) -> None:
        """A provider said 401: what can be fetched again is, instead of being used on.

        Of a token only the very one that was `used` is dropped, and its client is in no doubt yet.
        """
        if used is not None and used._client:
            for secret in used._secrets[-1:]:
                self._tokens.drop(used._client, secret)
            return
        for source, _ in self._slow(auth):
            self._fetcher.refused(source)

    def _slow(self, auth: Auth) -> Iterator[tuple[_Source, Callable[[], Found]]]:
        slow = ("keyring:", "exec:") if auth.exec else "keyring:"
        for reference in (auth.secret, auth.user, auth.password, *_client_of(auth)):
            if reference is not None and reference.startswith(slow):
                yield self._source(reference, auth.exec or ())

    def _source(
        self, reference: str, command: tuple[str, ...]
    ) -> tuple[_Source, Callable[[], Found]]:
        """What a slow reference is kept under, and how it is fetched."""
        kind, _, name = reference.partition(":")
        if kind == "keyring":
            return (reference,), partial(from_keyring, name)
        return (reference, *command), partial(from_command, command, self._environment)

    def resolve(self, auth: Auth) -> Credential | MissingCredential:
        """Everything `auth` asks for, or the first thing that is missing."""
        match auth.scheme:
            case "none":
                return Credential(_bound=("none",))
            case "bearer":
                return self._single(auth, auth.secret)
            case "header" | "query" | "body" if auth.name:
                return self._single(auth, auth.secret)
            case "basic":
                return self._basic(auth)
            case "oauth2_client":
                return self._token(auth)
            case _:
                reason = "needs a name -> add name = …"
                return MissingCredential(f"[auth] scheme = {auth.scheme!r}", reason)

    # --- tokens -----------------------------------------------------------------------------

    def client(self, auth: Auth) -> Credential | MissingCredential:
        """What lets a client in at its token endpoint, and nowhere else (RFC 6749, 2.3.1)."""
        pair = self._client_pair(auth)
        if isinstance(pair, MissingCredential):
            return pair
        user, secret = pair
        if auth.client_auth == "post":
            fields = (("client_id", user.value), ("client_secret", secret.value))
            return Credential(_body=fields, _secrets=(secret.value,))
        encoded = f"{quote_plus(user.value)}:{quote_plus(secret.value)}"
        basic = base64.b64encode(encoded.encode()).decode("ascii")
        hidden = (basic, quote_plus(secret.value), secret.value)
        return Credential((("Authorization", f"Basic {basic}"),), _secrets=hidden)

    def granted(self, auth: Auth, grant: Grant, age: int) -> None:
        """Keep a token in memory for the client of `auth`; it was asked for `age` ms ago."""
        pair = self._client_pair(auth)
        if not isinstance(pair, MissingCredential):
            self._tokens.keep(_grounds(auth, *pair), grant, age)

    def _token(self, auth: Auth) -> Credential | MissingCredential:
        """The client's credential by name; on the wire, its token while one lives."""
        pair = self._client_pair(auth)
        if isinstance(pair, MissingCredential):
            return pair
        user, secret = pair
        client = _grounds(auth, user, secret)
        token = self._tokens.of(client)
        if auth.client_id_header is not None and not _FIELD_VALUE.fullmatch(user.value):
            return MissingCredential(user.reference, _NO_FIELD_VALUE)
        named = () if auth.client_id_header is None else ((auth.client_id_header, user.value),)
        return Credential(
            () if token is None else (("Authorization", f"Bearer {token}"), *named),
            _bound=("oauth2_client", auth.token_url or "", user.bound, secret.bound),
            _secrets=(secret.value,) if token is None else (secret.value, token),
            _client=client,
            lacks_token=lambda: self._tokens.due(client),  # no partial: its repr shows what it has
        )

    def _client_pair(self, auth: Auth) -> tuple[_Secret, _Secret] | MissingCredential:
        user = self._read(auth.client_id, auth.exec or (), literal=True)
        if isinstance(user, MissingCredential):
            return user
        secret = self._read(auth.client_secret, auth.exec or ())
        return secret if isinstance(secret, MissingCredential) else (user, secret)

    # --- what is sent as it is ----------------------------------------------------------------

    def secret(self, reference: str) -> str | MissingCredential:
        """The value of a reference that lets nobody in anywhere: a key that signs what we send."""
        found = self._read(reference, ())
        return found if isinstance(found, MissingCredential) else found.value

    def _single(self, auth: Auth, reference: str | None) -> Credential | MissingCredential:
        secret = self._read(reference, auth.exec or ())
        if isinstance(secret, MissingCredential):
            return secret
        name = auth.name or ""
        bound, hidden = (auth.scheme, name, secret.bound), (secret.value,)
        if auth.scheme == "query":
            return Credential(_query=((name, secret.value),), _bound=bound, _secrets=hidden)
        if auth.scheme == "body":
            return Credential(_body=((name, secret.value),), _bound=bound, _secrets=hidden)
        if not _FIELD_VALUE.fullmatch(secret.value):
            return MissingCredential(secret.reference, _NO_FIELD_VALUE)
        if auth.scheme == "bearer":
            field_value = f"Bearer {secret.value}"
            return Credential((("Authorization", field_value),), _bound=bound, _secrets=hidden)
        if not _FIELD_NAME.fullmatch(name):
            return MissingCredential("[auth] name", f"{name!r} is not a header name -> correct it")
        field_value = secret.value if auth.prefix is None else f"{auth.prefix} {secret.value}"
        return Credential(((name, field_value),), _bound=bound, _secrets=hidden)

    def _basic(self, auth: Auth) -> Credential | MissingCredential:
        user = self._read(auth.user, auth.exec or (), literal=True)
        if isinstance(user, MissingCredential):
            return user
        # A user alone is itself the secret, and its password empty.
        password = (
            _Secret("", "", "", referred=False)
            if auth.password is None
            else self._read(auth.password, auth.exec or (), literal=True)
        )
        if isinstance(password, MissingCredential):
            return password
        if ":" in user.value:
            return MissingCredential(
                user.reference, "a user name of basic cannot hold a colon (RFC 7617, section 2)"
            )
        pair = base64.b64encode(f"{user.value}:{password.value}".encode()).decode("ascii")
        bound = ("basic", user.bound, password.bound)
        # With a literal password the user is the secret, else it is a name that answers may hold.
        secret = password if password.referred else user
        hidden = (pair, secret.value) if secret.referred else (pair,)
        return Credential((("Authorization", f"Basic {pair}"),), _bound=bound, _secrets=hidden)

    def _read(
        self, reference: str | None, command: tuple[str, ...], *, literal: bool = False
    ) -> _Secret | MissingCredential:
        if reference is None:
            return MissingCredential("[auth]", 'no secret stated -> add secret = "env:NAME"')
        kind, colon, name = reference.partition(":")
        match kind if colon else "":
            case "env":
                value = self._environment.get(name, "")
                if not value.strip():
                    return MissingCredential(
                        reference, f"{name} is not set -> set it and start this program again"
                    )
                return _Secret(reference, value, value)
            case "file":
                return _by_reference(reference, _read_file(Path(name)))
            case "exec" if not command:
                return MissingCredential(reference, "no command -> add exec = [PROGRAM, WORD]")
            case "keyring" | "exec":
                return _by_reference(reference, self._fetched(*self._source(reference, command)))
            case _ if literal:
                return _Secret("a literal part of [auth]", reference, reference, referred=False)
            case _:
                return MissingCredential("[auth]", "no reference -> write env:NAME or file:/path")

    def _fetched(self, source: _Source, fetch: Callable[[], Found]) -> Found:
        found = self._fetcher.get(source, fetch)
        if found is None and self._waits:
            self._fetcher.wait(source)
            found = self._fetcher.get(source, fetch)
        return "no answer yet -> see that it asks nobody anything" if found is None else found


@dataclass(frozen=True, slots=True)
class _Secret:
    reference: str
    value: str = field(repr=False)
    bound: str = field(repr=False)
    referred: bool = True
    """Read from where a reference points, so not in the contract's text."""


_Source = tuple[str, ...]


def _client_of(auth: Auth) -> tuple[str | None, ...]:
    return auth.client_id, auth.client_secret


def _grounds(auth: Auth, user: _Secret, secret: _Secret) -> tuple[str, ...]:
    """All that a grant depends on: what changes it makes another token."""
    stated = (auth.token_url, auth.scope, auth.client_auth)
    return (*(part or "" for part in stated), user.value, secret.value)


def _by_reference(reference: str, found: Found) -> _Secret | MissingCredential:
    """What is bound by its reference, so that it may change behind it."""
    if isinstance(found, str):
        return MissingCredential(reference, found)
    return _Secret(reference, found.decode(), reference)


def _read_file(path: Path) -> Found:
    """The secret without white space at its end, or the reason why there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a regular file -> name the file that holds the secret"
        with path.open("rb") as file:
            content = file.read(MAX_SECRET + 1)
    except OSError as error:
        return f"cannot be read ({error.strerror}) -> create it, readable by this user"
    return checked(content, "write the secret, and nothing else, into it as text")
