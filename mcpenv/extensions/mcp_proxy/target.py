"""Load a target of MCP servers: a configuration file, ``mcp:COMMAND``, ``mcp:URL``, or ``cassette:RECORD``."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError, DamagedRecord
from mcpenv.targets.external import TargetKind

from .cassette import CassetteEnvironment
from .delivery import DiscoveryFailed
from .environment import ProxyEnvironment

_RUNNERS = ("uvx", "npx", "python", "node", "pipx", "bunx", "deno")
"""Programs that run another program, which their arguments name."""


def load_file(file: Path, /, **settings: str) -> type[ProxyEnvironment]:
    """Return the class of the environment of a file with ``mcpServers``.

    Args:
        file: the path as the user wrote it.
        settings: for `ProxySettings`.

    Raises:
        ConfigurationError: the configuration cannot be used, or a server does not start.
    """
    return _proxy(file, settings)


def load_record(record: Path, /, **settings: str) -> type[CassetteEnvironment]:
    """Return the class of the environment that plays a record, without its servers.

    Raises:
        ConfigurationError: the record cannot be used.
    """
    try:
        return CassetteEnvironment.from_record(record, settings)
    except DamagedRecord as error:
        raise ConfigurationError(str(error)) from error


def _load_server(server: str, /, **settings: str) -> type[ProxyEnvironment]:
    """Return the class of the environment of one server, named by its command or URL."""
    return _proxy(_of_one(server), settings)


def _proxy(source: Path | dict[str, Any], settings: dict[str, str]) -> type[ProxyEnvironment]:
    try:
        return ProxyEnvironment.from_config(source, settings)
    except DiscoveryFailed as error:
        raise ConfigurationError(str(error)) from error


def _of_one(what: str) -> dict[str, Any]:
    what = what.strip()
    if re.match(r"[\w.-]+:\d+(/|$)", what):
        raise ConfigurationError(f"{what!r} is no address of a server; write http://{what}")
    if what.startswith(("http://", "https://")):
        return {"mcpServers": {_name_in(what.split("//", 1)[1]): {"url": what}}}
    try:
        command, *arguments = shlex.split(what)
    except ValueError as error:
        raise ConfigurationError(
            f"the command cannot be read: {error}" if what else "the command is missing"
        ) from error
    runs = Path(command).name.rstrip("0123456789.") in _RUNNERS
    named_by = next((word for word in arguments if not word.startswith("-")), command) if runs else command
    return {"mcpServers": {_name_in(named_by): {"command": command, "args": arguments}}}


def _name_in(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9-]+", "-", Path(text.split("?")[0].removesuffix("/mcp")).name.removesuffix(".py"))
    return name.strip("-") or "server"


def with_absolute_paths(server: str) -> str:
    """Return a command that starts the same server from any working directory. A URL stays as it is.

    Words of the command that name an existing file, or contain a ``/`` and name a folder, are made absolute.
    """
    if server.strip().startswith(("http://", "https://")):
        return server
    return shlex.join(_absolute(word) for word in shlex.split(server))


def _absolute(word: str) -> str:
    path = os.path.expanduser(word)
    return os.path.abspath(path) if os.path.isfile(path) or ("/" in word and os.path.isdir(path)) else word


SERVER = TargetKind(load=_load_server, absolute=with_absolute_paths)
"""The targets ``mcp:COMMAND`` and ``mcp:URL``."""
