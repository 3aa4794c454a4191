"""The commented first contract that `forbear init` writes."""

from __future__ import annotations

FIRST_CONTRACT = """\
# A first contract. Copy it to NAME.toml beside this file: the name is the provider's.
#     forbear contract check        says what is wrong, and what it leaves open
#     forbear try NAME.export dataset=sales

contract = 1
base_url = "https://api.example.com/v1"
auth     = "bearer env:EXAMPLE_TOKEN"   # a reference, never the secret; also file:/path, or "none"

[account]
id = "main"                             # your name for the account; part of every job's identity

[jobs.export]
title     = "Export a data set"
label     = "Export {arg.dataset}"      # what people see when they decide
usual     = "10m"                       # how long it takes usually, and when to stop waiting
deadline  = "40m"
submit    = "POST /exports"
body      = { dataset = "{arg.dataset}" }
id        = "/job_id"                   # where the answer has the job's id: a JSON pointer
status    = "GET /exports/{id}"
state     = "/state"                    # where the status answer has its state
waiting   = ["queued", "running"]       # every word the provider uses, by what it means;
succeeded = ["done"]                    # a word that is not here stops and asks a person
failed    = ["failed"]
result    = "GET {/result/url}"         # an address out of the last status answer

# Real answers, replayed by `forbear contract check`:
[[examples]]
on = "jobs.export.status"
http = 200
body = '{"job_id": "7", "state": "running"}'
expect = "waiting"
"""
