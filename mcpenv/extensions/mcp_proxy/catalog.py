"""Merge the tools of several servers into one set, with names, overrides and hashes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool as ListedTool

from mcpenv.errors import ConfigurationError, InvalidTool
from mcpenv.tools.definition import ToolOptions
from mcpenv.tools.names import check_name
from mcpenv.tools.registry import BOTH_MODES
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client.types.tools import Mode, Tool

from .components import warn_of_shared_uris
from .config import ProxiedToolSettings, ProxyConfig, ServerSettings, StateOf
from .delivery import DiscoveryFailed
from .launcher import Launcher
from .upstream import Offered, Upstream
from .workspace import Template, Workspace

logger = logging.getLogger("mcpenv.upstream")

WITHOUT_SESSIONS = "2026-07-28"
"""The first protocol version without sessions."""

REPEATABLE_HINTS = ("readOnlyHint", "idempotentHint")


@dataclass(frozen=True)
class ProxiedTool:
    """One tool of the set.

    Attributes:
        kind: the tool as agents see it.
        server: the name of its server.
        name: its name on that server.
        bound: values of arguments that agents do not see.
        modes: the modes that have it.
        repeatable: True if it may be called again when the outcome of a call is unknown.
        reads: True if it says that it changes nothing.
    """

    kind: SchemaTool
    server: str
    name: str
    bound: Mapping[str, Any]
    modes: tuple[Mode, ...]
    repeatable: bool
    reads: bool


@dataclass(frozen=True)
class Catalog:
    """The tools of all servers of a configuration.

    Attributes:
        tools: the tools in the order of the servers.
        listings: the tools of each server, as it lists them.
        offered: the other components of each server.
        servers: name, version, protocol version and ``tools_hash`` of each server, by its name in the configuration.
        instructions: the servers' instructions for agents, or None.
        launchers: the launchers of the servers that are processes, by server name.
        template: the initial content of every workspace; None if no server uses one.
    """

    tools: Sequence[ProxiedTool]
    listings: Mapping[str, Sequence[ListedTool]]
    offered: Mapping[str, Offered]
    servers: Mapping[str, Mapping[str, Any]]
    instructions: str | None
    launchers: Mapping[str, Launcher]
    template: Template | None

    def workspace(self) -> Workspace | None:
        """Return a new workspace; None if no server uses one. Blocks."""
        return None if self.template is None else Workspace(self.template)


def tools_hash(listed: Sequence[ListedTool]) -> str:
    """Return the SHA-256 of a list of tools, in hexadecimal digits. The order does not matter."""
    plain = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
    plain.sort(key=lambda tool: str(tool["name"]))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


async def discover(config: ProxyConfig) -> Catalog:
    """Start every server once, list its tools, and stop it.

    Raises:
        DiscoveryFailed: a required server does not start.
        ConfigurationError: the settings name a tool that no server has, or give two tools one name.
    """
    launchers = {name: Launcher(name, server) for name, server in config.servers.items() if server.command is not None}
    await asyncio.gather(*(launcher.prepare() for launcher in launchers.values()))
    template = workspace = None
    if any(server.uses_workspace for server in config.servers.values()):
        own = config.environment
        template = await asyncio.to_thread(Template.prepare, own.workspace, own.workspaces)
        workspace = await asyncio.to_thread(Workspace, template)
        await asyncio.to_thread(workspace.restore)
    upstreams = [Upstream(name, settings, launchers.get(name), workspace) for name, settings in config.servers.items()]
    try:
        opened = await asyncio.gather(*map(_open, upstreams), return_exceptions=True)
        found: dict[str, list[ListedTool]] = {}
        offered: dict[str, Offered] = {}
        servers, texts = {}, []
        for upstream, listed in zip(upstreams, opened, strict=True):
            if isinstance(listed, BaseException):
                if upstream.settings.required or not isinstance(listed, DiscoveryFailed):
                    raise listed
                logger.warning("%s; its tools are absent", listed)
                continue
            found[upstream.name] = listed
            offered[upstream.name] = await upstream.offered()
            servers[upstream.name] = {**upstream.identity, "tools_hash": tools_hash(listed)}
            _warn_of_a_shared_world(upstream)
            if upstream.instructions:
                texts.append(upstream.instructions)
    finally:
        await asyncio.gather(*(upstream.close() for upstream in upstreams))
        if workspace is not None:
            await asyncio.to_thread(workspace.remove)
    warn_of_shared_uris(offered)
    return Catalog(
        merged_tools(config, found), found, offered, servers, "\n\n".join(texts) or None, launchers, template
    )


async def _open(upstream: Upstream) -> list[ListedTool]:
    """Start a server as every episode does, and return its tools."""
    listed = await upstream.open_in_turn()
    if upstream.launcher is not None and await upstream.launcher.pin():
        await upstream.close()
        listed = await upstream.open()
    return listed


def _warn_of_a_shared_world(upstream: Upstream) -> None:
    protocol = upstream.identity["protocol"]
    if upstream.settings.where is StateOf.SESSION and protocol is not None and protocol >= WITHOUT_SESSIONS:
        logger.warning(
            'server %r speaks %s, which has no sessions: its world is shared by all episodes. Give it "state": "none" '
            'or "external", which says so',
            upstream.name,
            protocol,
        )


def merged_tools(config: ProxyConfig, found: Mapping[str, Sequence[ListedTool]]) -> list[ProxiedTool]:
    """Return the tools of all servers as one set.

    Args:
        found: the tools of each server, as it lists them.

    Raises:
        ConfigurationError: the settings name a tool that no server has, or give two tools one name.
    """
    names: Counter[str] = Counter()
    for server, listed in found.items():
        settings = config.servers[server]
        names.update(_own_name(settings, tool) for tool in listed if not _settings_of(settings, tool).hidden)
        unknown = settings.tools.keys() - {tool.name for tool in listed}
        if unknown:
            known = ", ".join(tool.name for tool in listed) or "none"
            raise ConfigurationError(f"server {server!r} has no tool {min(unknown)!r}; it has: {known}")
    always = config.environment.namespace == "always"
    tools: dict[str, ProxiedTool] = {}
    for server, listed in found.items():
        for tool in listed:
            if _settings_of(config.servers[server], tool).hidden:
                continue
            name = _own_name(config.servers[server], tool)
            made = _proxied(
                config.servers[server], server, tool, f"{server}_{name}" if always or names[name] > 1 else name
            )
            if made.kind.name in tools:
                other = tools[made.kind.name]
                both = (
                    f"tools {other.name!r} and {tool.name!r} of server {server!r} would both be {made.kind.name!r}"
                    if other.server == server
                    else f"servers {other.server!r} and {server!r} both have a tool {made.kind.name!r}"
                )
                raise ConfigurationError(f'{both}; rename one: "tools": {{"{tool.name}": {{"name": "..."}}}}')
            tools[made.kind.name] = made
    if not tools:
        raise ConfigurationError("the servers have no tools, or all of them are hidden")
    return list(tools.values())


def _settings_of(server: ServerSettings, tool: ListedTool) -> ProxiedToolSettings:
    return server.tools.get(tool.name) or ProxiedToolSettings()


def _own_name(server: ServerSettings, tool: ListedTool) -> str:
    return _settings_of(server, tool).name or tool.name


def _proxied(server: ServerSettings, server_name: str, listed: ListedTool, name: str) -> ProxiedTool:
    settings = _settings_of(server, listed)
    try:
        check_name(name)
    except InvalidTool as error:
        raise ConfigurationError(
            f'server {server_name!r}: {error}, with "tools": {{"{listed.name}": {{"name": "..."}}}}'
        ) from error
    plain = listed.model_dump(mode="json", by_alias=True, exclude_none=True)
    annotations = settings.merged_annotations(plain.get("annotations"))
    try:
        input_schema = settings.schema_for_agents(plain["inputSchema"], listed.name)
    except InvalidTool as error:
        raise ConfigurationError(f"server {server_name!r}: {error}") from error
    spec = Tool(
        name=name,
        title=plain.get("title"),
        description=settings.description or plain.get("description", ""),
        input_schema=input_schema,
        output_schema=plain.get("outputSchema"),
        annotations=annotations,
        meta=plain.get("_meta"),
    )
    options = ToolOptions(timeout_s=settings.timeout_s or server.call_timeout_s, terminal=settings.terminal)
    return ProxiedTool(
        kind=SchemaTool(spec, options, listed.icons, settings.arguments),
        server=server_name,
        name=listed.name,
        bound=settings.arguments,
        modes=BOTH_MODES if settings.mode is None else (settings.mode,),
        repeatable=settings.idempotent or any((annotations or {}).get(hint) is True for hint in REPEATABLE_HINTS),
        reads=(annotations or {}).get("readOnlyHint") is True,
    )
