"""What a template may name: the facts of one operation, and how a placeholder reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from forbear.rules.contract import Contract, Idempotency, Placeholder, Template
from forbear.rules.model import JobClass, Operation
from forbear.rules.ports import Json
from forbear.rules.values import MISSING, Gap, text_of


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about an operation when a request is rendered or an answer is read."""

    arguments: Mapping[str, Any]
    account: Mapping[str, str]
    ref: str = ""
    key: str | None = None
    """The provider's idempotency key."""
    take: Mapping[str, str] = field(default_factory=dict[str, str])
    """`id` and what `take` names."""
    result: Mapping[str, str] = field(default_factory=dict[str, str])
    """What `success.take` names."""
    submitted_at: int | None = None
    """First permit of the action's own request, epoch ms."""
    accepted_at: int | None = None
    treat: Mapping[str, JobClass] = field(default_factory=dict[str, JobClass])
    """Provider words that a person classed for this operation."""
    terminal_seen: bool = False
    attempt: int = 1
    """Which send of this request it is; from the second on it is a resend."""
    idempotency: Idempotency | None = None
    """How the action's own request carries the key."""

    @property
    def id(self) -> str | None:
        """The provider's job id."""
        return self.take.get("id")

    def age(self, now: int) -> int | None:
        """Milliseconds since the provider took the submission, or since it was sent."""
        since = self.submitted_at if self.accepted_at is None else self.accepted_at
        return None if since is None else now - since


def facts_of(operation: Operation, contract: Contract, parent: Operation | None = None) -> Facts:
    """The facts of an operation as admitted; `parent` is the job of a result or cancellation.

    A result or cancellation reads its templates, and the age that rules ask for, from its job.
    """
    subject = operation if parent is None else parent
    action = contract.action(operation.action)
    prefix = "result."
    return Facts(
        arguments=subject.arguments,
        account={**contract.account, "id": operation.account},
        ref=operation.ref,
        key=operation.wire_key,
        take={k: v for k, v in subject.take.items() if not k.startswith(prefix)},
        result={k.removeprefix(prefix): v for k, v in subject.take.items() if k.startswith(prefix)},
        submitted_at=subject.sent_at,
        accepted_at=subject.accepted_at,
        treat={
            word: JobClass(job_class)
            for word, job_class in subject.treat.items()
            # A person may not make a success by decree (option `treat_as`).
            if job_class in set(JobClass) - {JobClass.SUCCEEDED}
        },
        terminal_seen=subject.terminal_seen or subject.final,
        attempt=max(1, operation.attempts.used),
        idempotency=None if action is None or parent is not None else action.idempotency,
    )


# --- placeholders ---------------------------------------------------------------------------


def value_of(placeholder: Placeholder, facts: Facts) -> Json:
    """The value a placeholder names, typed as it came; `MISSING` if there is none."""
    kind, _, name = placeholder.name.partition(".")
    match kind:
        case "arg":
            return facts.arguments.get(name, MISSING)
        case "account":
            return facts.account.get(name, MISSING)
        case "take":
            return facts.take.get(name, MISSING)
        case "result":
            return facts.result.get(name, MISSING)
        case "id":
            return facts.take.get("id", MISSING)
        case "ref":
            return facts.ref or MISSING
        case "key":
            return MISSING if facts.key is None else facts.key
        case "submitted_at":
            return _instant(placeholder, facts.submitted_at)
        case _:
            return MISSING


def _instant(placeholder: Placeholder, submitted_at: int | None) -> Json:
    if submitted_at is None:
        return MISSING
    instant = submitted_at + placeholder.offset
    moment = datetime.fromtimestamp(instant // 1000, UTC)
    match placeholder.format:
        case "epoch":
            return instant // 1000
        case "epoch_ms":
            return instant
        case "date":
            return moment.strftime("%Y-%m-%d")
        case _:
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def only_placeholder(template: Template) -> Placeholder | None:
    """The placeholder of a template that is one placeholder alone."""
    match template.parts:
        case (Placeholder() as alone,):
            return alone
        case _:
            return None


def typed(template: Template, facts: Facts) -> Json:
    """The template's value: typed if it is one placeholder, else text; `MISSING` if absent."""
    alone = only_placeholder(template)
    if alone is not None:
        return value_of(alone, facts)
    text = plain(template, facts)
    return MISSING if text is None else text


def plain(template: Template, facts: Facts) -> str | None:
    """The template as plain text; None if one of its values is absent or no scalar."""
    texts: list[str] = []
    for part in template.parts:
        text = part if isinstance(part, str) else text_of(value_of(part, facts))
        if text is None:
            return None
        texts.append(text)
    return "".join(texts)


def is_absent(value: Json) -> bool:
    """Whether a template had no value: a body key or parameter of it is left out."""
    return isinstance(value, Gap)
