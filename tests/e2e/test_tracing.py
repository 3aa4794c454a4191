"""Spans of a real run: one per tool call, one per request, linked, without secrets, and not ours to
need."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from mcp import Client, stdio_client
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.e2e.harness import (
    KEYED,
    NO_RESULT,
    TRANSFER,
    WRITE,
    bank,
    call,
    furnished,
    says,
    serving,
    stage,
)

from forbear.server.fake import Answer, Drop, retry_after

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-in-the-query"
_spans = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of this test; a process has one tracer provider, set once."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(_spans))
        trace.set_tracer_provider(provider)
    _spans.clear()
    yield _spans
    _spans.clear()


def calls(spans: InMemorySpanExporter, tool: str) -> list[ReadableSpan]:
    """The spans of a tool's calls, as the server saw them."""
    return [
        span
        for span in spans.get_finished_spans()
        if span.name == f"tools/call {tool}" and span.kind is SpanKind.SERVER
    ]


def requests(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    """The spans of requests to a provider."""
    found = spans.get_finished_spans()
    return [span for span in found if "forbear.provider" in (span.attributes or {})]


def of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


async def test_a_call_is_one_span_and_every_request_one_that_links_to_it(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    # Whatever span is open where a process starts: its requests are not part of that.
    with trace.get_tracer("test").start_as_current_span("outer"):
        async with stage(tmp_path, NO_RESULT) as on:
            on.script(says("queued"), retry_after("60", 503), Drop(), says("done"))
            job = await on.submit()
            await on.submit()  # joins it, and causes nothing
            await on.check(job)
            await on.end_of(job)
            arrived, base = on.provider.arrivals, on.provider.base_url
    submitted, joined = calls(spans, "submit_job")
    assert of(joined)["forbear.operation.id"] == job
    assert of(submitted)["mcp.method.name"] == "tools/call"
    assert of(submitted)["gen_ai.tool.name"] == "submit_job"
    assert of(submitted)["forbear.operation.id"] == job
    (checked,) = calls(spans, "check_status")
    assert of(checked)["forbear.operation.id"] == job
    sent = requests(spans)
    assert len(sent) == len(arrived) == 5
    for number, span in enumerate(sent, 1):
        assert span.parent is None
        (link,) = span.links
        assert link.context.span_id == span_id(submitted)
        told = of(span)
        assert (told["forbear.operation.id"], told["forbear.attempt.number"]) == (job, number)
        assert (told["forbear.provider"], told["forbear.action"]) == ("exp", "export")
        assert (told["server.address"], told["url.full"]) == (
            "127.0.0.1",
            f"{base}/exports" if number == 1 else f"{base}/exports/exp_1",
        )
    assert [span.name for span in sent] == ["POST /exports", *["GET /exports/{id}"] * 4]
    outcomes = [
        (of(span).get("http.response.status_code"), of(span)["forbear.outcome"]) for span in sent
    ]
    assert [status for status, _ in outcomes] == [202, 200, 503, None, 200]
    assert [how for _, how in outcomes] == [*["answered"] * 3, "no_answer", "answered"]
    errors = [of(span).get("error.type") for span in sent]
    assert errors == [None, None, "503", "closed", None]
    failed = [span.status.status_code is StatusCode.ERROR for span in sent]
    assert failed == [False, False, True, True, False]
    assert of(sent[0])["forbear.certainty"] == "applied"


async def test_a_repeated_write_counts_its_resends_and_a_joined_call_caused_nothing(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    async with bank(tmp_path, TRANSFER | KEYED) as on:
        on.provider.script(WRITE, Answer(503), Answer(200, json={"id": "tr_1"}))
        write = (await on.write(idempotency_key="k"))["operation_id"]
        await on.end_of(write)
        assert (await on.write(idempotency_key="k"))["joined"]
    first, joined = calls(spans, "write_api")
    assert of(joined)["forbear.operation.id"] == write
    sent = requests(spans)
    assert [of(span).get("http.request.resend_count") for span in sent] == [None, 1]
    causes = {link.context.span_id for span in sent for link in span.links}
    assert causes == {span_id(first)}


async def test_no_span_holds_a_secret_and_no_trace_goes_to_a_provider(
    tmp_path: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", SECRET)
    signed = f"/files/{SECRET}?sig={SECRET}"
    job = NO_RESULT | {"status": "GET /exports/{id}", "result": "GET {/result/url}"}
    async with stage(tmp_path, job, auth="bearer env:EXP_TOKEN") as on:
        on.script(says("done", result={"url": f"{on.provider.base_url}{signed}"}))
        done = await on.submit(purpose=SECRET)
        await on.end_of(done)
        await on.call("fetch_result", operation_id=done, wait_seconds=20)
        await on.settled()
        arrived = on.provider.arrivals
    assert len(requests(spans)) == len(arrived) == 3
    for arrival in arrived:
        names = {name.lower() for name in arrival.headers}
        assert names.isdisjoint({"traceparent", "tracestate", "baggage"})
    for span in requests(spans):
        assert SECRET not in span.to_json()
    assert str(of(requests(spans)[-1])["url.full"]).endswith("/REDACTED")


class Failing(SpanProcessor):
    """What listens to spans and fails at requests, at their begin or at their end."""

    def __init__(self, where: str) -> None:
        self.where: str | None = where

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self.where == "start" and span.kind is SpanKind.CLIENT:
            raise RuntimeError("no span begins here")

    def on_end(self, span: ReadableSpan) -> None:
        if self.where == "end" and span.kind is SpanKind.CLIENT:
            raise RuntimeError("no span ends here")


@pytest.mark.requirement("D01")
@pytest.mark.parametrize("where", ["start", "end"])
async def test_whatever_listens_to_spans_the_outcome_of_a_request_is_stored(
    tmp_path: Path, spans: InMemorySpanExporter, where: str
) -> None:
    provider, failing = trace.get_tracer_provider(), Failing(where)
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(failing)
    try:
        async with stage(tmp_path, calls={"transfer": TRANSFER}) as on:
            on.script(Answer(201, {"id": "tr_1"}, effect=True), route=WRITE)
            done = await on.write(idempotency_key="k-1")
            assert (done["state"], on.count(WRITE)) == ("succeeded", 1)
    finally:
        failing.where = None


async def test_a_refused_call_is_an_error_and_sends_nothing(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    async with stage(tmp_path, NO_RESULT) as on:
        await on.call("submit_job", provider="exp", job="nothing", arguments={})
    (refused,) = calls(spans, "submit_job")
    assert of(refused)["error.type"] == "tool_error"
    assert requests(spans) == []


# --- a process of its own ---------------------------------------------------------------------


class Collector(BaseHTTPRequestHandler):
    """What an OpenTelemetry collector is to an exporter."""

    names: ClassVar[list[tuple[str, str]]] = []
    """Service and span of each that came in."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.names.extend((named["service.name"], span.name) for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.names.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def submitted_by_a_process(home: Path, **environment: str) -> None:
    async with furnished(home, NO_RESULT, states=("done",)):
        with (home / "stderr").open("w") as errors:
            parameters = serving(home, **environment)
            async with Client(stdio_client(parameters, errlog=errors)) as client:
                passed = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}
                answer = await call(client, "submit_job", wait_seconds=20, **passed)
                assert answer["state"] == "succeeded"


async def test_the_environment_alone_starts_the_exporter(tmp_path: Path, collector: str) -> None:
    await submitted_by_a_process(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector)
    assert ("forbear", "tools/call submit_job") in Collector.names
    assert ("forbear", "POST /exports") in Collector.names


async def test_the_service_has_the_name_that_the_environment_gives(
    tmp_path: Path, collector: str
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_SERVICE_NAME": "ours"}
    await submitted_by_a_process(tmp_path, **environment)
    assert {service for service, _ in Collector.names} == {"ours"}


async def test_a_collector_that_is_not_there_keeps_nobody(tmp_path: Path) -> None:
    await submitted_by_a_process(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")


async def test_without_the_sdk_everything_works_and_a_wish_for_spans_is_answered(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    path = serving(tmp_path).env or {}
    await submitted_by_a_process(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        PYTHONPATH=f"{site}:{path['PYTHONPATH']}",
    )
    assert "install forbear[otel]" in (tmp_path / "stderr").read_text()


def test_a_process_that_exports_nothing_loads_no_sdk() -> None:
    look = (
        "import sys, forbear.server.worker, forbear.tools.surface\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    env = serving(Path()).env
    out = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("[]\n", "")
