"""What a tool call leaves for traces: the MCP SDK makes its span, and this says what it was about.

Without a tracer of OpenTelemetry in the process nothing is kept, and nothing costs.
"""

from __future__ import annotations

from collections import OrderedDict

from opentelemetry.trace import SpanContext, get_current_span

OPERATION = "forbear.operation.id"
"""The attribute by which a call and the requests of any process are found together."""

MOST = 4_096
"""Of so many operations a process knows which call caused them."""

_causes: OrderedDict[str, SpanContext] = OrderedDict()


def about(operation_id: str) -> None:
    """Name the operation that the current call is about in its span."""
    get_current_span().set_attribute(OPERATION, operation_id)


def caused(operation_id: str) -> None:
    """Remember that the current call made this operation."""
    context = get_current_span().get_span_context()
    if not context.is_valid:
        return
    _causes[operation_id] = context
    if len(_causes) > MOST:
        _causes.popitem(last=False)


def cause_of(operation_id: str) -> SpanContext | None:
    """The span of the call that made an operation, if a call of this process did."""
    return _causes.get(operation_id)
