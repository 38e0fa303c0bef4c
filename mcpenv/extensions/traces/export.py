"""The export of traces by OpenTelemetry's SDK, as the standard environment variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from mcpenv import tracing
from mcpenv.errors import ConfigurationError
from mcpenv.redaction import HIDDEN, hide, redact

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTERS = "OTEL_TRACES_EXPORTER"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The environment variables that ask for traces, and say how they are sent. The SDK reads all others itself."""

HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""The environment variables with the credentials of a collector."""

_IDS = frozenset({"mcp.session.id"})
"""The attributes of FastMCP's spans with which a client could join a session."""


def export_traces() -> None:
    """Export the spans of this process, if the environment variables say so. What is left is sent at its exit.

    Does nothing if the process has a tracer provider, for instance that of ``opentelemetry-instrument``.

    Raises:
        ConfigurationError: traces are asked for, and cannot be exported.
    """
    wanted = _exporters()
    if not wanted or tracing.enabled():
        return
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporters = [_exporter(name) for name in wanted]
    except ImportError as error:
        raise ConfigurationError(
            f"{_variable()} asks for traces, and OpenTelemetry's SDK is not installed ({error.name}): "
            "pip install 'mcpenv[otel]'"
        ) from error
    for name in HEADERS:
        for header in os.environ.get(name, "").split(","):
            hide(header.partition("=")[2].strip())
    service = OTELResourceDetector().detect().attributes.get(SERVICE_NAME, "mcpenv")
    resource = Resource.create({SERVICE_NAME: service, "process.pid": os.getpid()})
    provider = TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _exporters() -> list[str]:
    """Return the names of the exporters that are asked for."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or _variable() is None:
        return []
    names = [name.strip() for name in os.environ.get(EXPORTERS, "").split(",") if name.strip()] or ["otlp"]
    if names == ["none"]:
        return []
    for name in names:
        if name not in ("otlp", "console"):
            raise ConfigurationError(
                f"{EXPORTERS} is {name!r}; mcpenv exports otlp, console or none. For others, run it with "
                "opentelemetry-instrument"
            )
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), "http/protobuf")
    if "otlp" in names and protocol != "http/protobuf":
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; mcpenv exports http/protobuf. For others, run it with "
            "opentelemetry-instrument"
        )
    return names


def _variable() -> str | None:
    """Return the environment variable that asks for traces."""
    return next((name for name in (EXPORTERS, *ENDPOINTS) if os.environ.get(name)), None)


def _exporter(name: str) -> SpanExporter:
    import sys

    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    exporter: SpanExporter
    if name == "console":
        exporter = ConsoleSpanExporter(out=sys.stderr)  # stdout may be MCP's
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    return _redacting(exporter)


def _redacting(exporter: SpanExporter) -> SpanExporter:
    """Return an exporter without secrets in the texts of spans. FastMCP's spans have the texts of exceptions."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Redacting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return exporter.export([_redacted(span) for span in spans])

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Redacting()


def _redacted(span: ReadableSpan) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan

    description = span.status.description
    return ReadableSpan(
        redact(span.name),
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_without_secrets(span.attributes or {}),
        events=[Event(event.name, _without_secrets(event.attributes or {}), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=trace.Status(span.status.status_code, None if description is None else redact(description)),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_secrets(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: HIDDEN if name in _IDS else redact(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
