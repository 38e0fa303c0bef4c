"""``mcpenv connect``: the configuration by which an MCP host uses an environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter

from ..errors import ConfigurationError
from ..host_files import Installed
from ..hosts import CLAUDE_CODE, HOSTS, Host, Place, Server
from ..targets import load_target
from .output import Page, author_output, print_json, quiet_logs
from .remote import is_url, mcp_url

HostName = Literal["claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini-cli", "inspector"]


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
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print, or install, the configuration by which an MCP host uses an environment.

    Args:
        host: The program that connects.
        target: An environment as for run: the host starts it. Or the URL of a server that runs.
        write: Install it: change the host's configuration, or run its command.
        name: What the host calls it. Default: the folder's or the class's name.
        mode: Which tools there are. Default: production. A server at a URL has its own.
        config: Another configuration file than the host's usual one.
        force: Replace a server of the same name.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    quiet_logs(debug)
    server = _server(target, name, mode, settings or [])
    chosen = HOSTS[host]
    file = config.expanduser() if config is not None else chosen.file(Place.here())
    # A file that is named for Claude Code is a project's .mcp.json.
    snippet = chosen.snippet(server) if config is None else chosen.text(server)
    done = _install(chosen, server, file, snippet, force) if write else None
    if as_json:
        print_json(_document(chosen, server, file, snippet, done))
    else:
        _show(Page(sys.stdout), chosen, server, file, snippet, done)
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
    options = ["--mode", mode or "production", *(part for setting in settings for part in ("--set", setting))]
    return Server.over_stdio(name or loaded.name, loaded.spec, options)


def _name_of(url: str) -> str:
    """A name for a server elsewhere: its host, unless that says nothing."""
    host = urlsplit(url).hostname or ""
    return host.replace(".", "-") if any(letter.isalpha() for letter in host) and host != "localhost" else "mcpenv"


def _install(host: Host, server: Server, file: Path | None, snippet: str, force: bool) -> Installed:
    if file is not None:
        return host.install(server, file, force=force)
    if host is not CLAUDE_CODE:
        raise ConfigurationError(f"{host.title} keeps no configuration; run: {snippet}")
    # FastMCP's installers bring its whole command line, a second of loading that only this needs.
    from .claude_code import add

    add(server, snippet, force=force)
    return Installed(None, changed=True)


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


def _show(page: Page, host: Host, server: Server, file: Path | None, snippet: str, done: Installed | None) -> None:
    where = f"  {file}" if file is not None else ""
    if done is None:
        page.line((host.title, "bold"), where)
        page.line()
        page.block(snippet)
        if host.key != "inspector":
            page.line()
            page.line(("Add --write to install it.", "dim"))
        return
    if not done.changed:
        page.line(f"{host.title} has {server.name} already:{where}")
        return
    page.line(f"{host.title} has {server.name} now{':' if where else '.'}{where}")
    if done.backup is not None:
        page.line((f"The file as it was: {done.backup}", "dim"))
    page.line((f"Start {host.title} again to use it.", "dim"))
