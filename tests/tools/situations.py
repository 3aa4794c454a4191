"""Every situation in which an agent reads a text of ours, by a name for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.tools.records import (
    ANSWERED,
    AS_OF,
    DONE,
    ESCALATED,
    ID,
    MINUTE,
    NOT_SENT,
    SUCCEEDED,
    UNCLEAR,
    case,
    escalated,
    read,
    record,
    write,
)

from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Notice,
    Option,
    Reason,
    Refusal,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.paging import Cut
from forbear.storage.errors import StoreTooNew
from forbear.tools import refusals
from forbear.tools.record import Record

PARENT = "op_parentofthisoperation0001"
LINK = "http://127.0.0.1:8377/escalations/esc_h2n8c4"

APPROVAL: dict[str, Any] = {
    "waiting_for": WaitingFor.APPROVAL,
    "approve_by": AS_OF + 24 * 60 * MINUTE,
}
SHARED: dict[str, Any] = {
    "waiting_for": WaitingFor.SCOPE,
    "delay_source": DelaySource.SCOPE_LIMIT,
    "next_at": AS_OF + 20_000,
}
OUTAGE: dict[str, Any] = {"delay_source": DelaySource.CIRCUIT_OPEN}
DELAYED: dict[str, Any] = {
    **ANSWERED,
    "state": State.DELAYED,
    "waiting_for": None,
    "certainty": Certainty.NOT_APPLIED,
    "next_at": AS_OF + 30_000,
    "delay_source": DelaySource.PROVIDER_RETRY_AFTER,
}
FAILED: dict[str, Any] = {
    **ANSWERED,
    "state": State.FAILED,
    "waiting_for": None,
    "next_at": None,
    "certainty": Certainty.NOT_APPLIED,
    "failure": {"code": "invalid_dataset", "message": "No such data set."},
}
NEVER_LEFT: dict[str, Any] = {
    "state": State.FAILED,
    "waiting_for": None,
    "next_at": None,
    "transport_failures": Budget(3, 3),
    "failure": {"code": "dns", "message": "The name was not found."},
}
DROPPED: dict[str, Any] = {"state": State.DISCARDED, "waiting_for": None, "next_at": None}


def asked(one: Record, reason: Reason = Reason.APPROVAL_REQUIRED, **changes: Any) -> Record:
    return replace(one, case=case(reason, **changes), decide_at=LINK)


def _records() -> Mapping[str, Record]:
    job = record(**NOT_SENT)
    wish = {"option": Option.EXTEND, "reason": "nearly done"}
    result = {"kind": Kind.RESULT, "parent_id": PARENT, "request_class": RequestClass.READ}
    cancel = {"kind": Kind.CANCEL, "parent_id": PARENT}
    situations = {
        # queued
        "job queued, the limit is shared": record(**{**NOT_SENT, **SHARED}),
        "job queued, in a copy": replace(record(**NOT_SENT), copy=True),
        "job queued, paused": record(**{**NOT_SENT, **SHARED, "delay_source": None}),
        "job queued, others go first": job,
        "job queued, stored": record(**{**NOT_SENT, "waiting_for": None}),
        "job queued, approval": asked(record(**{**NOT_SENT, **APPROVAL})),
        "job queued, approval in a terminal": replace(
            asked(record(**{**NOT_SENT, **APPROVAL})), console_served=False
        ),
        "job queued, no key": record(**{**NOT_SENT, "waiting_for": WaitingFor.CREDENTIAL}),
        "job queued, outage": record(**{**NOT_SENT, **OUTAGE}),
        "write queued, approval": asked(write(**APPROVAL)),
        "read queued, the limit is shared": read(**SHARED),
        "job queued, met by a second request": replace(job, joined=True),
        # sending
        "job on its way": record(**{**NOT_SENT, "state": State.SENDING, "waiting_for": None}),
        "write on its way": write(state=State.SENDING, waiting_for=None),
        "read on its way": read(state=State.SENDING, waiting_for=None),
        "write on its way, ended meanwhile": write(
            state=State.SENDING, waiting_for=None, pending={"end": "task ended"}
        ),
        # waiting
        "job runs, ends soon": record(expected_at=AS_OF + 2 * MINUTE),
        "job runs, no usual end": record(),
        "job runs, ends late": record(expected_at=AS_OF + 30 * MINUTE),
        "job runs, ends late, this client watches": replace(
            record(expected_at=AS_OF + 30 * MINUTE), watched_until_client_closes=True
        ),
        "job runs, four waits without news": replace(record(), spare_waits=4),
        "job runs, met by a second request": replace(record(), joined=True),
        "job runs, more time is asked for": asked(record(), Reason.REQUESTED, wish=wish),
        "job runs, looking needs approval": asked(record(waiting_for=WaitingFor.APPROVAL)),
        "job runs, no key to look": record(waiting_for=WaitingFor.CREDENTIAL),
        "job runs, outage": record(**OUTAGE),
        # delayed
        "write delayed, 429": write(**{**DELAYED, "http_status": 429}),
        "write delayed, 503": write(**{**DELAYED, "http_status": 503}),
        "write delayed, 500": write(**{**DELAYED, "http_status": 500}),
        "read delayed, 429": read(**{**DELAYED, "http_status": 429}),
        "read delayed, no answer": read(
            **{
                **DELAYED,
                "answered": False,
                "http_status": None,
                "delay_source": DelaySource.LOCAL_BACKOFF,
            }
        ),
        "write delayed, not reached": write(
            **{**DELAYED, "sent": False, "answered": False, "http_status": None}
        ),
        "write delayed, the limit is shared": write(
            **{**DELAYED, "delay_source": DelaySource.SCOPE_LIMIT}
        ),
        "write delayed, a person allowed another try": write(
            **{**DELAYED, "delay_source": DelaySource.MANUAL_EXTENSION}
        ),
        "write delayed, another try needs approval": asked(write(**{**DELAYED, **APPROVAL})),
        "read delayed, far away": read(**{**DELAYED, "next_at": AS_OF + 60 * MINUTE}),
        # unclear
        "write unclear, lookup": write(**UNCLEAR),
        "write unclear, resend with its key": write(
            **{**UNCLEAR, "step": Step.SEND, "lookups": Budget(0, 0)}
        ),
        "write unclear, resend without a key": write(
            **{**UNCLEAR, "step": Step.SEND, "lookups": Budget(0, 0), "wire_key": None}
        ),
        "job unclear, lookup": record(**{**NOT_SENT, **UNCLEAR}),
        # over
        "job done, one result": replace(
            record(**SUCCEEDED, allowed=("fetch_result",)), results=("default",)
        ),
        "job done, several results": replace(
            record(**SUCCEEDED, allowed=("fetch_result",)), results=("rows", "log", "summary")
        ),
        "job done, no result": record(**SUCCEEDED),
        "job done in part, one result": replace(
            record(**SUCCEEDED, allowed=("fetch_result",), result={"partial": True}),
            results=("default",),
        ),
        "job done in part, no result": record(**SUCCEEDED, result={"partial": True}),
        "job done, as a person said": record(**{**SUCCEEDED, "validated": False}),
        "job done, met by a second request": replace(record(**SUCCEEDED), joined=True),
        "write done": write(**DONE),
        "write done, with an answer": write(**DONE, result={"inline": {"id": 1}}),
        "read done": read(**DONE, result={"inline": {"id": 1}}),
        "read done, large": read(**DONE, result={"file": "/a/b", "preview": "x", "bytes": 99_999}),
        "read done, cut short": read(**DONE, result={"inline": [], "cut": Cut.BUDGET, "pages": 5}),
        "read done, empty": read(**DONE),
        "result done": record(**{**SUCCEEDED, **result, "result": {"inline": {"rows": 3}}}),
        "result done, as a resource": record(
            **{
                **SUCCEEDED,
                **result,
                "result": {"resource": "forbear://artifacts/a", "preview": ""},
            }
        ),
        "cancellation done": record(**{**SUCCEEDED, **cancel}),
        "long over": record(**{**SUCCEEDED, "emptied_at": AS_OF}),
        "job failed": record(
            **{**FAILED, "certainty": Certainty.APPLIED, "kind": Kind.JOB, "http_status": 200}
        ),
        "job refused": record(**{**FAILED, "http_status": 422}),
        "write refused": write(**{**FAILED, "http_status": 422}),
        "write not done": write(**{**FAILED, "http_status": 500}),
        "write never left": write(**NEVER_LEFT),
        "read never left": read(**NEVER_LEFT),
        "read refused": read(**{**FAILED, "http_status": 404}),
        "read ran out": read(
            **{
                **FAILED,
                "http_status": 503,
                "wait": Budget(30_000, 90_000),
                "attempts": Budget(4, 4),
                "failure": {"code": "503", "retry_at": AS_OF + 10 * MINUTE},
            }
        ),
        "result failed": record(**{**FAILED, **result, "http_status": 404}),
        "cancellation failed": record(**{**FAILED, **cancel, "http_status": 409}),
        "job cancelled": record(**{**SUCCEEDED, "state": State.CANCELLED}),
        "job expired, a part is there": replace(
            record(**{**SUCCEEDED, "state": State.EXPIRED}, allowed=("fetch_result",)),
            results=("default",),
        ),
        "write dropped, never sent": write(**DROPPED),
        "write dropped after tries": write(**DROPPED, transport_failures=Budget(2, 3)),
        "write dropped, sent and not done": write(
            **{**ANSWERED, **DROPPED, "certainty": Certainty.NOT_APPLIED}
        ),
        "write given up while unclear": write(**{**UNCLEAR, **DROPPED}),
        "job dropped while it runs": record(**DROPPED, notices=(Notice.MAY_STILL_RUN,)),
        "job replaced": record(**DROPPED, superseded_by=PARENT),
    }
    stops = {f"job stopped: {reason}": escalated(reason) for reason in Reason}
    calls = {
        "write stopped: unclear_write": asked(
            write(**{**UNCLEAR, **ESCALATED}), Reason.UNCLEAR_WRITE
        ),
        "write stopped, never sent": asked(
            write(**ESCALATED, transport_failures=Budget(3, 3)), Reason.TRANSPORT_BUDGET_EXHAUSTED
        ),
        "write stopped, nothing was done": asked(
            write(**{**DELAYED, **ESCALATED, "attempts": Budget(3, 3)}), Reason.RATE_LIMITED
        ),
        "read stopped": asked(read(**ESCALATED), Reason.AUTHORIZATION_DENIED),
        "job stopped, an option is asked for": replace(
            escalated(), case=case(wish={"option": Option.CHECK_AGAIN, "reason": "why"})
        ),
        "job stopped, decided in a terminal": replace(escalated(), console_served=False),
    }
    return situations | stops | calls


RECORDS = _records()

REFUSALS: Mapping[str, Refusal] = {
    "unknown operation": refusals.unknown_operation("op_nothing"),
    "unknown provider": refusals.unknown_provider("acme", ["exp", "pay"]),
    "unknown action": refusals.unknown_action(
        "exp",
        "exprot",
        ["export"],
        'submit_job(provider="exp", job="export", arguments={"dataset": "<dataset>"})',
    ),
    "another tool": refusals.use_other_tool(
        "pay.customer",
        "a read",
        "write_api",
        "read_api",
        'read_api(provider="pay", call="customer", arguments={"id": "7"})',
    ),
    "one call for many": refusals.use_one_call(
        "pay.customer", 20, "customers", 'read_api(provider="pay", call="customers", arguments={})'
    ),
    "wrong arguments": refusals.invalid_arguments(
        ["/arguments/dataset: is missing"],
        'submit_job(provider="exp", job="export", arguments={"dataset": "<dataset>"})',
    ),
    "key conflict": refusals.key_conflict(ID),
    "possible duplicate": refusals.possible_duplicate(ID, State.WAITING, AS_OF - MINUTE, AS_OF),
    "possible duplicate, done": refusals.possible_duplicate(
        ID, State.SUCCEEDED, AS_OF - MINUTE, AS_OF
    ),
    "possible duplicate, unless with a key": refusals.possible_duplicate(
        ID, State.FAILED, AS_OF - MINUTE, AS_OF, keyed=True
    ),
    "possible duplicate, another's": refusals.possible_duplicate(None, State.WAITING, AS_OF, AS_OF),
    "not ready": refusals.not_ready(ID),
    "nothing new": refusals.nothing_new(ID, 9, 4, AS_OF + 5 * MINUTE, AS_OF),
    "not allowed in state": refusals.not_allowed_in_state(
        "cancel_job", ID, State.SUCCEEDED, ("fetch_result",)
    ),
    "no longer kept": refusals.no_longer_kept(ID, AS_OF - MINUTE, AS_OF),
    "scope full": refusals.scope_full("exp/account", 25, AS_OF + MINUTE, AS_OF),
    "task full": refusals.task_full("month-end", "seconds of waiting", 900, 900),
    "circuit open": refusals.circuit_open(3, "invalid_dataset", AS_OF + 10 * MINUTE, AS_OF),
    "paused": refusals.paused("exp"),
    "task ended": refusals.task_ended("month-end", AS_OF - MINUTE, AS_OF),
    "egress refused": refusals.egress_refused("evil.example"),
    "no key": refusals.credential_missing("exp"),
    "contract error": refusals.contract_error("exp", "exp.toml:12"),
    "store unavailable": refusals.store_unavailable(),
    "store too new": refusals.store_unavailable(StoreTooNew("upgraded")),
    "store is a copy": refusals.copied(),
}
