"""An environment whose author's code makes spans of its own, with a tool for every outcome."""

from __future__ import annotations

import time
from typing import Any

from fastmcp import FastMCP
from opentelemetry import trace

from mcpenv import MCPEnvironment, ToolCall, ToolError, ToolOutcome

tracer = trace.get_tracer("author")

mounted = FastMCP("calculator")


@mounted.tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    with tracer.start_as_current_span("author multiplies"):
        return a * b


class Traced(MCPEnvironment):
    """Sums."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add(a: int, b: int) -> int:
            """Add."""
            with tracer.start_as_current_span("author adds"):
                return a + b

        @self.tool
        async def subtract(a: int, b: int) -> int:
            """Subtract."""
            with tracer.start_as_current_span("author subtracts"):
                return a - b

        @self.tool
        def fail(secret: str) -> str:
            """Fail."""
            raise ToolError(f"no: {secret}")

        @self.tool(timeout_s=0.05)
        def sleep() -> None:
            """Take too long."""
            time.sleep(0.3)

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        with tracer.start_as_current_span("author scores"):
            return 1.0

    def verify(self, evidence: Any) -> bool:
        with tracer.start_as_current_span("author verifies"):
            return True


class Mounted(MCPEnvironment):
    """Products."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(mounted)

        @self.tool
        def negate(a: int) -> int:
            """Negate."""
            return -a
