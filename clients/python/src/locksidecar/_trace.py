"""The trace context of an acquire. No I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

OPENTELEMETRY: Final = "opentelemetry.trace"

Trace = Callable[[], "str | None"]


def current() -> str | None:
    """Return the traceparent of OpenTelemetry's current span; None without one.

    A program that has not imported OpenTelemetry has none, so it is not imported for this.
    """
    api = sys.modules.get(OPENTELEMETRY)
    span = getattr(api, "get_current_span", None)  # it may be being imported just now
    if span is None:
        return None
    context = span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def nowhere() -> None:
    """Return no trace."""
