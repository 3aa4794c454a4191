"""`contract new` and `contract draft`: the draft of a contract from what is known of an API."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import settings
from forbear.server.cli.terminal import Failure, remark, say

if TYPE_CHECKING:
    from forbear.rules.contract_draft import Draft
    from forbear.rules.draft_openapi import Chosen
    from forbear.rules.exchanges import Received
    from forbear.rules.openapi import Document, Operation

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write there; default: NAME.toml of the home."),
]
Print = Annotated[
    bool, typer.Option("--print", help="Print the file and write nothing.", show_default=False)
]
ActionName = Annotated[
    str | None, typer.Option("--action", metavar="NAME", help="Name of the job or call.")
]

LONGEST_SAMPLE = 60
"""Characters of an argument that the printed `try` line repeats."""


def register(group: typer.Typer) -> None:
    group.command()(new)
    group.command()(draft)


# --- new ------------------------------------------------------------------------------------


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name for the provider.")],
    from_curl: Annotated[
        list[str] | None,
        typer.Option(
            "--from-curl",
            metavar="LINE",
            help="A curl line in quotes, or - to paste it. Once more: what asks for the state.",
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="FILE",
            help="An answer: first that of the first line, then those about the state.",
        ),
    ] = None,
    status_answer: Annotated[
        list[str] | None,
        typer.Option("--status-answer", metavar="FILE", help="An answer about the state."),
    ] = None,
    action: ActionName = None,
    call: Annotated[
        bool, typer.Option("--call", help="A single call, even if it looks like a job.")
    ] = False,
    printed: Print = False,
    out: Out = None,
) -> None:
    """Draft a contract from a pasted curl line and the answers to it.

    Keys are taken out and named by reference. An answer is JSON, as it came or as `curl -i` prints
    it; - reads one from standard input. You choose what each state means; nothing is sent.
    """
    from forbear.rules.curl import parse
    from forbear.rules.draft_exchanges import Exchange, is_job
    from forbear.rules.draft_exchanges import draft as drafted
    from forbear.rules.exchanges import Unusable

    check_name(name, "NAME")
    if action is not None:
        check_name(action, "--action")
    lines, answers, looks = from_curl or [], answer or [], status_answer or []
    if not lines:
        raise Failure(
            f"Paste the request: forbear contract new {name} --from-curl - and then the curl line, "
            "ended by Ctrl-D."
        )
    if len(lines) > 2:
        raise Failure("--from-curl is for one request, and once more for what asks for its state.")
    if [*lines, *answers, *looks].count("-") > 1:
        raise Failure("Only one thing can come from standard input; name files for the others.")
    path = _target(name, printed, out)
    try:
        requests = [parse(_line(line)) for line in lines]
    except Unusable as error:
        raise Failure(f"The curl line: {error}.") from None
    requests.sort(key=lambda one: one.method in ("GET", "HEAD"))
    received = [_received(one) for one in answers]
    later = [_received(one) for one in looks]
    if len(requests) == 1 and requests[0].method in ("GET", "HEAD"):
        first, status = Exchange(requests[0], (*received, *later)), None
    else:
        later = [*received[1:], *later]
        first = Exchange(requests[0], tuple(received[:1]))
        status = Exchange(requests[1], tuple(later)) if len(requests) == 2 else None
        if status is None and (received or later):
            first = Exchange(requests[0], (received[0] if received else _none(), *later))
    job = not call and (is_job(first, status) or bool(looks))
    try:
        made = drafted(
            first,
            status,
            name,
            _source(lines, answers, looks),
            job=job,
            action=action,
            named=path is not None and path.stem != name,
        )
    except Unusable as error:
        raise Failure(f"The curl line: {error}.") from None
    _deliver(made.draft, made.text, path, _try_line(name, made.action, made.samples))
    if not job and first.sent.method not in ("GET", "HEAD") and not call:
        remark(
            "It became a single call. If it starts a job, draft it once more with an answer about "
            "the job's state: --status-answer FILE."
        )


def _none() -> Received:
    from forbear.rules.exchanges import Received

    return Received(None)


def _line(given: str) -> str:
    if given != "-":
        return given
    from forbear.rules.curl import LONGEST
    from forbear.server.documents import read

    if sys.stdin.isatty():
        remark("Paste the curl line, then press Enter and Ctrl-D.")
    return read("-", LONGEST * 4).decode("utf-8", "replace")


def _received(name: str) -> Received:
    from forbear.rules.exchanges import LARGEST, Unusable, received
    from forbear.server.documents import read

    if name == "-" and sys.stdin.isatty():
        remark("Paste the answer, then press Enter and Ctrl-D.")
    try:
        return received(read(name, LARGEST))
    except Unusable as error:
        raise Failure(f"The answer {_named(name)}: {error}.") from None


def _named(name: str) -> str:
    return "on standard input" if name == "-" else name


def _source(lines: Sequence[str], answers: Sequence[str], looks: Sequence[str]) -> str:
    count = len(answers) + len(looks)
    told = "a curl line" if len(lines) == 1 else "two curl lines"
    return told if not count else f"{told} and {count} answer{'s' if count > 1 else ''}"


# --- draft ----------------------------------------------------------------------------------


def draft(
    openapi: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="An OpenAPI 3 document, JSON or YAML; - is standard input."
        ),
    ] = None,
    har: Annotated[
        str | None, typer.Option(metavar="FILE", help="A recorded exchange, HAR 1.2.")
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--operation",
            metavar="ID",
            help='operationId or "METHOD /path"; without one they are listed.',
        ),
    ] = None,
    find: Annotated[
        str | None, typer.Option(metavar="WORD", help="List only operations with this word.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Your name for the provider.")
    ] = None,
    action: ActionName = None,
    printed: Print = False,
    out: Out = None,
) -> None:
    """Draft a contract from an OpenAPI document, or from a recorded exchange.

    Of a document, a job is a submission and the request for its state; other operations become
    single calls. Of a recording, the job is found. You choose what each state means.
    """
    if (openapi is None) == (har is None):
        raise Failure("Name one source: --openapi FILE or --har FILE.")
    if name is not None:
        check_name(name, "--name")
    if openapi is not None:
        _from_openapi(openapi, operation or [], find, name, printed, out)
    else:
        assert har is not None
        _from_recording(har, name, action, printed, out)


def _from_openapi(
    source: str,
    wanted: Sequence[str],
    find: str | None,
    name: str | None,
    printed: bool,
    out: Path | None,
) -> None:
    from forbear.rules import draft_openapi
    from forbear.rules.exchanges import Unusable
    from forbear.rules.openapi import Document
    from forbear.server.documents import json_or_yaml, read

    try:
        document = Document(json_or_yaml(read(source)))
    except Unusable as error:
        raise Failure(f"The document {_named(source)}: {error}.") from None
    provider = name or draft_openapi.provider_of(document)
    if not wanted:
        _list(document, source, provider, find)
        return
    path = _target(provider, printed, out)
    chosen = _chosen(document, wanted)
    made = draft_openapi.draft(document, chosen, provider, f"the document {_stem(source)}")
    text = made.text(named=path is not None and path.stem != provider)
    first = made.actions[0]
    required: dict[str, Any] = dict.fromkeys(map(str, first.input.get("required") or ()))
    _deliver(made, text, path, _try_line(provider, first.name, required))


def _stem(source: str) -> str:
    return "on standard input" if source == "-" else Path(source).name


def _chosen(document: Document, wanted: Sequence[str]) -> Chosen:
    """The jobs and calls that the named operations make up."""
    from difflib import get_close_matches

    from forbear.rules.draft_openapi import Chosen, Pair, pairs, state_of

    by_name = {key: one for one in document.operations for key in (one.line, one.id)}
    unknown = [one for one in wanted if one not in by_name]
    if unknown:
        near = get_close_matches(unknown[0], by_name, n=3, cutoff=0.5)
        nearest = f" Near: {', '.join(near)}." if near else ""
        raise Failure(
            f"The document has no operation {unknown[0]!r}.{nearest} Without --operation they are "
            "listed."
        )
    chosen = list(dict.fromkeys(by_name[one].line for one in wanted))
    operations = [by_name[line] for line in chosen]
    found = {one.submit.line: one for one in pairs(document)}
    match operations:
        case [first, second] if first.reads != second.reads:
            submit, status = (second, first) if first.reads else (first, second)
            place = state_of(document, status)
            if submit.line not in found and place is not None and "{" in status.path:
                return Chosen((Pair(submit, status, place),))
        case _:
            pass
    jobs = tuple(found[line] for line in chosen if line in found)
    taken = {line for one in jobs for line in (one.submit.line, one.status.line)}
    return Chosen(jobs, tuple(one for one in operations if one.line not in taken))


MOST_LISTED = 60
"""Operations that one list shows."""


def _list(document: Document, source: str, provider: str, find: str | None) -> None:
    from forbear.rules.draft_openapi import pairs

    def wanted(one: Operation) -> bool:
        text = f"{one.id} {one.line} {one.summary}".lower()
        return find is None or find.lower() in text

    jobs = [one for one in pairs(document) if wanted(one.submit) or wanted(one.status)]
    of_jobs = {line for one in jobs for line in (one.submit.line, one.status.line)}
    calls = [one for one in document.operations if wanted(one) and one.line not in of_jobs]
    say(f"{document.title or _stem(source)}: {len(document.operations)} operations")
    if jobs:
        say()
        say("Jobs: a submission, and the request that tells its state")
    for pair in jobs[:MOST_LISTED]:
        say(f"  {pair.submit.id}")
        say(f"      {pair.submit.line}, then GET {pair.status.path}")
        say(f"      state {pair.state.pointer}: {', '.join(pair.state.field.words[:12])}")
    if calls:
        say()
        say("Single calls" if jobs else "Single calls (no submission with a state was found)")
    width = max((len(one.id) for one in calls[:MOST_LISTED] if one.id != one.line), default=0)
    for one in calls[:MOST_LISTED]:
        same = one.id == one.line
        say(f"  {one.line}" if same else f"  {one.id:<{width}}  {one.line}")
    hidden = max(0, len(jobs) - MOST_LISTED) + max(0, len(calls) - MOST_LISTED)
    if hidden:
        say(f"  … and {hidden} more; --find WORD looks for some")
    first = jobs[0].submit if jobs else calls[0] if calls else None
    say()
    if first is None:
        say(f"No operation has the word {find!r}.")
        return
    words = ["forbear", "contract", "draft", "--openapi", shlex.quote(source)]
    words += ["--name", provider, "--operation", shlex.quote(first.id)]
    say(f"Next: {' '.join(words)}")


def _from_recording(
    source: str, name: str | None, action: str | None, printed: bool, out: Path | None
) -> None:
    from forbear.rules import draft_exchanges
    from forbear.rules.exchanges import Unusable
    from forbear.rules.har import job_in
    from forbear.server.documents import json_of, read

    if action is not None:
        check_name(action, "--action")
    try:
        found = job_in(json_of(read(source)))
        provider = name or draft_exchanges.provider_of(found.submit.sent)
        path = _target(provider, printed, out)
        looks = len(found.status.answers)
        told = f"a recording with {looks} look{'s' if looks > 1 else ''} at the state"
        named = path is not None and path.stem != provider
        made = draft_exchanges.draft(
            *(found.submit, found.status, provider, told), job=True, action=action, named=named
        )
    except Unusable as error:
        raise Failure(f"The recording {_named(source)}: {error}.") from None
    _deliver(made.draft, made.text, path, _try_line(provider, made.action, made.samples))
    if found.others and path is not None:
        say(f"{found.others} other requests of the recording were left out.")


# --- what is written ------------------------------------------------------------------------


def check_name(name: str, what: str) -> None:
    """Raise Failure if `name`, given as `what`, cannot be that of a contract or action."""
    from forbear.rules.contract_terms import NAME

    if NAME.fullmatch(name) is None or len(name) > 64:
        raise Failure(
            f"{what} {name!r} is no name that a contract can have; use letters, digits, - and _."
        )


def _target(name: str, printed: bool, out: Path | None) -> Path | None:
    """Where the file will be; None where it is printed. It must not be there yet."""
    if printed:
        return None
    path = out or settings().contracts / f"{name}.toml"
    if path.exists():
        raise Failure(
            f"{path} is there already and was not changed. Choose another NAME, --out FILE or "
            "--print."
        )
    return path


def _write(path: Path, text: str) -> None:
    """A new file; never over one that is there."""
    try:
        if path.parent == (home := settings()).contracts:
            home.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            home.contracts.mkdir(exist_ok=True, mode=0o700)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(f"{path} is there already and was not changed.") from None
    except OSError as error:
        raise Failure(
            f"{path} cannot be written ({error.strerror}). --out FILE names another place.", 3
        ) from None


def _deliver(found: Draft, text: str, path: Path | None, attempt: str) -> None:
    """Write or print the file, and say what is left and what comes next."""
    from forbear.server.providers import shipped_names

    if path is None:
        say(text.removesuffix("\n"))
        return
    _write(path, text)
    actions = [f"job {one.action.name}" for one in found.jobs]
    actions += [f"call {one.action.name}" for one in found.calls]
    say(f"Wrote {path}: {', '.join(actions)}, drafted from {found.source}.", "green")
    left = list(found.left())
    if left:
        say()
        say("Left for you, and in the file as comments:")
        for number, sentence in enumerate(left, 1):
            say(f"  {number}. {sentence}")
    if found.variables:
        say()
        say("No key is in the file. Put it where your processes see it:")
        for variable, what in found.variables.items():
            say(f"  export {variable}='…'    # {what}")
    if found.provider in shipped_names():
        say()
        say(f"A contract for it comes with Forbear too: forbear contract add {found.provider}")
    say()
    say("Next:")
    where = shlex.quote(str(path))
    steps = [f"$EDITOR {where}", f"forbear contract check {where}", attempt]
    for number, step in enumerate(steps, 1):
        say(f"  {number}. {step}")


def _try_line(provider: str, action: str, samples: Mapping[str, Any]) -> str:
    """The command that tries the action with the values that were pasted."""
    words = ["forbear", "try", f"{provider}.{action}"]
    words += [_pair(name, value) for name, value in samples.items()]
    return " ".join(words)


def _pair(name: str, value: Any) -> str:
    from forbear.rules.exchanges import may_be_secret, names_a_secret
    from forbear.rules.ports import Number
    from forbear.rules.requests import json_text

    is_text = isinstance(value, str) and not isinstance(value, Number)
    text = value if is_text else json_text(value)
    equals = "=" if is_text or value is None else ":="
    shown = value is not None and 0 < len(text) <= LONGEST_SAMPLE and text.isprintable()
    if not shown or names_a_secret(name) or may_be_secret(value):
        return f"{name}{equals}…"
    return f"{name}{equals}{shlex.quote(text)}"
