"""MCP hosts: the place and the format of each one's configuration."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcpenv.errors import ConfigurationError

from .config_files import Installed, add_to_json, add_to_toml, change_file

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The pattern of a server's name that every host accepts."""

GOOSE_TIMEOUT_S = 300
"""The timeout of Goose's calls: this framework's default deadline of a step."""

_WIDTH = 76
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Server:
    """The MCP server to configure: a command that speaks MCP on its standard streams, or a URL.

    Raises:
        ConfigurationError: the name is not accepted by every host.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"{self.name!r} cannot be the name of a server; use 1 to 64 letters, digits, '-' and '_' (--name)"
            )

    @classmethod
    def over_stdio(cls, name: str, spec: str, options: Sequence[str] = ()) -> Server:
        """Return the server of ``mcpenv run SPEC --transport stdio``, run by this Python."""
        return cls(name, (sys.executable, "-m", "mcpenv", "run", spec, "--transport", "stdio", *options))

    def bridged(self) -> Server:
        """Return the same server for a host that only starts commands."""
        if self.url is None:
            return self
        address = urlsplit(self.url)
        plain = ["--allow-http"] if address.scheme == "http" and address.hostname not in _LOOPBACK else []
        return Server(self.name, ("npx", "-y", "mcp-remote", self.url, *plain))

    def entry(self, *, url_key: str = "url", typed: bool = False) -> dict[str, Any]:
        """Return the JSON object (or TOML table) with which most hosts describe the server."""
        if self.url is not None:
            return {**({"type": "http"} if typed else {}), url_key: self.url}
        return {**({"type": "stdio"} if typed else {}), "command": self.command[0], "args": list(self.command[1:])}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and user to which the host files belong.

    Attributes:
        platform: as `sys.platform`.
        home: the user's home folder.
        folder: the working directory.
        environ: environment variables.
    """

    platform: str
    home: Path
    folder: Path
    environ: Mapping[str, str]

    @classmethod
    def here(cls) -> Machine:
        """Return the place of this process."""
        return cls(sys.platform, Path.home(), Path.cwd(), os.environ)


class Form(Enum):
    """The format of a host's file."""

    JSON = "json"
    TOML = "toml"
    RECIPE = "recipe"


@dataclass(frozen=True, slots=True)
class Host:
    """The program that connects to MCP servers.

    Attributes:
        key: its name on the command line.
        title: its name for users.
        servers_key: the key of the servers in its file, which maps names to entries.
        entry: returns the entry of a server in its file; None if it has no file.
        locate: returns its usual file; None if its own command edits the file, or it has none.
        command: returns the command that adds or opens a server; None if a file is edited instead.
        form: the format of the file.
    """

    key: str
    title: str
    servers_key: str = "mcpServers"
    entry: Callable[[Server], dict[str, Any]] | None = None
    locate: Callable[[Machine], Path] | None = None
    command: Callable[[Server], list[str]] | None = None
    form: Form = Form.JSON

    def file(self, machine: Machine) -> Path | None:
        """Return its usual configuration file; None if it has none to edit."""
        return None if self.locate is None else self.locate(machine)

    def snippet(self, server: Server) -> str:
        """Return the text that a user pastes: the command, or else the text of the file."""
        return self.text(server) if self.command is None else command_line(self.command(server))

    def text(self, server: Server) -> str:
        """Return the configuration file's text for the server.

        Raises:
            ConfigurationError: the host has no file.
        """
        entry = self._entry(server)
        if self.form is Form.JSON:
            return compact_json({self.servers_key: {server.name: entry}})
        if self.form is Form.RECIPE:
            return _recipe(server, entry)
        # JSON strings and arrays of strings are valid TOML, with \u escapes for characters that are not ASCII.
        lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        return "\n".join([f"[{self.servers_key}.{server.name}]", *lines])

    def install(self, server: Server, file: Path, *, force: bool = False) -> Installed:
        """Add the server to a configuration file.

        Args:
            force: replace an entry of the same name.

        Raises:
            ConfigurationError: the host has no file, the file does not parse, or it has another entry of this name.
                The file is then unchanged.
        """
        entry = self._entry(server)
        if self.form is Form.JSON:
            return change_file(file, lambda text: add_to_json(text, self.servers_key, server.name, entry, force))
        if self.form is Form.RECIPE:
            recipe = self.text(server) + "\n"
            return change_file(file, lambda text: _only(recipe, text, force))
        table = self.text(server)
        return change_file(file, lambda text: add_to_toml(text, (self.servers_key, server.name), entry, table, force))

    def _entry(self, server: Server) -> dict[str, Any]:
        if self.entry is None:
            raise ConfigurationError(f"{self.title} has no configuration file; run: {self.snippet(server)}")
        return self.entry(server)


def _only(recipe: str, text: str, force: bool) -> str:
    """Return the recipe in place of a file's text.

    Raises:
        ValueError: the file has another text, and ``force`` is False.
    """
    if text.strip() and text != recipe and not force:
        raise ValueError("it has another recipe; choose another --config, or replace it with --force")
    return recipe


def _recipe(server: Server, extension: dict[str, Any]) -> str:
    """Return a recipe of Goose as YAML with values in JSON."""
    described = {"version": "1.0.0", "title": server.name, "description": f"Use the tools of {server.name}."}
    parameter = {"key": "prompt", "input_type": "string", "requirement": "required", "description": "What to do."}
    lines = [f"{key}: {json.dumps(value)}" for key, value in described.items()]
    # A block, because Goose inserts the value as text, with quotes and line breaks.
    lines.append("prompt: |-\n  {{ prompt | indent(2) }}")
    for group, item in (("parameters", parameter), ("extensions", extension)):
        first, *rest = (f"{key}: {json.dumps(value)}" for key, value in item.items())
        lines += [f"{group}:", f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines)


def _goose_extension(server: Server) -> dict[str, Any]:
    """Return an extension of Goose.

    Its name becomes the prefix of tool names, so a name made from a URL would be too long.
    """
    if server.url is not None:
        return {"type": "streamable_http", "name": server.name, "uri": server.url, "timeout": GOOSE_TIMEOUT_S}
    command, *arguments = server.command
    return {"type": "stdio", "name": server.name, "cmd": command, "args": arguments, "timeout": GOOSE_TIMEOUT_S}


def _claude_desktop_file(machine: Machine) -> Path:
    if machine.platform == "darwin":
        folder = machine.home / "Library" / "Application Support"
    elif machine.platform == "win32":
        folder = Path(machine.environ.get("APPDATA") or machine.home / "AppData" / "Roaming")
    else:
        folder = Path(machine.environ.get("XDG_CONFIG_HOME") or machine.home / ".config")
    return folder / "Claude" / "claude_desktop_config.json"


def _codex_file(machine: Machine) -> Path:
    return Path(machine.environ.get("CODEX_HOME") or machine.home / ".codex") / "config.toml"


def _add_to_claude_code(server: Server) -> list[str]:
    if server.url is not None:
        return ["claude", "mcp", "add", "--transport", "http", server.name, server.url]
    return ["claude", "mcp", "add", server.name, "--", *server.command]


def _open_in_inspector(server: Server) -> list[str]:
    npx = ["npx", "-y", "@modelcontextprotocol/inspector"]
    if server.url is not None:
        return [*npx, "--transport", "http", "--server-url", server.url]
    return [*npx, "--", *server.command]


CLAUDE_CODE = Host(
    "claude-code",
    "Claude Code",
    entry=lambda server: server.entry(typed=True),  # of a project's .mcp.json
    command=_add_to_claude_code,
)

HOSTS: dict[str, Host] = {
    host.key: host
    for host in (
        # Only starts commands, and accepts no URLs.
        Host(
            "claude-desktop",
            "Claude Desktop",
            entry=lambda server: server.bridged().entry(),
            locate=_claude_desktop_file,
        ),
        CLAUDE_CODE,
        Host("cursor", "Cursor", entry=Server.entry, locate=lambda machine: machine.home / ".cursor" / "mcp.json"),
        Host(
            "vscode",
            "VS Code",
            servers_key="servers",
            entry=lambda server: server.entry(typed=True),
            locate=lambda machine: machine.folder / ".vscode" / "mcp.json",
        ),
        # Without "required" the host continues without the tools if the server does not answer.
        Host(
            "codex",
            "Codex",
            servers_key="mcp_servers",
            entry=lambda server: {**server.entry(), "required": True},
            locate=_codex_file,
            form=Form.TOML,
        ),
        # Its key "url" stands for the deprecated SSE transport.
        Host(
            "gemini-cli",
            "gemini-cli",
            entry=lambda server: server.entry(url_key="httpUrl"),
            locate=lambda machine: machine.home / ".gemini" / "settings.json",
        ),
        Host(
            "goose",
            "Goose",
            entry=_goose_extension,
            locate=lambda machine: machine.folder / "goose.yaml",
            form=Form.RECIPE,
        ),
        Host("inspector", "Inspector", command=_open_in_inspector),
    )
}
"""The hosts that ``mcpenv connect`` knows."""

PASTED: tuple[Host, ...] = tuple(
    HOSTS[key] for key in ("claude-code", "claude-desktop", "codex", "cursor", "vscode", "inspector")
)
"""The hosts for which ``mcpenv run`` prints lines to paste."""


def command_line(command: Sequence[str]) -> str:
    """Return a command quoted for this machine's shell."""
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def compact_json(value: Any, indent: int = 0, used: int = 0) -> str:
    """Return JSON text with line breaks only in values that do not fit on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + used + len(line) <= _WIDTH or not value or not isinstance(value, dict | list):
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        parts = [key + compact_json(item, inner, len(key)) for key, item in zip(keys, value.values(), strict=True)]
    else:
        parts = []
        for item in value:
            part = compact_json(item, inner)
            if parts and "\n" not in parts[-1] + part and inner + len(f"{parts[-1]}, {part},") <= _WIDTH:
                parts[-1] += f", {part}"
            else:
                parts.append(part)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(" " * inner + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"
