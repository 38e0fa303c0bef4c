"""``connect`` as an agent with a token: where it goes, and that it is never told."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from agent_tokens import (
    ADAS_TOKEN,
    PRINTS_ITS_ENVIRONMENT,
    VARIABLE,
    WITH_TOKEN,
    WRONG_TOKEN,
)
from command_line import TIMEOUT_S, Cli, Done, write
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from mcpenv.extensions.hosts.bearer import TOKEN
from mcpenv.extensions.hosts.hosts import HOSTS

KEEP_FILES = ["claude-desktop", "cursor", "vscode", "gemini-cli"]


# -- what is given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--agent-token", "short"), "--agent-token needs 8 or more printable ASCII characters"),
        ((*WITH_TOKEN, "--agent-token-file", "x"), "--agent-token and --agent-token-file: give only one of them"),
        (("--agent-token-file", "nowhere"), "--agent-token-file nowhere: No such file or directory"),
    ],
)
def test_a_token_that_cannot_be_used_is_one_line_and_status_2(cli: Cli, options: tuple[str, ...], said: str) -> None:
    done = cli("connect", "cursor", "http://127.0.0.1:1", *options)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


def test_a_variable_that_cannot_be_used_is_one_line_and_status_2(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    said = f"error: {VARIABLE} needs 8 or more printable ASCII characters without blanks\n"
    assert cli("connect", "cursor", "http://127.0.0.1:1") == Done(2, "", said)


def test_an_environments_code_takes_no_token(cli: Cli) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    said = "--agent-token and --agent-token-file are for a server at a URL; an environment's code requires none"
    for options in (WITH_TOKEN, ("--agent-token-file", "x")):
        assert cli("connect", "cursor", "world", *options) == Done(2, "", f"error: {said}\n")


# -- printing


@pytest.mark.parametrize("key", HOSTS)
def test_what_is_printed_has_a_placeholder(cli: Cli, home: Path, url: str, key: str) -> None:
    done = cli("connect", key, url, *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert (f"Bearer {TOKEN}" in done.out) is (key != "codex")
    if key == "codex":
        assert f'\nbearer_token_env_var = "{VARIABLE}"\n' in done.out
        assert f"\nCodex stores no token: set {VARIABLE} in the environment in which Codex starts.\n" in done.out
    else:
        assert "\nThe token is not shown; put it in place of TOKEN.\n" in done.out
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("key", HOSTS)
def test_bearer_is_the_same_without_a_token(cli: Cli, url: str, key: str) -> None:
    bare, with_token = cli("connect", key, url, "--bearer"), cli("connect", key, url, *WITH_TOKEN)
    assert bare.status == 0
    put, not_shown = "Put an agent's token in place of TOKEN.", "The token is not shown; put it in place of TOKEN."
    assert bare.out == with_token.out.replace(not_shown, put)
    documents = [json.loads(cli("connect", key, url, *o, "--json").out) for o in (("--bearer",), WITH_TOKEN)]
    assert documents[0] == documents[1]
    assert documents[0]["snippet"] in bare.out


@pytest.mark.parametrize("key", HOSTS)
def test_without_both_nothing_is_said_of_tokens(cli: Cli, url: str, key: str) -> None:
    done = cli("connect", key, url)
    assert done.status == 0
    assert "Bearer" not in done.out
    assert "token" not in done.out.lower()


# -- writing


@pytest.mark.parametrize("key", KEEP_FILES)
def test_what_is_installed_lets_the_agent_in(cli: Cli, home: Path, url: str, key: str) -> None:
    done = cli("connect", key, url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert "\nThe file contains the token.\n" in done.out
    document = json.loads(cli("connect", key, url, "--json", "--write", *WITH_TOKEN).out)
    assert (document["written"], f"Bearer {TOKEN}" in document["snippet"]) == (False, True)
    entry = json.loads(Path(document["file"]).read_text(encoding="utf-8"))[HOSTS[key].servers_key]["mcpenv"]
    assert asyncio.run(tools_of(*address_of(entry))) == ["add"]


def test_the_token_is_installed_however_it_is_given(cli: Cli, home: Path, url: str, given: tuple[str, ...]) -> None:
    done = cli("connect", "cursor", url, "--write", *given)
    assert (done.status, done.err) == (0, "")
    assert "\nThe file contains the token.\n" in done.out
    file = Path(json.loads(cli("connect", "cursor", url, "--json", "--write", *WITH_TOKEN).out)["file"])
    assert f"Bearer {ADAS_TOKEN}" in file.read_text(encoding="utf-8")


def test_codex_is_told_by_which_variable_it_gets_the_token(cli: Cli, home: Path, url: str) -> None:
    done = cli("connect", "codex", url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert f"\nCodex stores no token: set {VARIABLE} in the environment in which Codex starts.\n" in done.out
    text = (home / ".codex" / "config.toml").read_text(encoding="utf-8")
    assert ADAS_TOKEN not in text
    entry = {"url": f"{url}/mcp", "required": True, "bearer_token_env_var": VARIABLE}
    assert tomllib.loads(text) == {"mcp_servers": {"mcpenv": entry}}


def address_of(entry: dict[str, Any]) -> tuple[str, str]:
    """Return the address of an entry, and the header that a host sends."""
    if "command" not in entry:
        return entry.get("url") or entry["httpUrl"], entry["headers"]["Authorization"]
    assert entry["args"][:2] == ["-y", "mcp-remote"]
    assert entry["args"][3:] == ["--header", "Authorization:${AUTHORIZATION}"]
    return entry["args"][2], entry["env"]["AUTHORIZATION"]


async def tools_of(address: str, authorization: str) -> list[str]:
    transport = StreamableHttpTransport(address, headers={"Authorization": authorization})
    async with asyncio.timeout(TIMEOUT_S), Client(transport) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.skipif(os.name != "posix", reason="modes of files mean nothing there")
def test_a_file_that_is_made_for_the_token_is_the_users_alone(cli: Cli, home: Path, url: str) -> None:
    before = os.umask(0)
    try:
        assert cli("connect", "cursor", url, "--write", *WITH_TOKEN).status == 0
    finally:
        os.umask(before)
    file = home / ".cursor" / "mcp.json"
    assert ADAS_TOKEN in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes of files mean nothing there")
def test_of_a_file_that_others_can_read_that_is_said(cli: Cli, url: str) -> None:
    file = Path("mcp.json")
    file.write_text("{}", encoding="utf-8")
    file.chmod(0o644)
    done = cli("connect", "cursor", url, "--write", "--config", "mcp.json", *WITH_TOKEN)
    assert done.status == 0
    assert "\nThe file contains the token, and other users of this machine may read it.\n" in done.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_another_token_replaces_the_entry_only_by_force(cli: Cli, home: Path, url: str) -> None:
    assert cli("connect", "cursor", url, "--write", "--agent-token", WRONG_TOKEN).status == 0
    refused = cli("connect", "cursor", url, "--write", *WITH_TOKEN)
    assert refused.status == 2
    assert "it has another server 'mcpenv'" in refused.err
    assert cli("connect", "cursor", url, "--write", "--force", *WITH_TOKEN).status == 0
    text = (home / ".cursor" / "mcp.json").read_text(encoding="utf-8")
    assert (ADAS_TOKEN in text, WRONG_TOKEN in text) == (True, False)
    assert cli("connect", "cursor", url, "--write", *WITH_TOKEN).out.startswith("Cursor has mcpenv already:")


def test_a_project_file_of_claude_code_has_the_token_where_it_was_asked_for(cli: Cli, url: str) -> None:
    assert cli("connect", "claude-code", url, "--write", "--config", ".mcp.json", *WITH_TOKEN).status == 0
    entry = json.loads(Path(".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["mcpenv"]
    assert asyncio.run(tools_of(*address_of(entry))) == ["add"]


# What the stand-in for Claude Code's command does with its arguments.
KEEPS = """printf '%s\\n' "$@" > log"""
REPEATS = 'echo "not by me: $*" >&2; exit 1'


@pytest.fixture
def claude(request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "claude"
    command.parent.mkdir()
    version = 'if [ "$1" = "--version" ]; then echo "2.0.0 (Claude Code)"; exit 0; fi'
    command.write_text(f"#!/bin/sh\n{version}\n{request.param}\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for claude is a shell script")
@pytest.mark.parametrize("claude", [KEEPS], indirect=True)
@pytest.mark.usefixtures("claude")
def test_claude_code_gets_the_token_by_its_own_command(cli: Cli, url: str) -> None:
    done = cli("connect", "claude-code", url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert Path("log").read_text(encoding="utf-8").splitlines() == [
        *("mcp", "add", "--transport", "http", "mcpenv", f"{url}/mcp"),
        *("--header", f"Authorization: Bearer {ADAS_TOKEN}"),
    ]


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for claude is a shell script")
@pytest.mark.parametrize("claude", [REPEATS], indirect=True)
@pytest.mark.usefixtures("claude")
def test_what_claude_code_repeats_of_a_token_is_not_told(cli: Cli, url: str) -> None:
    said = f"claude mcp add: not by me: mcp add --transport http mcpenv {url}/mcp --header Authorization: Bearer ..."
    done = cli("connect", "claude-code", url, "--write", *WITH_TOKEN)
    assert done == Done(2, "", f"error: {said}\n")
    assert "Traceback" in cli("connect", "claude-code", url, "--write", "--debug", *WITH_TOKEN).err


# -- what is refused


@pytest.mark.parametrize("key", HOSTS)
def test_to_write_a_token_is_needed(cli: Cli, home: Path, url: str, key: str) -> None:
    said = f"error: --bearer with --write needs the token (--agent-token-file, or {VARIABLE})\n"
    assert cli("connect", key, url, "--write", "--bearer") == Done(2, "", said)
    assert list(home.iterdir()) == []


def test_bearer_is_for_servers_at_a_url(cli: Cli) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    said = "error: --bearer is for a server at a URL; an environment's code requires no token\n"
    assert cli("connect", "cursor", "world", "--bearer") == Done(2, "", said)


@pytest.mark.parametrize("options", [("--write",), ("--config", "x.json", "--write")])
def test_inspector_is_started_by_hand_and_its_command_has_the_placeholder(
    cli: Cli, url: str, options: tuple[str, ...]
) -> None:
    done = cli("connect", "inspector", url, *options, *WITH_TOKEN)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: Inspector has no configuration file; run: npx -y")
    assert done.err.endswith(f"--header 'Authorization: Bearer {TOKEN}'\n")
