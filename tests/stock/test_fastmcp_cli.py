from __future__ import annotations

import shlex
import sys

from programs import SIMULATION_TOOLS, printed, run, script

STDIO = shlex.join([sys.executable, "-m", "mcpenv", "run", "envs/echo_mcp", "--transport", "stdio"])


def test_fastmcp_list_lists_over_http(server: str) -> None:
    listed = printed(run(script("fastmcp"), "list", f"{server}/mcp", "--json"))
    assert [tool["name"] for tool in listed["tools"]] == list(SIMULATION_TOOLS)


def test_fastmcp_call_calls_over_http(server: str) -> None:
    result = printed(run(script("fastmcp"), "call", f"{server}/mcp", "echo_with_length", "message=hello", "--json"))
    assert result["structured_content"] == {"message": "hello", "length": 5}
    assert not result["is_error"]


def test_fastmcp_call_reports_an_unknown_tool(server: str) -> None:
    ended = run(script("fastmcp"), "call", f"{server}/mcp", "shout", "message=hello")
    assert ended.returncode == 1
    assert "shout" in ended.stdout + ended.stderr


def test_fastmcp_lists_and_calls_over_stdio() -> None:
    listed = printed(run(script("fastmcp"), "list", "--command", STDIO, "--json"))
    assert [tool["name"] for tool in listed["tools"]] == list(SIMULATION_TOOLS)
    call = ["--target", "echo_message", "--input-json", '{"message": "hello"}', "--json"]
    result = printed(run(script("fastmcp"), "call", "--command", STDIO, *call))
    assert result["content"] == [{"type": "text", "text": "hello"}]
