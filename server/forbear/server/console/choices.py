"""The options of a case as forms: what each does and costs, and the wish that a form makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from forbear.rules.decisions import Wish
from forbear.rules.escalations import Offer, has_handle, may_send_again
from forbear.rules.model import Case, Kind, Operation, Option
from forbear.tools.wishes import BadWish, wish_of

TYPED = frozenset({Option.SEND_NEW, Option.RESUBMIT})
"""Options after which a second effect is possible: never first, and confirmed by typing."""

LONGEST_COMMENT = 500


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter of an option, as an input."""

    name: str
    label: str
    hint: str = ""
    kind: str = "text"
    """`text`, `number` or `select`."""
    value: str = ""
    most: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One option as a person sees it."""

    id: str
    label: str
    effect: str
    cost: str
    afterwards: str
    fields: tuple[Field, ...] = field(default_factory=tuple[Field, ...])
    typed: str | None = None
    """What must be typed before it is carried out."""


def choices(case: Case, op: Operation) -> list[Choice]:
    """The options of a case in its own order, least effect first; the risky ones at the end."""
    known = [option for option in case.options if option["id"] in set(Option)]
    known.sort(key=lambda option: option["id"] in TYPED)
    return [_choice(Option(option["id"]), option, op) for option in known]


def _choice(option: Option, offered: Mapping[str, object], op: Operation) -> Choice:
    given = offered.get("parameters")
    parameters: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    return Choice(
        id=str(option),
        label=str(offered["label"]),
        effect=str(offered["effect"]),
        cost=_cost(option, op, parameters),
        afterwards=_afterwards(option, op),
        fields=tuple(
            made for name, value in parameters.items() if (made := _field(name, value)) is not None
        ),
        typed=str(option) if option in TYPED else None,
    )


def choice_of(offer: Offer, op: Operation) -> Choice:
    """An option that no case holds."""
    offered = {
        "label": offer.label,
        "effect": offer.effect,
        "parameters": dict(offer.parameters),
    }
    return _choice(offer.option, offered, op)


def _field(name: str, value: object) -> Field | None:
    match name:
        case "minutes":
            most = _plain(value)
            return Field(name, "Minutes", f"at most {most}", "number", most, most)
        case "requests":
            most = _plain(value)
            return Field(name, "Status requests", f"at most {most}", "number", most, most)
        case "until":
            hint = "30m from now, 14:30 in UTC, or 2026-11-30T14:30:00Z"
            return Field(name, "Until", f"{hint}; {value}")
        case "as":
            words = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
            classes = tuple(str(word) for word in words)
            return Field(name, "Count it as", "", "select", choices=classes, required=True)
        case "reference":
            return Field(name, "The provider's id", "as its own pages show it", required=True)
        case _:
            return None


def _plain(number: object) -> str:
    """`15` for 15.0, `7.5` as it is."""
    return f"{number:g}" if isinstance(number, int | float) else ""


def _cost(option: Option, op: Operation, parameters: Mapping[str, object]) -> str:
    """Requests that the option allows; never more."""
    match option:
        case Option.EXTEND:
            return f"up to {_plain(parameters.get('requests'))} status requests"
        case Option.HOLD | Option.CHECK_AGAIN | Option.RETRY_WITH_NEW_CREDENTIAL:
            return "1 request"
        case Option.RECONCILE:
            return "up to 3 lookups, no write"
        case Option.RESEND_SAME_KEY:
            return "1 request"
        case Option.SEND_NEW | Option.RESUBMIT:
            return "1 new request, and what follows from it under its own limits"
        case Option.CANCEL_AT_PROVIDER:
            return "1 request to cancel, up to 2 more status requests"
        case Option.APPROVE:
            return "the stored request; tries beyond the first only inside its own budget"
        case Option.TREAT_AS | Option.REBIND:
            return f"status requests inside what is left: {op.status_requests.left}"
        case Option.CONFIRM_DONE if op.kind is Kind.JOB:
            return f"status requests inside what is left: {op.status_requests.left}, at least 1"
        case (
            Option.CONFIRM_DONE
            | Option.CONFIRM_NOT_DONE
            | Option.USE_UNVALIDATED_RESULT
            | Option.CLOSE_CIRCUIT
            | Option.ABANDON
            | Option.REJECT
        ):
            return "no request"
        case _:
            assert_never(option)


def _afterwards(option: Option, op: Operation) -> str:
    """What is left over once it is decided."""
    match option:
        case Option.EXTEND:
            more = max(0, op.extensions.left - 1)
            return f"{more or 'no'} further extension{'' if more == 1 else 's'}"
        case Option.HOLD | Option.CHECK_AGAIN | Option.RETRY_WITH_NEW_CREDENTIAL:
            return "unless that shows an end, you are asked again"
        case Option.RECONCILE:
            return "if nothing certain is found, you are asked again"
        case Option.RESEND_SAME_KEY:
            return "if again no clear answer comes, it is looked up or you are asked again"
        case Option.SEND_NEW | Option.RESUBMIT:
            return "the first request may still have its effect; the new operation takes its place"
        case Option.CANCEL_AT_PROVIDER:
            return "it counts as cancelled only once the provider says so"
        case Option.APPROVE:
            return "the next request like this one asks again, unless a session is approved"
        case Option.TREAT_AS:
            return "the same deadline and budgets; the contract still lacks the word"
        case Option.REBIND:
            return "the same deadline and budgets"
        case Option.CONFIRM_DONE if op.kind is Kind.JOB:
            return "the job with that id is observed to its end"
        case Option.CONFIRM_DONE | Option.USE_UNVALIDATED_RESULT:
            return "it counts as succeeded, marked as not validated"
        case Option.CONFIRM_NOT_DONE:
            return "it counts as failed; the agent may ask for the same action again"
        case Option.CLOSE_CIRCUIT:
            return "the next equal failures stop it again"
        case Option.ABANDON if has_handle(op) and not op.terminal_seen:
            return "the job goes on at the provider, and nobody watches it"
        case Option.ABANDON if not may_send_again(op) and not op.final:
            return "whether it happened stays unknown, and nobody looks any more"
        case Option.ABANDON | Option.REJECT:
            return "nothing"
        case _:
            assert_never(option)


# --- the wish ---------------------------------------------------------------------------------


def wish(form: Mapping[str, str], now: int) -> Wish:
    """The wish that a form states, as of `now` (epoch ms). Whether the case offers it, the office
    decides.

    Raises:
        BadWish
    """
    option = form.get("option", "")
    if option in TYPED and form.get("confirm", "").strip() != option:
        raise BadWish(f"Type {option} into its field to confirm that it may happen twice.")
    if len(form.get("comment", "")) > LONGEST_COMMENT:
        raise BadWish(f"The comment is longer than {LONGEST_COMMENT} characters.")
    requests = _number(form, "requests")
    if requests is not None and requests != int(requests):
        raise BadWish("Status requests: write a whole number.")
    try:
        return wish_of(
            now,
            option,
            minutes=_number(form, "minutes"),
            requests=None if requests is None else int(requests),
            until=_text(form, "until"),
            treat_as=_text(form, "as"),
            reference=_text(form, "reference"),
        )
    except BadWish as error:
        raise BadWish(on_a_page(str(error))) from error


def revision(form: Mapping[str, str]) -> int:
    """Which state of the facts the form was made for.

    Raises:
        BadWish
    """
    text = form.get("revision", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadWish("The form names no revision.")
    return int(text)


def on_a_page(text: str) -> str:
    """What the command line would say, with fields instead of its options."""
    return text.replace("--", "")


def comment(form: Mapping[str, str]) -> str | None:
    return _text(form, "comment")


def _text(form: Mapping[str, str], name: str) -> str | None:
    return form.get(name, "").strip() or None


def _number(form: Mapping[str, str], name: str) -> float | None:
    text = _text(form, name)
    try:
        number = None if text is None else float(text)
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) < 1e9:
        raise BadWish(f"{name}: write a number.")
    return number
