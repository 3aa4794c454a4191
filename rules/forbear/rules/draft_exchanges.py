"""From exchanges with a provider to the draft of its contract.

Exchanges are pasted (a curl line and its answers) or recorded (a HAR file); either way they are
`Sent` and `Received`. Nothing of their content gets into a draft but names, places, state words,
hosts and constants that every request has; what an agent shall give becomes an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from forbear.rules import proposals
from forbear.rules import toml_text as toml
from forbear.rules.contract_draft import Action, Asked, Draft, DraftCall, DraftJob, Told
from forbear.rules.draft_terms import (
    Arguments,
    action_name,
    base_of,
    body_of,
    credential,
    is_fixed,
    is_value,
    name_of,
    path_of,
    query_of,
    title_of,
)
from forbear.rules.exchanges import Received, Sent, Unusable
from forbear.rules.ports import Json
from forbear.rules.proposals import Field, Proposal, host_of
from forbear.rules.requests import json_text
from forbear.rules.values import text_of

SHORTEST_SECRET = 6
"""Characters of a secret that is looked for in what is written; shorter ones are in any text."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answers, in the order in which they came."""

    sent: Sent
    answers: tuple[Received, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft and its text, and arguments to try its action with, which are not in the file.

    An argument that had a secret in it is None.
    """

    draft: Draft
    action: str
    samples: Mapping[str, Json]
    text: str


def is_job(first: Exchange, later: Exchange | None) -> bool:
    """Whether an exchange starts something that is asked about later."""
    if first.sent.method in ("GET", "HEAD"):
        return False
    if later is not None or any(one.status == 202 for one in first.answers):
        return True
    found = proposals.fields(first.answers)
    return proposals.state(found) is not None and proposals.job_id(found, "job") is not None


def draft(
    first: Exchange,
    later: Exchange | None,
    provider: str,
    source: str,
    *,
    job: bool,
    action: str | None = None,
    named: bool = False,
) -> Drafted:
    """The draft of one action from its request, and from what asked for its state.

    `named` says that the name of the file is not the provider's.

    Raises Unusable for what no contract can say, and where a secret of the request stands in a
    place that has to be written.
    """
    requests = [first.sent] if later is None else [first.sent, later.sent]
    base_url, length = base_of(requests)
    name = action or _name(first.sent, length)
    made = _Job(first, later, base_url, length, name) if job else _Call(first, length, name)
    key = credential(first.sent.secrets, provider)
    remarks = [*key.remarks, *(remark for one in requests for remark in one.remarks)]
    jobs = (made.job(),) if isinstance(made, _Job) else ()
    remarks += made.remarks
    found = Draft(
        provider,
        title_of(provider),
        Told(base_url),
        key.auth,
        source,
        key.variables,
        jobs=jobs,
        calls=(made.call(),) if isinstance(made, _Call) else (),
        headers=_fixed_headers(first.sent, remarks),
        allow_hosts=Told(made.hosts, "the answers point there") if made.hosts else None,
        remarks=tuple(dict.fromkeys(remarks)),
    )
    secrets = [secret.value for one in requests for secret in one.secrets]
    samples = {
        name: None if any(secret in json_text(value) for secret in secrets) else value
        for name, value in made.arguments.samples.items()
    }
    return Drafted(found, name, samples, _without_secrets(found.text(named=named), secrets))


def provider_of(sent: Sent) -> str:
    """A name for the provider of a request, of its host."""
    host = (host_of(sent.origin) or "").partition(":")[0]
    labels = [one for one in host.split(".") if one not in ("www", "api")]
    named = [one for one in labels[:-1] if one.isascii() and one[:1].isalpha()]
    return name_of(named[-1], "provider") if named else "provider"


def _without_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        written = (secret, toml.string(secret)[1:-1])
        if len(secret) >= SHORTEST_SECRET and any(one in text for one in written):
            raise Unusable(
                "the key of the request stands in another place of it too (its path, a name or a "
                "header): take it out there, and paste it again"
            )
    return text


def _name(sent: Sent, length: int) -> str:
    names = [unquote(one) for one in sent.segments[length:] if not is_value(one)]
    return action_name(names, "read" if sent.method == "GET" else "send")


def _fixed_headers(sent: Sent, remarks: list[str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for name, text in sent.headers:
        if is_fixed(text):
            kept.setdefault(name, text)
        else:
            remarks.append(
                f"headers: {name} is left out: its value may be a key; write it if it is none"
            )
    return kept


def _asked(sent: Sent, length: int, arguments: Arguments) -> Asked:
    path = "/" + "/".join(path_of(sent.segments[length:], arguments))
    query = query_of(sent, arguments)
    form: dict[str, str] = {}
    for name, text in sent.form:
        form.setdefault(name, arguments.same(text) or arguments.of(name, text))
    return Asked(sent.method, path, query=query, body=body_of(sent.body, arguments), form=form)


_ABOUT_ARGUMENTS = (
    "Every value of the request became an argument that the agent gives. Where one is always the "
    "same, write it instead of {arg.…} and take it out of the input."
)


def _action(
    name: str, asked: Asked, arguments: Arguments, sent: Sent, found: Sequence[Field]
) -> Action:
    code, message = proposals.failure(found)
    return Action(
        name,
        title_of(name),
        asked,
        arguments.schema(),
        key_at=f"header:{sent.key_header}" if sent.key_header else "",
        code=told(code),
        message=told(message),
        notes=(_ABOUT_ARGUMENTS,) if arguments.properties else (),
    )


def told(proposal: Proposal | None, why: str | None = None) -> Told | None:
    if proposal is None:
        return None
    others = f"; or {' or '.join(proposal.others)}" if proposal.others else ""
    return Told(proposal.pointer, (why or proposal.why) + others)


class _Call:
    """A single read or write from its exchange."""

    hosts: Sequence[str] = ()

    def __init__(self, exchange: Exchange, length: int, name: str) -> None:
        self.arguments = Arguments()
        self.remarks: list[str] = []
        asked = _asked(exchange.sent, length, self.arguments)
        refused = [one for one in exchange.answers if (one.status or 200) >= 400]
        found = proposals.fields(refused)
        self._call = DraftCall(_action(name, asked, self.arguments, exchange.sent, found))

    def call(self) -> DraftCall:
        return self._call


class _Job:
    """A job from its submission, and from the exchange that asked for its state."""

    def __init__(
        self, first: Exchange, later: Exchange | None, base_url: str, length: int, name: str
    ) -> None:
        self.first, self.later = first, later
        self.length, self.name = length, name
        self.own = host_of(base_url)
        self.arguments = Arguments()
        self.remarks: list[str] = []
        self.hosts: list[str] = []
        self.take: dict[str, str] = {}
        self.submitted = proposals.fields(first.answers[:1])
        self.answers = later.answers if later is not None else first.answers[1:]
        self.looked = proposals.fields(self.answers)
        self.shown = self.looked or self.submitted
        self.id = proposals.job_id(self.submitted, name, self._turns_up_again)

    def job(self) -> DraftJob:
        sent = self.first.sent
        asked = _asked(sent, self.length, self.arguments)
        status = self._status()
        found = proposals.state(self.shown, frozenset(one.pointer for one in self.submitted))
        cancel = proposals.link(self.submitted, ("cancel",))
        if cancel is not None:
            self.take["cancel_url"] = cancel.pointer
        asked = Asked(
            asked.method,
            asked.path,
            query=asked.query,
            body=asked.body,
            form=asked.form,
            take=self.take,
        )
        link, signed = self._link()
        own = link is not None and self.own == _host(link.field)
        progress = proposals.progress(self.shown)
        return DraftJob(
            _action(self.name, asked, self.arguments, sent, self.shown),
            self._id(),
            status,
            told(found) or Told(None, "where the answer of status has the job's state: /pointer"),
            () if found is None else self._words(found.field),
            "seen in the answers, in this order",
            link=told(link),
            link_needs_key=own and not signed,
            progress=told(progress),
            hint=self._timed("hints", proposals.hint(self.shown)),
            expiry=self._timed("expiry", proposals.expiry(self.shown)),
            expires=self._expires(link),
            echo=self._echo(),
            cancel=Asked("POST", url="{take.cancel_url}") if cancel is not None else None,
        )

    # --- the id ---------------------------------------------------------------------------

    def _id(self) -> Told | None:
        if self.id is None and "status_url" in self.take:
            return None
        return told(self.id) or Told(None, "where the answer of submit has the job's id: /pointer")

    @property
    def _id_text(self) -> str | None:
        return text_of(self.id.field.values[0]) if self.id is not None else None

    def _turns_up_again(self, text: str) -> bool:
        """Whether a text is in a later request or answer, or ends an address."""
        if self.later is not None:
            sent = self.later.sent
            places = (*map(unquote, sent.segments), *(value for _, value in sent.query))
            if text in places:
                return True
        if any(text == text_of(value) for one in self.looked for value in one.values):
            return True
        addresses = (text_of(value) for one in self.submitted for value in one.values)
        located = self.first.answers[0].header("location") if self.first.answers else None
        return any(
            address is not None and "/" in address and address.rstrip("/").endswith(f"/{text}")
            for address in (*addresses, located)
        )

    def _echo(self) -> Told | None:
        """Where the status answer repeats the id, if that is not where the submission had it."""
        if self.id is None or not self.looked:
            return None
        same = {one.pointer: one for one in self.looked}.get(self.id.pointer)
        if same is not None and all(text_of(v) == self._id_text for v in same.values):
            return None
        for one in self.looked:
            if all(text_of(value) == self._id_text for value in one.values):
                return Told({one.pointer: "{id}"}, "the status answer repeats the id there")
        if same is not None:
            self.remarks.append(
                f"jobs.{self.name}.id: the status answer has something else at {same.pointer}"
            )
        return None

    # --- the status request ---------------------------------------------------------------

    def _status(self) -> Asked:
        address = self._named_address()
        if address is not None:
            pointer, url = address
            self.take["status_url"] = pointer
            self._note_host(url)
            method = self.later.sent.method if self.later is not None else "GET"
            why = "the answer of submit names the address"
            return Asked(method, url="{take.status_url}", why="" if self.later else why)
        if self.later is None:
            path = "/" + "/".join(path_of(self.first.sent.segments[self.length :], self.arguments))
            why = "a guess by the usual shape of addresses: correct it"
            return Asked("GET", f"{path.rstrip('/')}/{{id}}", why=why, guessed=True)
        sent = self.later.sent
        known = self._id_text
        segments = path_of(sent.segments[self.length :], self.arguments, known)
        query = query_of(sent, self.arguments, known)
        if sent.origin == self.first.sent.origin:
            return Asked(sent.method, "/" + "/".join(segments), query=query)
        path = "/" + "/".join(path_of(sent.segments, self.arguments, known))
        self._note_host(sent.origin)
        return Asked(sent.method, url=f"{sent.origin}{path}", query=query)

    def _named_address(self) -> tuple[str, str] | None:
        """Where the submission's answer has the address of the status, and that address."""
        wanted = None
        if self.later is not None:
            sent = self.later.sent
            wanted = f"{sent.origin}{sent.path}"
        located = self.first.answers[0].header("location") if self.first.answers else None
        if located is not None and (wanted is None or self._is_same(located, wanted)):
            return "header:Location", located
        if wanted is not None:
            for one in self.submitted:
                text = text_of(one.values[0]) or ""
                if self._is_same(text, wanted):
                    return one.pointer, text
            return None
        names = ("status", "poll", "monitor", "operation", "get", "self")
        found = proposals.link(self.submitted, names)
        return None if found is None else (found.pointer, text_of(found.field.values[0]) or "")

    def _is_same(self, address: str, wanted: str) -> bool:
        try:
            parts = urlsplit(address)
        except ValueError:
            return False
        if address.startswith("/"):
            return wanted == f"{self.first.sent.origin}{parts.path}"
        return wanted == f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")

    def _note_host(self, address: str) -> None:
        host = host_of(address)
        if host is not None and host != self.own and host not in self.hosts:
            self.hosts.append(host)

    # --- what the answers tell --------------------------------------------------------------

    def _words(self, found: Field) -> tuple[str, ...]:
        sent = (self.first.sent, *(() if self.later is None else (self.later.sent,)))
        secrets = [secret.value for one in sent for secret in one.secrets]
        everything = tuple(one for one in self.submitted if one.pointer == found.pointer)
        words = dict.fromkeys(
            word for one in (*everything, found) for word in proposals.words_seen(one)
        )
        return tuple(word for word in words if not any(secret in word for secret in secrets))

    def _link(self) -> tuple[Proposal | None, bool]:
        """Where the result's address is, and whether the address itself is signed."""
        taken = [text_of(one) for field in self.submitted for one in field.values]
        known = [text for text in taken if text is not None and "://" in text]
        if self.later is not None:
            known.append(f"{self.later.sent.origin}{self.later.sent.path}")
        found = proposals.result_link(self.looked, known)
        if found is None:
            return None, False
        texts = list(_texts(found.field))
        self._note_host(texts[-1])
        return found, any("?" in text for text in texts)

    def _timed(
        self, what: str, found: tuple[Proposal, str | None] | None
    ) -> tuple[Told, str] | None:
        if found is None:
            return None
        proposal, unit = found
        made = told(proposal)
        if unit is None or made is None:
            self.remarks.append(
                f"jobs.{self.name}.{what}: {proposal.pointer} may be one, and its unit is not "
                "plain; write it if you know it"
            )
            return None
        return made, unit

    def _expires(self, link: Proposal | None) -> str:
        found = proposals.expiry(self.shown)
        around = link.field.steps[:-1] if link is not None else ()
        within = bool(around) and found is not None and found[0].field.steps[:-1] == around
        return "result" if within else "job"


def _texts(one: Field) -> Iterator[str]:
    for value in one.values:
        if (text := text_of(value)) is not None:
            yield text


def _host(one: Field) -> str | None:
    texts = list(_texts(one))
    return host_of(texts[-1]) if texts else None
