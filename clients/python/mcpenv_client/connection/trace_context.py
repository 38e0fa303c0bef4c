"""The calling program's current span, for servers that trace. OpenTelemetry is used if the program uses it."""

from __future__ import annotations

import sys

FIELDS = ("traceparent", "tracestate")


def trace_context() -> dict[str, str]:
    """Return W3C's fields of the current span; empty without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate, trace

    if not trace.get_current_span().get_span_context().is_valid:
        return {}
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: carrier[name] for name in FIELDS if name in carrier}
