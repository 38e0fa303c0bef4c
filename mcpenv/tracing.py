"""Traces of an orchestrator's requests, of steps, tools and scores, by OpenTelemetry's API.

Without a tracer provider there are no spans. The extension `traces` sets one up for servers. Spans have names,
numbers and ids, never arguments or the text of an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.tools import ToolErrorType

_tracer = trace.get_tracer("mcpenv")

MAX_NAME = 100
"""Maximum characters of a tool's name in a span. An agent may ask for any name."""


def enabled() -> bool:
    """Return True if this process has a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def flush() -> None:
    """Send the spans that are left. For processes that end without Python's own exit."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        shutdown()


@contextmanager
def request(operation: str, carrier: Mapping[str, str]) -> Iterator[trace.Span]:
    """Run the block in the span of an orchestrator's request.

    Args:
        operation: the name of the operation.
        carrier: the fields or headers of the request, which may name the caller's span.
    """
    with _tracer.start_as_current_span(
        f"control {operation}",
        context=_parent(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={"mcpenv.operation": operation},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


@contextmanager
def part(name: str, context: Context | None = None) -> Iterator[None]:
    """Run the block in a span. An exception marks the span as failed.

    Args:
        context: the context of the span above it; None for the current one.
    """
    with _tracer.start_as_current_span(
        name, context=context, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            failed(span, type(error).__qualname__)
            raise


def failed(span: trace.Span, error_type: str) -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR)


class StepTrace:
    """The spans of one step: of the step, its tool and its score. That of the step is the current span until `over`."""

    __slots__ = ("_current", "_name", "_step", "_tool")

    def __init__(self, call: ToolCall, session_id: str, episode_id: str | None) -> None:
        self._name = call.name[:MAX_NAME]
        self._tool: trace.Span | None = None
        self._step = _tracer.start_span(
            "step",
            attributes={
                "gen_ai.tool.name": self._name,
                "mcpenv.session_id": session_id,
                "mcpenv.episode_id": episode_id or "",
                "mcpenv.step": call.step,
                "mcpenv.plane": call.plane.value,
            },
        )
        self._current = _use(self._step, end=True)
        self._current.__enter__()

    @contextmanager
    def tool(self, *no_failures: type[BaseException]) -> Iterator[None]:
        """Run the block in the span of the tool. Exceptions other than ``no_failures`` mark it as failed."""
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": self._name}
        self._tool = _tracer.start_span(f"execute_tool {self._name}", attributes=attributes)
        try:
            with _use(self._tool):
                yield
        except no_failures:
            self._end_tool(None)
            raise
        except BaseException as error:
            self._end_tool(type(error).__qualname__)
            raise

    def tool_over(self, outcome: ToolOutcome) -> None:
        """End the span of the tool. A later call has no effect. May be called in the tool's thread."""
        self._end_tool(_error_type(outcome))

    @contextmanager
    def score(self, outcome: ToolOutcome) -> Iterator[None]:
        """Run the block, a `score` in the thread of its tool, in a span of its own. End the tool's span first."""
        self.tool_over(outcome)
        with part("score", trace.set_span_in_context(self._step)):
            yield

    def over(self, record: StepRecord | None) -> None:
        """End the span of the step, with the outcome of the step.

        Args:
            record: None if there was no step.
        """
        if record is not None:
            self._describe(record)
        self._current.__exit__(None, None, None)

    def _describe(self, record: StepRecord) -> None:
        span = self._step
        span.set_attribute("mcpenv.status", record.status.code.value)
        if record.reward is not None:
            span.set_attribute("mcpenv.reward", record.reward.value)
        if record.done:
            span.set_attribute("mcpenv.end", "terminated" if record.terminated else "truncated")
        error_type = record.fault or _error_type(record.outcome)
        if error_type is not None:
            failed(span, error_type)

    def _end_tool(self, error_type: str | None) -> None:
        span, self._tool = self._tool, None
        if span is not None:
            if error_type is not None:
                failed(span, error_type)
            span.end()


def _use(span: trace.Span, *, end: bool = False) -> AbstractContextManager[trace.Span]:
    return trace.use_span(span, end_on_exit=end, record_exception=False, set_status_on_exception=False)


def _parent(carrier: Mapping[str, str]) -> Context | None:
    """Return the context of the caller; None (the current one) if the carrier names no span."""
    if not carrier:
        return None
    context = propagate.extract(carrier)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _error_type(outcome: ToolOutcome) -> str | None:
    if outcome.error is not None:
        return outcome.error.error_type.value
    if outcome.result is not None and outcome.result.is_error:
        return ToolErrorType.EXECUTION_ERROR.value
    return None
