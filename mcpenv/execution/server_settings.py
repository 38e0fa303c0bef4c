"""The settings of a mounted FastMCP server that apply to a whole server: its identity, and the form of its answers.

`MountedServer` runs the server's own parts (tools, middleware, transforms, lifespan). The settings here belong to the
server that clients talk to, so `AgentServer` takes them over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import fastmcp
from fastmcp import FastMCP
from fastmcp.apps.config import UI_EXTENSION_ID
from fastmcp.server.auth import AuthProvider
from fastmcp.server.http import create_streamable_http_app
from fastmcp.server.middleware import Middleware
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from mcp.server.request_state import RequestStateBoundary
from mcp_types import Icon
from starlette.routing import BaseRoute, Route

from mcpenv.errors import ConfigurationError

ON_TOOLS = {
    "tools": "called as steps of the environment",
    "providers": "asked by the server's own listing",
    "transforms": "applied by the server's own listing",
    "middleware": "run by the server around every call, and by `AgentServer` around every other message",
    "lifespan": "entered by `MountedServer`",
    "on_duplicate": "applied when a component is registered",
    "mask_error_details": "applied by the server; `MountedServer` shows of an exception what the server shows",
    "strict_input_validation": "applied by the server to its own tools",
    "resource_security": "applied by the server when a resource is read",
    "session_state_store": "used by the server's `Context`",
    "client_log_level": "applied by the server's `Context`, before the record",
}
"""The options of FastMCP's constructor that the server itself applies, and how."""

ON_SERVER = frozenset(
    {
        "name",
        "instructions",
        "version",
        "website_url",
        "icons",
        "auth",
        "list_page_size",
        "request_state_security",
        "cache_ttl",
        "cache_scope",
        "experimental_capabilities",
    }
)
"""The options that `AgentServer` takes over."""

REFUSED = {
    "tasks": "a call that outlives its answer is not one step: it would be neither recorded nor scored, and would run "
    "beside the next call"
}
"""The options with which a server is refused, and why."""

IGNORED = {
    "dereference_schemas": "schemas keep their definitions on every plane, whoever made the tool",
}
"""The options without effect, and why. The default of each is the value that has no effect here."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings that `AgentServer` takes over.

    Attributes:
        name: the server's name; None if FastMCP generated it.
        version: the server's version; None if it is FastMCP's.
        request_states: seals the states that clients return to tools (``request_state_security``); None: the default.
        cache_ttl_s: seconds for which clients may cache results; None: they may not.
        extensions: the settings of each extension that clients see, by its identifier.
        routes: HTTP routes in addition to ``/mcp``.
        middleware: the middleware for messages that do not concern tools, resources or prompts.
    """

    name: str | None = None
    instructions: str | None = None
    version: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] = ()
    auth: AuthProvider | None = None
    list_page_size: int | None = None
    request_states: RequestStateBoundary | None = None
    cache_ttl_s: int | None = None
    cache_scope: Literal["public", "private"] | None = None
    experimental_capabilities: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    extensions: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    routes: Sequence[Route] = ()
    middleware: Sequence[Middleware] = ()

    def given(self) -> list[str]:
        """Return the names of the settings that differ from FastMCP's defaults, if the server shows that.

        The name is left out, as every server has one.
        """
        default = ServerSettings()
        differing = (
            field.name
            for field in dataclasses.fields(self)
            if field.name not in ("name", "request_states")
            and (getattr(self, field.name) or None) != (getattr(default, field.name) or None)
        )
        return sorted(differing)


NO_SETTINGS = ServerSettings()
"""The settings of an environment without a mounted server."""


def settings_of(server: FastMCP) -> ServerSettings:
    """Return the present settings of a server.

    Raises:
        ConfigurationError: as `refuse_unsupported`, or a route of another kind than FastMCP's ``custom_route`` makes.
    """
    refuse_unsupported(server)
    low_level = server._mcp_server
    hint = next(iter(low_level.cache_hints.values()), None)
    generated = server.name.rpartition("-")[0] == type(server).__name__  # FastMCP-3f2a
    return ServerSettings(
        name=None if generated else server.name,
        instructions=server.instructions,
        version=None if server.version == fastmcp.__version__ else server.version,
        website_url=server.website_url,
        icons=server.icons,
        auth=server.auth,
        list_page_size=server._list_page_size,
        request_states=next(each for each in low_level.middleware if isinstance(each, RequestStateBoundary)),
        cache_ttl_s=None if hint is None else hint.ttl_ms // 1000,
        cache_scope=None if hint is None else hint.scope,
        experimental_capabilities=dict(server.experimental_capabilities),
        extensions=_extensions_of(server),
        routes=_custom_routes_of(server),
        middleware=[each for each in server.middleware if _acts_on_other_messages(each)],
    )


def refuse_unsupported(server: FastMCP) -> None:
    """Raise if a server has a setting that an environment cannot apply.

    Raises:
        ConfigurationError: with the setting and the reason.
    """
    if TASKS_EXTENSION_ID in _extensions_of(server):
        raise _unsupported(server, "the tasks extension")


async def refuse_tasks(server: FastMCP) -> None:
    """Raise if a tool of the server, or of one that is mounted on it, may run as a background task.

    Raises:
        ConfigurationError: with the names of such tools.
    """
    names = sorted({each.name for each in await server.get_tasks()})
    if names:
        raise _unsupported(server, f"task= of {', '.join(names)}")


def _extensions_of(server: FastMCP) -> dict[str, dict[str, Any]]:
    declared = server._mcp_server.get_capabilities().extensions or {}
    # Every FastMCP server declares this one, `AgentServer` too.
    return {identifier: settings for identifier, settings in declared.items() if identifier != UI_EXTENSION_ID}


def _custom_routes_of(server: FastMCP) -> list[Route]:
    """Return the server's own HTTP routes, without the routes of MCP and of authentication."""
    app = create_streamable_http_app(server, _NOWHERE, auth=None)
    return [_plain(server, route) for route in app.routes if getattr(route, "path", None) != _NOWHERE]


_NOWHERE = "/not-served"


def _unsupported(server: FastMCP, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"FastMCP server {server.name!r}: {what} cannot be in force: {REFUSED['tasks']}. Leave it out"
    )


def _plain(server: FastMCP, route: BaseRoute) -> Route:
    if not isinstance(route, Route):
        raise ConfigurationError(
            f"FastMCP server {server.name!r}: a {type(route).__name__} among its routes cannot be in force. "
            "Use custom_route"
        )
    return route


def _acts_on_other_messages(middleware: Middleware) -> bool:
    own, base = type(middleware), Middleware
    return (
        own.__call__ is not base.__call__
        or own.on_message is not base.on_message
        or own.on_request is not base.on_request
        or own.on_notification is not base.on_notification
        or own.on_initialize is not base.on_initialize
        or own.on_discover is not base.on_discover
    )
