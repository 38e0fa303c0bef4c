"""Claude Desktop starts commands and speaks MCP on their standard streams. The client here starts the same commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import ERAS, PRODUCTION_TOOLS, mcp_client, node_environment, run, script, seen
from serving import ECHO_MCP, served

ADAS_TOKEN = "secret-of-ada"


def written_for(target: str, config: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """The command, and its variables, that ``mcpenv connect claude-desktop TARGET --write`` wrote."""
    ended = run(script("mcpenv"), "connect", "claude-desktop", target, "--write", "--config", str(config), *options)
    assert ended.returncode == 0, ended.stderr
    (entry,) = json.loads(config.read_text())["mcpServers"].values()
    return [entry["command"], *entry["args"]], entry.get("env", {})


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_command_for_a_folder_works_from_any_directory(tmp_path: Path, mode: str, protocol: str) -> None:
    command, _ = written_for("envs/echo_mcp", tmp_path / "config.json")
    assert mcp_client(mode, "--", *command, cwd=tmp_path) == seen(protocol, PRODUCTION_TOOLS)


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_command_for_a_url_works_through_mcp_remote(
    server: str, node_modules: Path, tmp_path: Path, mode: str, protocol: str
) -> None:
    command, _ = written_for(server, tmp_path / "config.json")
    assert command[:3] == ["npx", "-y", "mcp-remote"]
    # In the folder of the packages npx takes the pinned one.
    env = node_environment(node_modules, tmp_path)
    assert mcp_client(mode, "--", *command, cwd=node_modules.parent, env=env) == seen(protocol)


def test_the_command_for_a_server_that_wants_a_token_brings_it(node_modules: Path, tmp_path: Path) -> None:
    mode, protocol = ERAS[-1]
    with served(ECHO_MCP, "--agent-token", f"ada={ADAS_TOKEN}") as guarded:
        command, variables = written_for(guarded, tmp_path / "config.json", "--agent-token", ADAS_TOKEN)
        assert not any(ADAS_TOKEN in part for part in command)
        env = {**node_environment(node_modules, tmp_path), **variables}
        assert mcp_client(mode, "--", *command, cwd=node_modules.parent, env=env) == seen(protocol)
