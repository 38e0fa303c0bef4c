"""The command ``mcpenv connect``: configure an MCP host to use an environment."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter

from mcpenv.cli.output import Page, author_output, print_json, quiet_logs
from mcpenv.cli.remote import mcp_url
from mcpenv.cli.tokens import AGENT_TOKEN, AgentToken
from mcpenv.errors import ConfigurationError
from mcpenv.targets.place import is_url
from mcpenv.targets.target import load_target
from mcpenv_client.types.tools import Mode

from .bearer import TOKEN, keeps_tokens, with_bearer
from .config_files import Installed
from .hosts import CLAUDE_CODE, HOSTS, Form, Host, Machine, Server

HostName = Literal["claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini-cli", "goose", "inspector"]


def connect(
    host: HostName,
    target: str,
    /,
    *,
    write: Annotated[bool, Parameter(negative=())] = False,
    name: str | None = None,
    mode: Literal["simulation", "production"] | None = None,
    config: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    bearer: Annotated[bool, Parameter(negative=())] = False,
    agent: AgentToken = AgentToken(),  # noqa: B008 - frozen
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print or install the configuration with which an MCP host uses an environment.

    Args:
        host: The MCP host to configure.
        target: An environment as for run, which the host then starts, or the URL of a running server.
        write: Install the configuration: change the host's file, or run the host's command.
        name: The server's name in the host. Default: the name of the folder or class.
        mode: The mode to serve in. Default: production. A server at a URL has its own.
        config: Configuration file to use instead of the host's usual one.
        force: Replace a server of the same name.
        bearer: The server at the URL requires an agent's token. The printed text has a placeholder for it.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    quiet_logs(debug)
    token = agent.read(target)
    bearer = bearer or token is not None
    if bearer and not is_url(target):
        raise ConfigurationError("--bearer is for a server at a URL; an environment's code requires no token")
    if bearer and write and token is None:
        raise ConfigurationError(f"--bearer with --write needs the token (--agent-token-file, or {AGENT_TOKEN})")
    server = _server(target, name, mode, settings or [])
    # A token is written to the host's file but never printed: printed texts have a placeholder.
    chosen = with_bearer(HOSTS[host]) if bearer else HOSTS[host]
    file = config.expanduser() if config is not None else chosen.file(Machine.here())
    # With --config, Claude Code too is configured by a file: a project's .mcp.json.
    snippet = chosen.snippet(server) if config is None else chosen.text(server)
    done = _install(chosen, server, file, snippet, force, token) if write else None
    if as_json:
        print_json(_document(chosen, server, file, snippet, done))
    else:
        notes = _notes(chosen, token, done) if bearer else []
        _show(Page(sys.stdout), chosen, server, file, snippet, done, notes)
    return 0


def _server(target: str, name: str | None, mode: str | None, settings: list[str]) -> Server:
    if is_url(target):
        if mode is not None or settings:
            raise ConfigurationError("--mode and --set are for an environment's code; a running server has its own")
        try:
            return Server(name or _name_of(target), url=mcp_url(target))
        except ValueError as error:
            raise ConfigurationError(f"{target}: {error}") from error
    with author_output():
        loaded = load_target(target, settings)
    default = Mode.PRODUCTION if Mode.PRODUCTION in loaded.modes else Mode.SIMULATION
    chosen = default if mode is None else Mode(mode)
    loaded.refuse_other(chosen)
    options = ["--mode", chosen.value, *(part for setting in settings for part in ("--set", setting))]
    return Server.over_stdio(name or loaded.name, loaded.spec, options)


def _name_of(url: str) -> str:
    """Return a name for the server at a URL: its host name; ``mcpenv`` for an IP address or localhost."""
    host = urlsplit(url).hostname or ""
    return host.replace(".", "-") if any(letter.isalpha() for letter in host) and host != "localhost" else "mcpenv"


def _install(host: Host, server: Server, file: Path | None, snippet: str, force: bool, token: str | None) -> Installed:
    if token is not None:
        host = with_bearer(HOSTS[host.key], token)
    if file is not None:
        return host.install(server, file, force=force)
    if host.key != CLAUDE_CODE.key:
        raise ConfigurationError(f"{host.title} has no configuration file; run: {snippet}")
    # FastMCP's installers import its whole command line, which takes a second.
    from .claude_code import add

    return Installed(None, changed=add(host, server, snippet, force=force, token=token))


def _document(host: Host, server: Server, file: Path | None, snippet: str, done: Installed | None) -> dict[str, Any]:
    return {
        "host": host.key,
        "name": server.name,
        "command": list(server.command) or None,
        "url": server.url,
        "file": None if file is None else str(file),
        "snippet": snippet,
        "written": done is not None and done.changed,
        "backup": None if done is None or done.backup is None else str(done.backup),
    }


def _notes(host: Host, token: str | None, done: Installed | None) -> list[str]:
    """Return notes for the user on where the server's token belongs."""
    if not keeps_tokens(host):
        return [f"{host.title} stores no token: set {AGENT_TOKEN} in the environment in which {host.title} starts."]
    if done is None:
        where = f"in place of {TOKEN}"
        return [f"Put an agent's token {where}." if token is None else f"The token is not shown; put it {where}."]
    if done.file is None:
        return []
    # On other systems the mode does not show who may read the file.
    others = os.name == "posix" and done.file.stat().st_mode & 0o077
    return [f"The file contains the token{', and other users of this machine may read it' if others else ''}."]


def _run_recipe(file: Path | None) -> str:
    where = "FILE" if file is None else shlex.quote(str(file))
    return f"Run it: goose run --recipe {where} --params prompt=..."


def _show(
    page: Page,
    host: Host,
    server: Server,
    file: Path | None,
    snippet: str,
    done: Installed | None,
    notes: list[str],
) -> None:
    where = f"  {file}" if file is not None else ""
    if done is None:
        page.line((host.title, "bold"), where)
        page.line()
        page.block(snippet)
        if host.key != "inspector":
            notes = [*notes, "Add --write to install it."]
        if host.form is Form.RECIPE:
            notes = [*notes, _run_recipe(file)]
        if notes:
            page.line()
    elif done.changed:
        page.line(f"{host.title} has {server.name} now{':' if where else '.'}{where}")
        if done.backup is not None:
            notes = [f"Backup of the previous file: {done.backup}", *notes]
        notes = [*notes, f"Restart {host.title} to use it." if host.form is not Form.RECIPE else _run_recipe(file)]
    else:
        page.line(f"{host.title} has {server.name} already{':' if where else '.'}{where}")
    for note in notes:
        page.line((note, "dim"))
