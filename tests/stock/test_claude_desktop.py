"""Claude Desktop starts commands and speaks MCP on their standard streams. The client here starts the same commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import ERAS, PRODUCTION_TOOLS, mcp_client, node_environment, run, script, seen


def command_written_for(target: str, config: Path) -> list[str]:
    """The command that ``mcpenv connect claude-desktop TARGET --write`` wrote."""
    ended = run(script("mcpenv"), "connect", "claude-desktop", target, "--write", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    (entry,) = json.loads(config.read_text())["mcpServers"].values()
    return [entry["command"], *entry["args"]]


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_command_for_a_folder_works_from_any_directory(tmp_path: Path, mode: str, protocol: str) -> None:
    command = command_written_for("envs/echo_mcp", tmp_path / "config.json")
    assert mcp_client(mode, "--", *command, cwd=tmp_path) == seen(protocol, PRODUCTION_TOOLS)


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_command_for_a_url_works_through_mcp_remote(
    server: str, node_modules: Path, tmp_path: Path, mode: str, protocol: str
) -> None:
    command = command_written_for(server, tmp_path / "config.json")
    assert command[:3] == ["npx", "-y", "mcp-remote"]
    # In the folder of the packages npx takes the pinned one.
    env = node_environment(node_modules, tmp_path)
    assert mcp_client(mode, "--", *command, cwd=node_modules.parent, env=env) == seen(protocol)
