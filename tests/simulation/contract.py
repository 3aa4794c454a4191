"""What the simulated provider promises, as a contract. Times are short, so that a seed is short."""

from __future__ import annotations

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse

PROVIDER = "exp"

TIMEOUT = 4.0
"""Seconds that a request may take."""

WINDOW = 240.0
"""Seconds for which the provider recognises a key."""

SETTLE = 20.0
"""Seconds from the last byte of a request until its effect is done and listed, at the latest."""

_HEAD = """\
contract = 1
provider = "exp"
base_url = "http://127.0.0.1:8400/v1"
auth = "bearer env:FORBEAR_SIMULATED_TOKEN"
account = { id = "acct_17" }

[scopes.account]
per = "account"
rate = "40/1m"
reserve = 0.25
max_concurrent_requests = 3
max_delayed_requests = 1000
retry_budget = "12/1m"

[scopes.narrow]
per = "account"
actions = ["search", "plain"]
rate = "4/1m"
max_concurrent_requests = 1
max_delayed_requests = 1000

[classes.read]
rate_limited = "3s"
max_delay = "10s"
"""

_JOB = """
[jobs.{name}]
usual = "10s"
deadline = "{deadline}"
repeat_window = "7d"
id = "/id"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
cancelled = ["cancelled"]
blocked = ["held"]

[jobs.{name}.submit]
method = "POST"
path = "/exports"
body = {{ item = "{{arg.item}}" }}
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}

[jobs.{name}.status]
method = "GET"
path = "/exports/{{id}}"
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}

[jobs.{name}.limits]
max_status_requests = 8
max_transport_failures = 3
max_rate_limited = 2
extension = {{ by = "30s", status_requests = 3, times = 2 }}

[jobs.{name}.backoff]
base = "1s"
max = "6s"
first = "1s"
rate_limited = "5s"

[jobs.{name}.success]
require = {{ "/rows" = "integer" }}
then = ["fetch_result"]

[jobs.{name}.result]
method = "GET"
path = "/exports/{{id}}/rows"
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}

[jobs.{name}.cancel]
method = "POST"
path = "/exports/{{id}}/cancel"
approval = "none"
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}
"""

_READ = """
[calls.{name}]
method = "GET"
path = "/{name}/{{arg.item}}"
deadline = "30s"
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}
"""

_WRITE = """
[calls.{name}]
title = "Transfer {{arg.item}}"
label = "Transfer {{arg.item}}"
method = "POST"
path = "/transfers"
body = {{ item = "{{arg.item}}" }}
take = {{ id = "/id" }}
require = {{ "/id" = "non_empty" }}
repeat_window = "7d"
deadline = "75s"
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}
"""

_NO_APPROVAL = 'approval = "none"\n'

_APPROVAL = """\
approval = { mode = "per_call" }
approve_within = "40s"
"""

_PAGES = 'page = { query = "cursor", at = "/next", items = "/data", max_pages = 5 }\n'

_COALESCE = 'coalesce = "2s"\n'

_KEY = """
[{what}.{name}.idempotency]
at = "header:Idempotency-Key"
format = "uuid"
window = "240s"
"""

_LOOKUP = """
[{what}.{name}.lookup]
method = "GET"
path = "{path}"
query = {{ reference = "{{ref}}" }}
items = "/items"
match = {{ "/reference" = "{{ref}}" }}
take = {{ id = "/id" }}
settle = "20s"
absence_proves = true
max_lookups = 5
timeout = "4s"
headers = {{ X-Ref = "{{ref}}" }}
"""


def _job(name: str, deadline: str, *, key: bool = False, lookup: bool = False) -> str:
    text = _JOB.format(name=name, deadline=deadline)
    return text + _more("jobs", name, "/exports", key=key, lookup=lookup)


def _write(name: str, more: str, *, key: bool = False, lookup: bool = False) -> str:
    text = _WRITE.format(name=name) + more
    return text + _more("calls", name, "/transfers", key=key, lookup=lookup)


def _more(what: str, name: str, path: str, *, key: bool, lookup: bool) -> str:
    text = _KEY.format(what=what, name=name) if key else ""
    return text + (_LOOKUP.format(what=what, name=name, path=path) if lookup else "")


TEXT = "".join(
    (
        _HEAD,
        _job("export", "60s"),
        _job("tracked", "90s", lookup=True),
        _job("sure", "60s", key=True),
        _READ.format(name="item") + _COALESCE,
        _READ.format(name="search"),
        _READ.format(name="pages") + _PAGES,
        _write("plain", _NO_APPROVAL),
        _write("paid", _APPROVAL),
        _write("keyed", _NO_APPROVAL, key=True),
        _write("findable", _NO_APPROVAL, lookup=True),
        _write("both", _NO_APPROVAL, key=True, lookup=True),
    )
)

JOBS = ("export", "tracked", "sure")
READS = ("item", "search", "pages")
WRITES = ("plain", "paid", "keyed", "findable", "both")
KEYED = ("sure", "keyed", "both")
FINDABLE = ("tracked", "findable", "both")


def load() -> Contract:
    parsed = parse(TEXT, "exp.toml", lambda name: None)
    assert isinstance(parsed, Contract), [str(one) for one in parsed]
    return parsed


RULES = load()
