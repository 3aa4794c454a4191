"""Every key of contract format 1, its kind, and one line about it.

These tables are all that the loader accepts and all that the JSON Schema says; there is no second
list. A short form (`status = "GET /exports/{id}"`) is written out before a section is read, so the
tables name short keys for editors and for spelling hints only.
"""

from __future__ import annotations

from collections.abc import Mapping

from forbear.rules.contract import Means
from forbear.rules.contract_kinds import (
    Kind,
    Table,
    choice,
    named,
    nested,
    one_or_several,
    pairs,
    several,
    whole,
)
from forbear.rules.contract_request_terms import (
    APPROVAL,
    BASE_URL,
    BODY,
    BODY_JSON,
    CLIENT_ID_HEADER,
    CONSOLE,
    ECHO,
    FIELDS,
    HEADERS,
    HOSTS,
    INPUT,
    KEY_PLACE,
    LABEL,
    LINK,
    MERGE,
    METHOD,
    PATH,
    PLAIN_HEADERS,
    PREFIX,
    QUERY,
    REFERENCE,
    TOKEN_URL,
    URL,
)
from forbear.rules.contract_terms import (
    AMOUNT,
    BOOLEAN,
    BYTES,
    COUNT,
    DATE,
    DURATION,
    DURATIONS,
    LITERAL,
    MATCH,
    NAMED,
    NAMES,
    POINTER,
    RATE,
    READS,
    REQUIRE,
    ROWS,
    SCALARS,
    SHARE,
    SOURCE,
    SOURCES,
    STATUSES,
    TAKE,
    TESTS,
    TEXT,
    TEXTS,
    TIMED,
    TIMEDS,
    WAIT,
    check_name,
)
from forbear.rules.model import RequestClass

Keys = Mapping[str, tuple[Kind[object], str]]

# --- closed words ---------------------------------------------------------------------------

CLASS = choice(*(known.value for known in RequestClass))
OPERATOR = choice("any", "separate")
SCHEME = choice("none", "bearer", "basic", "header", "query", "body", "oauth2_client")
CLIENT_AUTH = choice("basic", "post")
PER = choice("account", "provider", "host", "credential", "account+action")
REPEAT = choice("ask", "join", "key", "free")
ON_FAILURE = choice("note", "ask")
EFFECT = choice("read", "billed", "mutating")
REDIRECT = choice("none", "same-origin", "no-credential")
COVERS = choice("operation", "attempt")
BY_NATURE = choice("by_nature")
KEY_FORMAT = choice("uuid", "sf-string", "text")
WHEN_MISSING = choice("escalate", "wait")
MEANS = choice(*(known.value for known in Means))
ON = one_or_several(choice("submit", "status", "result", "cancel", "lookup", "call"))
ENDS = one_or_several(choice("succeeded", "failed", "cancelled", "expired"))
EXAMPLE_HEADERS = pairs(str, TEXT)
STATUS_CODE = whole(100, 599)
VERSION = whole(1, 1)
RESENDS = whole(0, 10)

REQUEST_LINE = {"type": "string", "pattern": r"^(GET|HEAD|POST|PUT|PATCH|DELETE) \S"}
"""The short form of a request: method and path, or method and address."""

AUTH_LINE = {"type": "string", "pattern": "^(none$|(bearer|basic|header|query|body) .)"}
"""The short form of a credential: scheme, then name or user where it has one, then a reference."""

# --- small sections -------------------------------------------------------------------------

AUTH = Table(
    "auth",
    {
        "scheme": (SCHEME, "How the credential goes onto a request."),
        "name": (TEXT, "Header field, query parameter or body member, for these schemes."),
        "secret": (REFERENCE, "A reference: env:NAME, file:/path, keyring:service/user, exec:"),
        "prefix": (PREFIX, "Word before the secret in its header field, such as Token."),
        "user": (TEXT, "User name of basic; a reference or the name itself."),
        "password": (REFERENCE, "A reference to the password of basic."),
        "token_url": (TOKEN_URL, "Where oauth2_client fetches its token."),
        "client_id": (TEXT, "Client id of oauth2_client; a reference or the id itself."),
        "client_secret": (REFERENCE, "A reference to the client secret of oauth2_client."),
        "scope": (TEXT, "Scope that oauth2_client asks for."),
        "client_auth": (CLIENT_AUTH, "How the client shows its secret; default basic."),
        "client_id_header": (
            CLIENT_ID_HEADER,
            "Header field that takes the client id beside the token.",
        ),
        "exec": (TEXTS, "Program and arguments that print the secret, for exec:"),
    },
    required=("scheme",),
)
CHECK = Table(
    "check",
    {
        "path": (TEXT, "A GET under base_url that names the account."),
        "at": (POINTER, "Where its answer has the account id."),
    },
    required=("path", "at"),
)
ACCOUNT = Table(
    "account",
    {
        "id": (LITERAL, "Part of the identity of every operation."),
        "check": (nested(CHECK), "How the account is verified, once per credential."),
    },
    others=(LITERAL, "A value for {account.x}."),
)
SCOPE = Table(
    "scope",
    {
        "per": (PER, "What the limit belongs to."),
        "actions": (TEXTS, 'Actions under this limit; ["*"] is all.'),
        "rate": (RATE, "The published limit; Forbear keeps below it."),
        "reserve": (SHARE, "Share kept for interactive and approved work."),
        "max_concurrent_requests": (COUNT, "Requests at once, over all processes."),
        "max_delayed_requests": (COUNT, "Waiting calls and submissions."),
        "retry_budget": (RATE, "Extra attempts that all work on this scope may cause."),
        "max_block": (DURATION, "A longer wait makes the scope exhausted."),
        "wait_until_reset": (DURATION, "A known quota reset this near is waited for."),
        "remaining": (SOURCE, "Where an answer says how many requests are left."),
        "reset": (TIMED, "Where an answer says when the limit resets, with its unit."),
    },
)
CLASS_LIMITS = Table(
    "class",
    {
        "max_attempts": (COUNT, "Attempts in all."),
        "max_wait": (WAIT, "Waited time between attempts, in all."),
        "base": (DURATION, "First retry delay."),
        "max_delay": (DURATION, "Longest retry delay."),
        "rate_limited": (DURATION, "Least delay after a 429 without a hint."),
        "retry_statuses": (STATUSES, "Statuses after which another attempt may follow."),
    },
)
CLASSES = Table(
    "classes",
    {
        known.value: (nested(CLASS_LIMITS), f"Numbers of the class {known}.")
        for known in RequestClass
    },
)
ESCALATION = Table(
    "escalation",
    {
        "remind": (DURATIONS, "When an open case is announced again."),
        "abandon_after": (DURATION, "When an open case ends as abandoned; absent: never."),
        "operator": (OPERATOR, "Who may decide: any operator, or only one of another user."),
    },
)
RETENTION = Table(
    "retention",
    {
        "payloads": (
            DURATION,
            "How long after the end arguments, answers and results are kept; usually 30d.",
        ),
        "identities": (
            DURATION,
            "How long after the end it is kept that there was this operation; usually 400d.",
        ),
    },
)
EXTENSION = Table(
    "extension",
    {
        "by": (DURATION, "Time that one extension adds."),
        "status_requests": (AMOUNT, "Status requests that one extension adds."),
        "times": (AMOUNT, "How many extensions there may be."),
    },
)
LIMITS = Table(
    "limits",
    {
        "usual": (DURATION, "How long the job usually takes."),
        "deadline": (DURATION, "When waiting ends, from submission."),
        "max_status_requests": (COUNT, "Status requests in all."),
        "max_transport_failures": (COUNT, "Failures to learn the state, in all."),
        "max_rate_limited": (COUNT, "Answers 429, in all."),
        "useful_for": (DURATION, "How long the result is of use to the workflow."),
        "extension": (nested(EXTENSION), "What a person may grant on top."),
    },
)
BACKOFF = Table(
    "backoff",
    {
        "base": (DURATION, "First delay between checks; doubles."),
        "max": (DURATION, "Longest delay between checks."),
        "rate_limited": (DURATION, "Least delay after a 429 without a hint."),
        "first": (WAIT, "Delay from acceptance to the first check."),
        "estimate": (TIMED, "Where the submit answer states the time to completion."),
    },
)
HINTS = Table(
    "hints",
    {
        "next": (TIMEDS, "Where a status answer recommends the next check."),
        "floor": (WAIT, "Nearer hints become this."),
        "ceiling": (DURATION, "Farther hints are rejected and become this."),
    },
)
EXPIRY = Table(
    "expiry",
    {
        "job": (TIMED, "Where the answer says when the job expires."),
        "result": (TIMED, "Where the answer says when the result expires."),
        "kept": (DURATION, "How long the provider keeps job and result."),
    },
)
STATES = Table(
    "states",
    {
        "read": (READS, "One source, a test or a fold, or up to three of them."),
        "waiting": (ROWS, "The provider still works."),
        "blocked": (ROWS, "Waits for a person or another write of ours."),
        "succeeded": (ROWS, "Done, if the required fields are there."),
        "failed": (ROWS, "Ended without success."),
        "cancelled": (ROWS, "Stopped by somebody."),
        "expired": (ROWS, "Over because time ran out."),
        "ignore_case": (BOOLEAN, "Compare words without case."),
        "progress": (SOURCE, "What counts as progress, for people to see."),
    },
)
SUCCESS = Table(
    "success",
    {
        "require": (REQUIRE, "Fields that success must have, with types; a list means present."),
        "require_any": (REQUIRE, "Fields of which success must have one."),
        "take": (TAKE, "Values for {result.x}."),
        "partial": (TESTS, "Signs that only a part succeeded."),
        "then": (NAMES, "Follow-up actions that success permits."),
        "when_missing": (WHEN_MISSING, "What a missing required field does."),
    },
)
FAILURE = Table(
    "failure",
    {
        "code": (SOURCES, "The provider's own error code; of several places the first there."),
        "message": (SOURCES, "The provider's own message; of several places the first there."),
    },
)
RULE = Table(
    "rule",
    {
        "on": (ON, "Requests whose answers the rule judges; default all."),
        "http": (STATUSES, 'Status: a number, a list, or "5xx".'),
        "age_under": (DURATION, "Only so soon after submission."),
        "age_over": (DURATION, "Only so late after submission."),
        "match": (MATCH, "What the answer must read; all of it."),
        "means": (MEANS, "What such an answer means."),
        "applied": (BOOLEAN, "false: the answer proves that a write was not applied."),
    },
    required=("means",),
)
PAGE = Table(
    "page",
    {
        "query": (TEXT, "Query parameter that takes the cursor."),
        "at": (SOURCE, "Where an answer has the next cursor."),
        "item": (POINTER, "Or: where the last item of a page has it."),
        "items": (POINTER, "Where a page has its items."),
        "more": (SOURCE, "Where an answer says whether there is more."),
        "max_pages": (COUNT, "Pages read at most."),
    },
    required=("query",),
)
IDEMPOTENCY = Table(
    "idempotency",
    {
        "at": (KEY_PLACE, "Where the key goes: header:Name, body:field, query:name, path:"),
        "format": (KEY_FORMAT, "How the key is written."),
        "max_length": (COUNT, "Longest key the provider takes."),
        "window": (DURATION, "How long the provider honours a key, from the first request."),
        "stores_errors": (BOOLEAN, "A stored error is replayed for the same key."),
        "on_repeat": (SCALARS, "Parameters added when the request is sent again."),
    },
    required=("at",),
)
EXAMPLE = Table(
    "example",
    {
        "on": (TEXT, "jobs.NAME.status, calls.NAME, …"),
        "http": (STATUS_CODE, "Status of the answer."),
        "headers": (EXAMPLE_HEADERS, "Header fields of the answer."),
        "body": (LITERAL, "Body of the answer, as text."),
        "expect": (TEXT, "What must be concluded."),
    },
    required=("on", "http", "expect"),
)

# --- requests -------------------------------------------------------------------------------

_ADDRESS: Keys = {
    "method": (METHOD, "HTTP method."),
    "path": (PATH, "Path under base_url."),
    "url": (URL, "Instead of path: an address taken from an answer."),
    "query": (QUERY, "Query parameters."),
    "headers": (HEADERS, "Header fields of this request."),
    "timeout": (DURATION, "Total time for one request."),
    "hosts": (HOSTS, "Hosts beside base_url's and allow_hosts."),
    "redirect": (REDIRECT, "Which redirects may be followed."),
    "auth": (BOOLEAN, "Whether the credential goes with it."),
    "max_bytes": (BYTES, "Longest answer that is read."),
}
_CONTENT: Keys = {
    "body": (BODY, "JSON body."),
    "body_json": (BODY_JSON, "JSON body as text."),
    "form": (FIELDS, "Form fields."),
    "merge": (MERGE, "Values put into an object that came as an argument."),
}
_ANSWER: Keys = {
    "ok": (STATUSES, "Statuses that are a success; default any 2xx."),
    "take": (TAKE, "Values kept from the answer, for {take.x} and {id}."),
    "require": (REQUIRE, "Fields that the answer must have."),
    "require_any": (REQUIRE, "Fields of which the answer must have one."),
}
_ECHO: Keys = {"echo": (ECHO, "What the answer must repeat, else binding_mismatch.")}
_APPROVAL: Keys = {
    "approval": (APPROVAL, "Whether a person approves it first."),
    "approval_covers": (COVERS, "What one approval allows."),
}
_CLASS: Keys = {"class": (CLASS, "read, idempotent_write or uncertain_write.")}
_EFFECT: Keys = {
    **_CLASS,
    "idempotent": (BY_NATURE, "The provider says that repeating it changes nothing."),
}

SUBMIT = Table("submit", {**_ADDRESS, **_CONTENT, **_ANSWER, **_ECHO, **_EFFECT, **_APPROVAL})
STATUS = Table(
    "status",
    {
        **_ADDRESS,
        **_CONTENT,
        **_ECHO,
        **_APPROVAL,
        "ok": _ANSWER["ok"],
        "take": _ANSWER["take"],
        "effect": (EFFECT, "Whether asking costs money or changes something."),
        "evidence": (LINK, "Where the provider says so."),
        "secret": (REFERENCE, "A narrower credential for this request."),
    },
)
RESULT = Table(
    "result",
    {
        **_ADDRESS,
        **_CONTENT,
        **_ANSWER,
        **_CLASS,
        **_APPROVAL,
        "when": (ENDS, "Job states in which it may run."),
    },
)
CANCEL = Table(
    "cancel",
    {
        **_ADDRESS,
        **_CONTENT,
        **_ANSWER,
        **_ECHO,
        **_EFFECT,
        **_APPROVAL,
        "consequence": (TEXT, "What cancelling costs, for the person who decides."),
    },
)
LOOKUP = Table(
    "lookup",
    {
        **_ADDRESS,
        **_CONTENT,
        **_CLASS,
        "ok": _ANSWER["ok"],
        "items": (POINTER, "Where the answer has its list; absent: the answer is the item."),
        "match": (MATCH, "What marks our effect."),
        "take": (TAKE, "Values kept from the item found."),
        "page": (nested(PAGE), "How to read further pages."),
        "settle": (WAIT, "Least time between two empty lookups."),
        "absence_proves": (BOOLEAN, "Two empty lookups prove that nothing was applied."),
        "max_lookups": (COUNT, "Lookups in all."),
    },
    required=("match",),
)

# --- actions --------------------------------------------------------------------------------

_ACTION: Keys = {
    "title": (TEXT, "A short name for people."),
    "description": (TEXT, "What it does, for agents."),
    "label": (LABEL, "What a person approves; arguments named here are fit for display."),
    "input": (INPUT, "JSON Schema of the arguments."),
    "identity": (NAMES, "Arguments that make two actions the same; default all."),
    "repeat": (REPEAT, "What the same action means after it ended."),
    "repeat_window": (WAIT, "How long after its end the same action is a repetition."),
    "on_failure": (ON_FAILURE, "note, or ask: make a failure a case."),
    "approve_within": (DURATION, "How long an approval is waited for."),
    "failure": (nested(FAILURE), "Where an error answer has code and message."),
    "rules": (several(nested(RULE)), "What answers mean; the first match decides."),
    "idempotency": (nested(IDEMPOTENCY), "How the provider takes an idempotency key."),
    "lookup": (nested(LOOKUP), "How an unclear write is found again."),
}
SHORT_STATES = ("waiting", "blocked", "succeeded", "failed", "cancelled", "expired")
SHORT_LIMITS = ("usual", "deadline")
JOB = Table(
    "job",
    {
        **_ACTION,
        "submit": (nested(SUBMIT, REQUEST_LINE), "The request that starts the job."),
        "status": (nested(STATUS, REQUEST_LINE), "The request that asks for its state."),
        "states": (nested(STATES), "What the provider's words mean; others stop the wait."),
        "success": (nested(SUCCESS), "What a success must have, and what it permits."),
        "limits": (nested(LIMITS), "Deadline and budgets."),
        "backoff": (nested(BACKOFF), "Delays between checks."),
        "hints": (nested(HINTS), "Recommendations of the provider."),
        "expiry": (nested(EXPIRY), "When job and result go away."),
        "result": (nested(RESULT, REQUEST_LINE), "The request that fetches the result."),
        "results": (
            named(nested(RESULT, REQUEST_LINE), check_name),
            "Several results, each by its name.",
        ),
        "cancel": (nested(CANCEL, REQUEST_LINE), "The request that cancels the job."),
        "body": (BODY, "Short for submit.body."),
        "id": (SOURCE, "Short for submit.take.id: where the answer has the job id."),
        "state": (READS, "Short for states.read."),
        **{key: (ROWS, f"Short for states.{key}.") for key in SHORT_STATES},
        **{key: (DURATION, f"Short for limits.{key}.") for key in SHORT_LIMITS},
    },
)
CALL = Table(
    "call",
    {
        **_ADDRESS,
        **_CONTENT,
        **_ANSWER,
        **_ECHO,
        **_EFFECT,
        **_APPROVAL,
        **_ACTION,
        "deadline": (DURATION, "When trying ends."),
        "page": (nested(PAGE), "How to read further pages."),
        "coalesce": (DURATION, "Equal reads this near share one answer."),
        "instead_of_many": (NAMED, "The call to advise when this one is walked item by item."),
        "walk_limit": (COUNT, "Items after which the walk is refused."),
    },
)

# --- the file -------------------------------------------------------------------------------

CONTRACT = Table(
    "contract",
    {
        "contract": (VERSION, "The format; always 1."),
        "use": (NAMED, "A shipped contract that this file adapts."),
        "provider": (NAMED, "Name of the provider; default: the file's name."),
        "title": (TEXT, "A short name for people."),
        "base_url": (BASE_URL, "Where all paths start."),
        "allow_hosts": (HOSTS, "Other hosts that answers may point to."),
        "console": (CONSOLE, "Where a person can look; no request is made."),
        "docs": (LINK, "The provider's documentation."),
        "checked": (DATE, "When the facts were last checked."),
        "auth": (
            nested(
                AUTH, {"type": "string", "pattern": "^(none$|bearer |basic |header |query |body )"}
            ),
            "Credential, by reference.",
        ),
        "account": (nested(ACCOUNT), "Account id, and values for {account.x}."),
        "headers": (PLAIN_HEADERS, "Header fields of every request."),
        "scopes": (named(nested(SCOPE), check_name), "Shared limits."),
        "classes": (nested(CLASSES), "Numbers of the request classes."),
        "resends_below": (
            RESENDS,
            "How many more times a proxy or gateway on the way may send one of our requests.",
        ),
        "escalation": (nested(ESCALATION), "How open cases are announced again."),
        "retention": (nested(RETENTION), "How long what is over is kept."),
        "jobs": (named(nested(JOB), check_name), "Actions with a result that comes later."),
        "calls": (
            named(nested(CALL, REQUEST_LINE), check_name),
            "Actions answered by one request.",
        ),
        "rules": (several(nested(RULE)), "What answers of every action mean."),
        "examples": (several(nested(EXAMPLE)), "Answers with what must be concluded."),
    },
    required=("contract",),
)

TABLES = (
    AUTH,
    CHECK,
    ACCOUNT,
    SCOPE,
    CLASS_LIMITS,
    CLASSES,
    ESCALATION,
    RETENTION,
    EXTENSION,
    LIMITS,
    BACKOFF,
    HINTS,
    EXPIRY,
    STATES,
    SUCCESS,
    FAILURE,
    RULE,
    PAGE,
    IDEMPOTENCY,
    EXAMPLE,
    SUBMIT,
    STATUS,
    RESULT,
    CANCEL,
    LOOKUP,
    JOB,
    CALL,
    CONTRACT,
)
"""All sections, inner ones first."""
