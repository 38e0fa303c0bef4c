"""MCP hosts: where each keeps its configuration, and how a server is added to it without losing anything.

FastMCP's ``update_config_file`` is not used: it reads the other servers into models and writes them back with every
default filled in. Here a file changes by one entry.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import ConfigurationError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every host takes as the name of a server."""

_WIDTH = 76
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Server:
    """An MCP server as a host is told of it: a command that speaks MCP on its standard streams, or a URL.

    Raises:
        ConfigurationError: a name that not every host takes.
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
        """The server that ``mcpenv run SPEC --transport stdio`` is, with this very Python."""
        return cls(name, (sys.executable, "-m", "mcpenv", "run", spec, "--transport", "stdio", *options))

    def bridged(self) -> Server:
        """The same for a host that starts commands only."""
        if self.url is None:
            return self
        address = urlsplit(self.url)
        plain = ["--allow-http"] if address.scheme == "http" and address.hostname not in _LOOPBACK else []
        return Server(self.name, ("npx", "-y", "mcp-remote", self.url, *plain))

    def entry(self, *, url_key: str = "url", typed: bool = False) -> dict[str, Any]:
        """The JSON object (or TOML table) by which most hosts describe it."""
        if self.url is not None:
            return {**({"type": "http"} if typed else {}), url_key: self.url}
        return {**({"type": "stdio"} if typed else {}), "command": self.command[0], "args": list(self.command[1:])}


@dataclass(frozen=True, slots=True)
class Place:
    """The machine on which a host's files are looked for.

    Attributes:
        platform: as `sys.platform`.
        home: the user's folder.
        folder: the working directory.
        environ: environment variables.
    """

    platform: str
    home: Path
    folder: Path
    environ: Mapping[str, str]

    @classmethod
    def here(cls) -> Place:
        """This machine."""
        return cls(sys.platform, Path.home(), Path.cwd(), os.environ)


@dataclass(frozen=True, slots=True)
class Installed:
    """What installing did.

    Attributes:
        file: the configuration, None where a command keeps it.
        changed: False if the entry was there already.
        backup: a copy of the file as it was, if it was changed.
    """

    file: Path | None
    changed: bool
    backup: Path | None = None


class Form(Enum):
    """How a host's file is written."""

    JSON = "json"
    TOML = "toml"


@dataclass(frozen=True, slots=True)
class Host:
    """A program that connects to MCP servers.

    Attributes:
        key: its name on the command line.
        title: its name.
        servers_key: where its file has the servers, by name.
        entry: what its file says of a server; None if it has no file.
        locate: its usual file; None where a command of its own keeps it, or there is none.
        command: the command that adds a server, or that opens one; None if a file is edited instead.
        form: how the file is written.
    """

    key: str
    title: str
    servers_key: str = "mcpServers"
    entry: Callable[[Server], dict[str, Any]] | None = None
    locate: Callable[[Place], Path] | None = None
    command: Callable[[Server], list[str]] | None = None
    form: Form = Form.JSON

    def file(self, place: Place) -> Path | None:
        """Its usual configuration file; None if there is none that one edits."""
        return None if self.locate is None else self.locate(place)

    def snippet(self, server: Server) -> str:
        """What a user pastes: a command, or else the text of the file."""
        return self.text(server) if self.command is None else command_line(self.command(server))

    def text(self, server: Server) -> str:
        """The server in the form of the configuration file.

        Raises:
            ConfigurationError: the host has no file.
        """
        entry = self._entry(server)
        if self.form is Form.JSON:
            return compact_json({self.servers_key: {server.name: entry}})
        # JSON strings and arrays of them are TOML, with \u escapes for whatever is not ASCII.
        lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        return "\n".join([f"[{self.servers_key}.{server.name}]", *lines])

    def install(self, server: Server, file: Path, *, force: bool = False) -> Installed:
        """Add the server to a configuration file.

        Args:
            force: replace an entry of the same name.

        Raises:
            ConfigurationError: the host has no file; the file does not parse, or has another entry of this name: then
                it is left as it was.
        """
        entry = self._entry(server)
        if self.form is Form.JSON:
            return _change(file, lambda text: add_to_json(text, self.servers_key, server.name, entry, force))
        table = self.text(server)
        return _change(file, lambda text: add_to_toml(text, (self.servers_key, server.name), entry, table, force))

    def _entry(self, server: Server) -> dict[str, Any]:
        if self.entry is None:
            raise ConfigurationError(f"{self.title} keeps no configuration; run: {self.snippet(server)}")
        return self.entry(server)


def _claude_desktop_file(place: Place) -> Path:
    if place.platform == "darwin":
        folder = place.home / "Library" / "Application Support"
    elif place.platform == "win32":
        folder = Path(place.environ.get("APPDATA") or place.home / "AppData" / "Roaming")
    else:
        folder = Path(place.environ.get("XDG_CONFIG_HOME") or place.home / ".config")
    return folder / "Claude" / "claude_desktop_config.json"


def _codex_file(place: Place) -> Path:
    return Path(place.environ.get("CODEX_HOME") or place.home / ".codex") / "config.toml"


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
        # It starts commands only.
        Host(
            "claude-desktop",
            "Claude Desktop",
            entry=lambda server: server.bridged().entry(),
            locate=_claude_desktop_file,
        ),
        CLAUDE_CODE,
        Host("cursor", "Cursor", entry=Server.entry, locate=lambda place: place.home / ".cursor" / "mcp.json"),
        Host(
            "vscode",
            "VS Code",
            servers_key="servers",
            entry=lambda server: server.entry(typed=True),
            locate=lambda place: place.folder / ".vscode" / "mcp.json",
        ),
        Host("codex", "Codex", servers_key="mcp_servers", entry=Server.entry, locate=_codex_file, form=Form.TOML),
        # Its "url" means the old SSE transport.
        Host(
            "gemini-cli",
            "gemini-cli",
            entry=lambda server: server.entry(url_key="httpUrl"),
            locate=lambda place: place.home / ".gemini" / "settings.json",
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
    """A command as one types it into this machine's shell."""
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def compact_json(value: Any, indent: int = 0, used: int = 0) -> str:
    """JSON text that breaks lines only where a value does not fit into one."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + used + len(line) <= _WIDTH or not value or not isinstance(value, dict | list):
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        parts = [key + compact_json(item, inner, len(key)) for key, item in zip(keys, value.values(), strict=True)]
    else:
        parts = [compact_json(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(" " * inner + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


# -- files


def add_to_json(text: str, key: str, name: str, entry: dict[str, Any], force: bool) -> str:
    """The text of a JSON configuration with ``entry`` under ``key``; everything else, and the indentation, as it was.

    Raises:
        ValueError: the text is no such configuration, or has another entry of this name and ``force`` is not given.
    """
    config = _load_json(text) if text.strip() else {}
    if not isinstance(config, dict):
        raise ValueError("it is no JSON object")
    servers = config.get(key)
    if servers is None:
        servers = config[key] = {}
    if not isinstance(servers, dict):
        raise ValueError(f"its {key!r} is no JSON object")
    if servers.get(name) == entry:
        return text
    if name in servers and not force:
        raise ValueError(f"it has another server {name!r}; choose another --name, or replace it with --force")
    servers[name] = entry
    found = re.search(r"\n([ \t]+)\S", text)
    indent: str | int | None = found.group(1) if found else 2 if "\n" in text or not text.strip() else None
    written = json.dumps(config, indent=indent, ensure_ascii=text.isascii(), allow_nan=False)
    ending = text[len(text.rstrip()) :] if text.strip() else "\n"
    return written.replace("\n", "\r\n") + ending if "\r\n" in text else written + ending


def add_to_toml(text: str, path: tuple[str, str], entry: dict[str, Any], table: str, force: bool) -> str:
    """The text of a TOML configuration with ``table`` (which says ``entry``) at its end; everything else as it was.

    Raises:
        ValueError: as `add_to_json`, or the text has a form in which the table cannot be added or replaced.
    """
    before = _load_toml(text)
    group, name = path
    servers = before.get(group, {})
    if not isinstance(servers, dict):
        raise ValueError(f"its {group!r} is no table")
    if servers.get(name) == entry:
        return text
    if name in servers:
        if not force:
            raise ValueError(f"it has another server {name!r}; choose another --name, or replace it with --force")
        text = _without_table(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.rstrip()
    written = newline.join([*([lines, ""] if lines else []), *table.split("\n"), ""])
    try:
        after = tomllib.loads(written)
    except tomllib.TOMLDecodeError:
        after = None
    # Text was cut and joined: it must say what it said before, and the new entry, and nothing else.
    if after != {**before, group: {**servers, name: entry}}:
        raise ValueError(f"its table {group!r} is written in a way that cannot be extended; add the server by hand")
    return written


def _without_table(text: str, path: tuple[str, str]) -> str:
    """``text`` without the lines of a table and of the tables inside it."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            inside = header[: len(path)] == path
        if not inside:
            kept.append(line)
    return "".join(kept)


def _header(line: str) -> tuple[str, ...] | None:
    """The path that a ``[table]`` line names; None for other lines."""
    if not line.lstrip().startswith("["):
        return None
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    parts = []
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            value = value[0]
            continue
        key = next(iter(value))
        parts.append(key)
        value = value[key]
    return tuple(parts)


def _load_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        comments = " (comments?)" if text[error.pos : error.pos + 1] == "/" else ""
        raise ValueError(f"it is not JSON: line {error.lineno}, column {error.colno}: {error.msg}{comments}") from error


def _load_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"its key {twice!r} stands there twice, and one of them would be lost")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it is not JSON: {name}")


def _change(file: Path, change: Callable[[str], str]) -> Installed:
    """Change a file as ``change(text)`` says: whole or not at all, with a copy of what was there."""
    file = file.expanduser()
    if file.is_symlink():
        file = file.resolve()  # the link stays a link
    try:
        old = file.read_bytes() if file.exists() else None
        text = "" if old is None else old.decode("utf-8-sig")
        written = change(text)
        if old is not None and written == text:
            return Installed(file, changed=False)
        mark = b"\xef\xbb\xbf" if old is not None and old.startswith(b"\xef\xbb\xbf") else b""
        data = mark + written.encode()
        backup = None if old is None else _back_up(file, old)
        _replace(file, data)
    except UnicodeError as error:
        raise ConfigurationError(f"{file} was left as it is: it is not UTF-8 text") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} was left as it is: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from error
    return Installed(file, changed=True, backup=backup)


def _back_up(file: Path, data: bytes) -> Path:
    """A copy beside the file, under a name that is free."""
    number = 0
    while True:
        backup = file.with_name(f"{file.name}.bak{number or ''}")
        number += 1
        try:
            # Configurations hold secrets: the copy is for no more eyes than the file.
            handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.stat().st_mode & 0o777)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as copy:
            copy.write(data)
        return backup


def _replace(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if file.exists():
            temporary.chmod(file.stat().st_mode & 0o777)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
