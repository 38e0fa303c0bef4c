"""Load a target of MCP servers: a configuration file, ``mcp:COMMAND``, ``mcp:URL``, or ``cassette:RECORD``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError, DamagedRecord, TargetError

from .cassette import CassetteEnvironment
from .delivery import DiscoveryFailed
from .environment import ProxyEnvironment
from .target_text import PREFIX, RECORDED, file_of


def load_servers(target: str, settings: Sequence[str] = ()) -> type[ProxyEnvironment] | type[CassetteEnvironment]:
    """Return the class of the environment of a target.

    Args:
        target: as the user wrote it.
        settings: ``name=value`` each, for `ProxySettings` or the cassette.

    Raises:
        TargetError: the configuration or the record cannot be used, or a server does not start.
    """
    try:
        changes, file = dict(map(_setting, settings)), file_of(target)
        if target.startswith(RECORDED):
            assert file is not None
            return CassetteEnvironment.from_record(file, changes)
        return ProxyEnvironment.from_config(_of_one(target.removeprefix(PREFIX)) if file is None else file, changes)
    except (ConfigurationError, DamagedRecord, DiscoveryFailed) as error:
        raise TargetError(target, str(error).removeprefix(f"{target}: ")) from error


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--set {text}: write name=value")
    return name, value


def _of_one(what: str) -> dict[str, Any]:
    what = what.strip()
    if what.startswith(("http://", "https://")):
        return {"mcpServers": {_name_in(what.split("//", 1)[1]): {"url": what}}}
    try:
        command, *arguments = shlex.split(what)
    except ValueError as error:
        raise ConfigurationError(
            f"the command cannot be read: {error}" if what else "the command is missing"
        ) from error
    named_by = next((word for word in arguments if not word.startswith("-")), command) if _runs(command) else command
    return {"mcpServers": {_name_in(named_by): {"command": command, "args": arguments}}}


def _runs(command: str) -> bool:
    """Return True if a program runs the one that its arguments name."""
    return Path(command).name.rstrip("0123456789.") in ("uvx", "npx", "python", "node", "pipx", "bunx", "deno")


def _name_in(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9-]+", "-", Path(text.split("?")[0].removesuffix("/mcp")).name.removesuffix(".py"))
    return name.strip("-") or "server"
