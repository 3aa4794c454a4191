"""Contract texts that several tests start from."""

from __future__ import annotations

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse

SMALL = """\
contract = 1
base_url = "https://api.exp.example/v1"
auth     = "bearer env:EXP_TOKEN"

[jobs.export]
usual     = "10m"
deadline  = "40m"
submit    = "POST /exports"
body      = { dataset = "{arg.dataset}" }
id        = "/job_id"
status    = "GET /exports/{id}"
state     = "/state"
waiting   = ["queued", "running"]
succeeded = ["done"]
failed    = ["failed"]
result    = "GET {/result/url}"

[calls]
customer = "GET /customers/{arg.id}"
"""
"""The smallest useful contract: every short form."""

FULL = """\
contract = 1
provider = "exp"
title = "Report exports"
base_url = "https://api.exp.example/v1"
allow_hosts = ["files.exp.example"]
console = "https://exp.example/jobs/{id}"
docs = "https://exp.example/docs/exports"
checked = 2026-11-30

[auth]
scheme = "bearer"
secret = "env:EXP_TOKEN"

[account]
id = "acct_17"
check = { path = "/me", at = "/account/id" }

[headers]
Exp-Version = "2026-01-01"

[scopes.account]
per = "account"
actions = ["*"]
rate = "60/1m"
reserve = 0.1
max_concurrent_requests = 2
max_delayed_requests = 25
retry_budget = "20/1m"
max_block = "1h"
wait_until_reset = "12h"
remaining = "header:X-RateLimit-Remaining"
reset = { at = "header:X-RateLimit-Reset", unit = "epoch" }

[classes.read]
max_attempts = 5
max_wait = "90s"
base = "1s"
max_delay = "60s"
rate_limited = "5s"
retry_statuses = [408, 429, "5xx"]

[escalation]
remind = ["1h", "1d", "3d"]

[jobs.export]
title = "Export a data set"
description = "Start an export; takes 2 to 30 minutes."
label = "Export {arg.dataset}"
repeat = "ask"
repeat_window = "10m"
identity = ["dataset"]
on_failure = "note"

[jobs.export.input]
type = "object"
required = ["dataset"]
additionalProperties = false
properties.dataset = { type = "string", maxLength = 64 }

[jobs.export.limits]
usual = "10m"
deadline = "40m"
max_status_requests = 12
max_transport_failures = 3
max_rate_limited = 3
useful_for = "2h"
extension = { by = "15m", status_requests = 4, times = 1 }

[jobs.export.backoff]
base = "5s"
max = "2m"
rate_limited = "60s"
first = "5s"

[jobs.export.submit]
method = "POST"
path = "/exports"
class = "uncertain_write"
body = { dataset = "{arg.dataset}", client_ref = "{ref}" }
merge = { "/options/ref" = "{ref}" }
ok = [200, 202]
take = { id = "/job_id", status_url = "header:Location" }
timeout = "30s"
approval = "none"

[jobs.export.status]
method = "GET"
path = "/exports/{id}"
effect = "read"
evidence = "https://exp.example/docs/exports#status"
echo = { "/job_id" = "{id}" }

[jobs.export.states]
read = "/state"
waiting = ["queued", "running"]
blocked = []
succeeded = ["done"]
failed = ["failed"]
cancelled = ["cancelled"]
expired = ["expired"]
progress = "/progress_percent"

[jobs.export.success]
require = { "/result/url" = "url" }
require_any = []
take = { url = "/result/url" }
partial = { at = "/failed_rows", test = "positive" }
then = ["fetch_result"]
when_missing = "escalate"

[jobs.export.failure]
code = "/error/code"
message = "/error/message"

[jobs.export.hints]
next = [ { at = "/next_check_at", unit = "rfc3339" }, { at = "/poll_after_seconds", unit = "s" } ]
floor = "2s"
ceiling = "10m"

[jobs.export.expiry]
job = { at = "/expires_at", unit = "rfc3339" }
result = { at = "/result/expires_at", unit = "rfc3339" }
kept = "7d"

[jobs.export.result]
method = "GET"
url = "{result.url}"
when = ["succeeded"]
auth = false
hosts = ["files.exp.example"]
redirect = "none"
max_bytes = 10_000_000
timeout = "5m"

[jobs.export.cancel]
method = "POST"
path = "/exports/{id}/cancel"
approval = "per_call"
consequence = "Work so far is lost."

[jobs.export.lookup]
method = "GET"
path = "/exports"
query = { client_ref = "{ref}" }
items = "/data"
match = { "/client_ref" = "{ref}" }
take = { id = "/job_id" }
page = { query = "after", item = "/id", more = "/has_more", max_pages = 3 }
settle = "60s"
absence_proves = true
max_lookups = 6

[[jobs.export.rules]]
on = ["status"]
http = 404
age_under = "30s"
means = "not_yet_visible"

[calls.transfer]
title = "Transfer money"
label = "Transfer {arg.amount:minor(currency)} to {arg.to}"
class = "idempotent_write"
method = "POST"
path = "/transfers"
body = { amount = "{arg.amount}", currency = "{arg.currency}", to = "{arg.to}" }
take = { id = "/id" }
require = { "/id" = "non_empty" }
echo = { "/amount" = "{arg.amount}" }
deadline = "15m"
approval = "per_call"

[calls.transfer.idempotency]
at = "header:Idempotency-Key"
format = "uuid"
max_length = 255
window = "24h"
stores_errors = true
on_repeat = {}

[calls.transfer.lookup]
method = "GET"
path = "/transfers"
query = { reference = "{ref}" }
items = "/data"
match = { "/reference" = "{ref}" }
take = { id = "/id" }

[calls.customer]
class = "read"
method = "GET"
path = "/customers/{arg.id}"
coalesce = "2s"
instead_of_many = "customers"
walk_limit = 20

[calls.customers]
class = "read"
method = "GET"
path = "/customers"
page = { query = "cursor", at = "/next", items = "/data", max_pages = 20 }

[[rules]]
http = 429
match = { "/error/code" = ["quota_exceeded"] }
means = "quota_exhausted"

[[examples]]
on = "jobs.export.status"
http = 200
body = '{"job_id":"exp_71c","state":"done"}'
expect = "contradictory_response"
"""
"""Every section of the long form."""


def changed(text: str, old: str, new: str) -> str:
    """The text with its one `old` replaced."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def loaded(text: str, file: str = "exp.toml") -> Contract:
    found = parse(text, file)
    assert isinstance(found, Contract), "\n".join(map(str, found))
    return found


def errors_of(text: str, file: str = "exp.toml") -> tuple[ContractError, ...]:
    found = parse(text, file)
    assert isinstance(found, tuple), "the text has no error"
    return found
