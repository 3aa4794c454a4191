"""Spans of requests on the wire, by the conventions of OpenTelemetry for HTTP clients.

Each request is a span of its own that links to the tool call that made its operation. No span holds
a query, a header, a body or a credential, and no trace header goes to a provider. The interface of
OpenTelemetry alone is needed; without its SDK, or without an exporter, all of this does nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import metadata
from threading import Thread
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from forbear.rules.contract import Request
from forbear.rules.ports import Outbound, Permit, Reply
from forbear.rules.signals import Signal
from forbear.rules.steps import request_of
from forbear.storage.outcomes import outcome_of
from forbear.storage.reserving import Reserved
from forbear.tools.tracing import OPERATION, cause_of

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Settings of which one must be there for spans to be exported."""

FLUSH = 2.0
"""Seconds that the last spans get when a process ends, whether or not anybody takes them."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"})

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("forbear")


class Attempt:
    """The span of one request; say what came of it before it ends."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._told = False

    def came(self, reply: Reply, signal: Signal | None = None) -> None:
        """What came back, and what it means where somebody read it."""
        span, self._told = self._span, True
        if not span.is_recording():
            return
        span.set_attribute("forbear.outcome", outcome_of(reply))
        if signal is not None:
            span.set_attribute("forbear.certainty", str(signal.certainty))
        if reply.status is not None:
            span.set_attribute("http.response.status_code", reply.status)
        failed = reply.status is not None and reply.status >= 400
        if reply.fault is not None or failed:
            self._fail(reply.fault or str(reply.status))

    def lost(self) -> None:
        """The request was broken off: nobody knows what came of it."""
        if not self._told:
            self._span.set_attribute("forbear.outcome", "unknown")
            self._fail("cancelled")

    def _fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


@contextmanager
def attempt(reserved: Reserved) -> Generator[Attempt]:
    """The span of a reserved request of an operation."""
    op = reserved.operation
    with _request(
        reserved.permit, reserved.request, request_of(op, reserved.holding.action)
    ) as traced:
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute("forbear.action", op.action)
            span.set_attribute("forbear.step", str(op.step))
            span.set_attribute("forbear.attempt.number", reserved.number)
            if op.attempts.used > 1 and op.step == "send":
                span.set_attribute("http.request.resend_count", op.attempts.used - 1)
        yield traced


@contextmanager
def token_request(permit: Permit, request: Outbound) -> Generator[Attempt]:
    """The span of a reserved request for an access token."""
    with _request(permit, request, None) as traced:
        trace.get_current_span().set_attribute("forbear.step", "token")
        yield traced


@contextmanager
def _request(permit: Permit, request: Outbound, stated: Request | None) -> Generator[Attempt]:
    method = request.method if request.method in _METHODS else "_OTHER"
    template = stated.path.text if stated is not None and stated.path is not None else None
    cause = cause_of(permit.operation_id)
    # It belongs to no call: those end, or are cancelled, while their operation goes on.
    span = _started(
        f"{'HTTP' if method == '_OTHER' else method}{f' {template}' if template else ''}",
        () if cause is None else (Link(cause),),
    )
    with _ended(span), trace.use_span(span, record_exception=False, set_status_on_exception=False):
        if span.is_recording():
            span.set_attributes(_address(request) | {"http.request.method": method})
            if method == "_OTHER":
                span.set_attribute("http.request.method_original", request.method)
            if template is not None:
                span.set_attribute("url.template", template)
            span.set_attribute("forbear.provider", permit.provider)
            span.set_attribute(OPERATION, permit.operation_id)
        traced = Attempt(span)
        try:
            yield traced
        finally:
            traced.lost()


def _started(name: str, links: Sequence[Link]) -> Span:
    """A span, or one that does nothing: what listens to spans may fail, and no request with it."""
    try:
        return _tracer.start_span(name, Context(), SpanKind.CLIENT, links=links)
    except Exception:
        _log.exception("a span could not be begun")
        return trace.INVALID_SPAN


@contextmanager
def _ended(span: Span) -> Generator[None]:
    """End a span at the end, whatever comes of that: the answer is still to be stored."""
    try:
        yield
    finally:
        try:
            span.end()
        except Exception:
            _log.exception("a span could not be ended")


def _address(request: Outbound) -> dict[str, str | int]:
    """Where a request goes. An address out of an answer may itself be a secret."""
    try:
        parts = urlsplit(request.url)
        port = parts.port or {"http": 80}.get(parts.scheme, 443)
    except ValueError:
        return {}
    host = parts.hostname or ""
    path = "/REDACTED" if request.from_answer else parts.path
    place = f"[{host}]" if ":" in host else host
    stated = "" if parts.port is None else f":{parts.port}"
    url = f"{parts.scheme}://{place}{stated}{path}"
    return {"server.address": host, "server.port": port, "url.full": url}


# --- the exporter -----------------------------------------------------------------------------


@contextmanager
def exporting() -> Generator[None]:
    """Export spans while this lasts, if the environment says where to (`ENDPOINTS`).

    A tracer provider that is there already is left alone.
    """
    wanted = any(os.environ.get(name) for name in ENDPOINTS)
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    off = off or os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "none"
    given = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    if not wanted or off or given:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning(
            "%s is set, and no spans are exported: install forbear[otel]", " or ".join(ENDPOINTS)
        )
        yield
        return
    named = Resource({"service.name": "forbear", "service.version": _version()})
    resource = named.merge(Resource.create()) if _names_itself() else Resource.create().merge(named)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # A collector that does not answer must not keep a process that is to end.
        end = Thread(target=provider.shutdown, name="forbear-spans", daemon=True)
        end.start()
        end.join(FLUSH)


def _names_itself() -> bool:
    """Whether the environment names the service."""
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in attributes


def _version() -> str:
    try:
        return metadata.version("forbear")
    except metadata.PackageNotFoundError:
        return "source"
