from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import ROOT, SIMULATION_TOOLS, Ended, node_environment, printed, run


def inspect(node_modules: Path, home: Path, *arguments: str) -> Ended:
    """Run the Inspector's command line."""
    command = ["npx", "@modelcontextprotocol/inspector", "--cli", *arguments]
    return run(*command, cwd=node_modules.parent, env=node_environment(node_modules, home))


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
def test_the_inspector_lists_over_http_and_finds_no_fault_in_the_schemas(
    server: str, node_modules: Path, tmp_path: Path, era: str
) -> None:
    listing = ["--method", "tools/list", "--strict", "--protocol-era", era]
    ended = inspect(node_modules, tmp_path, f"{server}/mcp", *listing)
    assert [tool["name"] for tool in printed(ended)["tools"]] == list(SIMULATION_TOOLS)


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
def test_the_inspector_calls_over_http(server: str, node_modules: Path, tmp_path: Path, era: str) -> None:
    call = ["--method", "tools/call", "--tool-name", "echo_with_length", "--tool-arg", "message=hello"]
    result = printed(inspect(node_modules, tmp_path, f"{server}/mcp", *call, "--protocol-era", era))
    assert result["structuredContent"] == {"message": "hello", "length": 5}


def test_the_inspector_says_that_a_call_failed(server: str, node_modules: Path, tmp_path: Path) -> None:
    call = ["--method", "tools/call", "--tool-name", "echo_with_length", "--tool-arg", "text=hello"]
    ended = inspect(node_modules, tmp_path, f"{server}/mcp", *call)
    assert "message: Missing required argument" in ended.stdout + ended.stderr


def test_the_inspector_calls_over_stdio(node_modules: Path, tmp_path: Path) -> None:
    started = [sys.executable, "-m", "mcpenv", "run", str(ROOT / "envs" / "echo_mcp"), "--transport", "stdio"]
    call = ["--method", "tools/call", "--tool-name", "echo_message", "--tool-arg", "message=hello"]
    result = printed(inspect(node_modules, tmp_path, *call, "--", *started))
    assert result["content"] == [{"type": "text", "text": "hello"}]
