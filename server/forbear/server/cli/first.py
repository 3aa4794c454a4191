"""The commented files that `forbear init` writes: a first contract, and settings."""

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

FIRST_SETTINGS = """\
# Settings of this home. Every line is a remark: take the # away from what you need. A variable of
# the environment wins over its line: FORBEAR_CONSOLE over `console`, and so on.

# console = "127.0.0.1:8377"            # where `forbear console` and `forbear serve --http` listen
# console_url = "https://forbear.example"   # the public address, in links to cases
# operator_token = "…"                  # decides cases without a terminal; then keep this file 0600
# log = "WARNING"                       # or DEBUG, INFO, ERROR
# database_url = "postgresql://…"       # for several machines, instead of a file in this home

# What one task of an agent may use in all, over all its operations:
# [task]
# max_requests = 500
# max_wait = "2h"
# max_open_operations = 200

# Who is told of open cases: docs/decisions.md
# [notify]
# webhook = "https://hooks.example/forbear"
# secret = "env:FORBEAR_HOOK_SECRET"

# Only where nothing but a proxy leads out:
# [proxy]
# url = "http://proxy.internal:3128"
"""
