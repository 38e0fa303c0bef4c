"""Traces: from an orchestrator's request through the step to tool and score, and to a collector."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

ADDED = """\
  control step (server)
    step reward=1
      execute_tool add
        author adds
      score
        author scores"""

SCENARIOS = {
    "socket": f"""\
orchestrator
  control reset (server)
    reset
{ADDED}
  control step (server)
    step reward=1
      execute_tool subtract
        author subtracts
      score
        author scores
  control step (server)
    step reward=1 !execution_error
      execute_tool fail !execution_error
      score
        author scores
  control state (server)
  control end (server)
    verify
      author verifies
control step (server)""",
    "http": f"""\
orchestrator
  control reset (server)
    reset
{ADDED}
  control step (server) !404
  control mcp (server)
    reset
    step reward=1
      execute_tool add
        author adds
      score
        author scores""",
    "mounted": """\
orchestrator
  control step (server)
    step
      execute_tool multiply
        tools/call multiply (server)
          author multiplies
      score
  control step (server)
    step
      execute_tool negate
        tools/call negate (server)
      score""",
    "in_process": """\
program
  reset
  step reward=1
    execute_tool add
      author adds
    score
      author scores
  step !TIMEOUT
    execute_tool sleep !TimedOut""",
}

AGENT_CALL = """\
      tools/call add (server)
        reset
        step
          execute_tool add
            author adds"""


def run_program(scenario: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / "traced_program.py"), scenario], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_requests_steps_tools_and_scores_are_one_tree(scenario: str) -> None:
    out = run_program(scenario)
    assert out.partition("\nattributes")[0] == SCENARIOS[scenario]


@pytest.mark.process
@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_the_step_of_an_agent_is_a_child_of_fastmcps_span(era: str) -> None:
    out = run_program(era)
    assert out.startswith("agent\n")
    assert AGENT_CALL in out
    assert out.count("author adds") == out.count("tools/call add (server)") == 1


@pytest.mark.process
def test_spans_say_what_became_of_the_step_and_have_no_arguments() -> None:
    out = run_program("socket")
    assert "'mcpenv.step': 1" in out and "'mcpenv.status': 'completed'" in out and "'mcpenv.reward': 1.0" in out
    assert "'gen_ai.operation.name': 'execute_tool', 'gen_ai.tool.name': 'add'" in out
    assert "'mcpenv.status': 'agent_error'" in out
    assert "a-secret" not in out


@pytest.mark.process
def test_without_a_provider_there_are_no_spans_and_the_sdk_is_not_imported() -> None:
    program = """
import sys
from traced_world import Traced
from mcpenv.server import serving
from mcpenv_client import EnvClient

with serving(Traced) as url, EnvClient(url).sync() as client:
    client.reset()
    assert client.call_tool("add", {"a": 1, "b": 2}).reward == 1.0
    from opentelemetry import trace
    assert trace.get_tracer_provider().__class__.__name__ == "ProxyTracerProvider"
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_the_client_imports_opentelemetry_only_if_the_program_does() -> None:
    program = """
import sys
from mcpenv_client import EnvClient
from mcpenv_client.connection.trace_context import trace_context
assert trace_context() == {}
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
from opentelemetry import trace
assert trace_context() == {}
parent = trace.SpanContext(1, 2, False, trace.TraceFlags(1), trace.TraceState([("a", "b")]))
with trace.use_span(trace.NonRecordingSpan(parent)):
    assert trace_context() == {"traceparent": "00-" + "0" * 31 + "1-" + "0" * 15 + "2-01", "tracestate": "a=b"}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [7, "0" * 2000, ["a"]])
def test_a_traceparent_of_another_type_is_refused_and_a_malformed_one_ignored(tmp_path: Path, value: Any) -> None:
    from mcpenv_client.errors import InvalidMessage
    from mcpenv_client.wire.protocol import decode_frame

    with pytest.raises(InvalidMessage, match="traceparent"):
        decode_frame(json.dumps({"type": "state", "traceparent": value}))
    frame = decode_frame(json.dumps({"type": "state", "traceparent": "malformed", "tracestate": "a=b"}))
    assert frame.trace == {"traceparent": "malformed", "tracestate": "a=b"}
