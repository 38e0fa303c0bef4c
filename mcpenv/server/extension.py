"""The extensions of a server: routes, credentials and middleware that other packages add to it.

An extension is an entry point of the group ``mcpenv.server``: a class, or a function, that is called with the
`EnvServer` and returns an `Extension`. Settings choose the extensions by name; no other one is imported. The entries
``workers`` (a class of `Workers`), ``reload`` and ``stdio`` (run a command's request), ``hosts`` (prints lines for MCP
hosts) and ``traces`` (exports spans) are no extensions in this sense.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope

    from .app import EnvServer
    from .config import ServerConfig
    from .serve import Served

    Handler = Callable[[Request], Awaitable[Response]]
    Middleware = Callable[[ASGIApp], ASGIApp]
    MakeExtension = Callable[[EnvServer], "Extension"]

Schema = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A JSON Schema, or a function that makes it of the environment's own: "action", "state" and "reset"."""

GROUP = "mcpenv.server"
"""The group of entry points."""

SESSION_ID = {"type": "string", "minLength": 1, "maxLength": 255, "description": "From POST /reset"}
"""The schema of a session's id, for a `Doc`."""


class Access(Enum):
    """The callers that a route admits. Host and Origin of the request are checked first, also of sockets."""

    GUARDED = auto()
    """Every caller."""
    PUBLIC = auto()
    """Every caller, and web pages of every origin if the server has a public URL."""
    TOKEN = auto()
    """Callers with the control token, or with a credential that an extension accepts; without a control token, all."""
    CONTROLLED = auto()
    """As TOKEN. Clients of mcpenv of another major version are refused."""
    TRACED = auto()
    """As CONTROLLED. Each request is a span, named after the path."""
    KEYED = auto()
    """As TOKEN. The control token may also be in the header ``X-API-Key``."""
    SCRAPED = auto()
    """As TOKEN, or with the metrics token. If there is one of the two tokens, Host and Origin are not checked."""


def component(name: str) -> dict[str, Any]:
    """Return a reference to a schema in the components of ``/openapi.json``: "Error", "Observation", "SessionInfo"."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True, slots=True)
class Doc:
    """The description of one method of a route, for ``/openapi.json``.

    Attributes:
        answer: the schema of an answer with status 200, or the media type of one that is not JSON.
        body: the schema of the request's body, which may be left out unless the schema requires a property.
        query: the parameters of the query, each with its schema.
        errors: why requests are refused, by status.
        error: the schema of a refusal; None if it is not described.
        gives: a name for the answer; default the summary.
        text: a longer description.
        of_tasks: True if the route is described only where the environment has tasks, under the environment's name.
    """

    summary: str
    answer: Schema | str = field(default_factory=lambda: {"type": "object"})
    body: Schema | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    error: Schema | None = field(default_factory=lambda: component("Error"))
    gives: str | None = None
    text: str | None = None
    of_tasks: bool = False


@dataclass(frozen=True, slots=True)
class ServerRoute:
    """A route, before its checks are built around it.

    Attributes:
        path: the path in Starlette's notation. Paths that begin with a parameter are matched after the others.
        endpoint: a function or method from a request to a response, or an ASGI application.
        methods: the HTTP methods.
        docs: the description of the first method, or of several by their names; None leaves the route out of
            ``/openapi.json``.
        websocket: True for the ASGI application of a WebSocket, which has no methods.
        shares_mcp: True if the path is ``/mcp``. At an address that serves agents, the route then takes only requests
            that no MCP client sends: without MCP's headers, and not ``initialize``.
    """

    path: str
    endpoint: Handler | ASGIApp
    access: Access
    methods: tuple[str, ...] = ("GET",)
    docs: Doc | Mapping[str, Doc] | None = None
    websocket: bool = False
    shares_mcp: bool = False


class Extension:
    """An addition to one server. A subclass overrides the methods that it needs; here they do nothing.

    It is made while the server is assembled, which may happen outside of the event loop. All attributes of the server
    exist then, except ``access`` and ``agent_server``. The methods from `admits` on are called on the event loop.

    Attributes:
        middleware: ASGI middleware around every request of the server, the outermost first. The answer 500 to an
            exception that nothing handled is sent from outside of it, as by Starlette.
        agent_middleware: the same around every request at the address of agents, inside of all others.
    """

    middleware: Sequence[Middleware] = ()
    agent_middleware: Sequence[Middleware] = ()

    def routes(self) -> Sequence[ServerRoute]:
        """Return the routes, which are at the address of the control plane.

        Called once, when the server is assembled. A route of the kernel with the same path wins, except one of tasks.
        """
        return ()

    def admits(self, scope: Scope) -> bool:
        """Return True if a request has a credential that is as good as the control token.

        Called for each request without a token that is right. An exception becomes status 500.
        """
        return False

    async def start(self) -> None:
        """Prepare to serve. Called once, when sessions can be opened and before requests are accepted.

        Raises:
            StartupError: the server must not start.
        """

    def end_streams(self) -> None:
        """End the responses that would last, so that shutdown does not wait for them. May be called again."""

    async def stop(self) -> None:
        """Release everything. Called once after a `start` that returned, before the sessions are closed."""


@dataclass(frozen=True)
class Workers:
    """A server of several workers. The entry ``workers`` is a subclass, and no `Extension`.

    Attributes:
        load: returns what each worker serves. It is pickled, and called in each process.
        count: number of workers.
        doors: the listening sockets of agents and, if it is separate, of the control plane.
        anonymous: True if agents need no token.
    """

    load: Callable[[], Served]
    config: ServerConfig
    count: int
    doors: Sequence[socket.socket]
    anonymous: bool

    def serve(self, on_started: Callable[[], None]) -> None:
        """Serve with processes until a signal comes; call ``on_started`` once, when all of them serve.

        Raises:
            StartupError: a process did not start.
        """
        raise NotImplementedError

    def in_thread(self) -> AbstractContextManager[None]:
        """Serve in a thread of this process while the block runs. For tests.

        Raises:
            StartupError: a worker did not start.
        """
        raise NotImplementedError


@functools.cache
def installed() -> Mapping[str, EntryPoint]:
    """Return the entries of all installed distributions by name, which are read once."""
    return entries_of(GROUP)


def load(name: str) -> Any:
    """Import an entry.

    Raises:
        ConfigurationError: there is no such entry, or it cannot be loaded.
    """
    entry = installed().get(name)
    if entry is None:
        raise ConfigurationError(
            f"the server extension {name!r} is not installed; installed: {', '.join(sorted(installed())) or 'none'}"
        )
    return load_entry(entry, "the server extension")


def extensions_of(server: EnvServer, *, console: bool) -> list[Extension]:
    """Make the extensions that the settings of a server choose, ``config.extensions`` first.

    ``openenv`` and ``api-docs``, with a control plane ``live`` and ``branching``, and if episodes are recorded
    ``records`` are served where they are installed.

    Args:
        console: True if the console is served, which settings and the mode decide.

    Raises:
        ConfigurationError: one of them is not installed, cannot be loaded, or is no class of extensions.
    """
    config = server.config
    optional = ["openenv", "api-docs"]
    if config.has_control:
        optional += ["live", "branching"]
    if config.record is not None:
        optional.append("records")
    chosen = (*(["console"] if console else ()), *(["durable"] if config.durable is not None else ()))
    names = [*chosen, *(name for name in optional if name in installed()), *config.wires]
    return [_maker_of(each)(server) for each in dict.fromkeys([*config.extensions, *names])]


def _maker_of(chosen: str | MakeExtension) -> MakeExtension:
    if not isinstance(chosen, str):
        return chosen
    cls = load(chosen)
    if not (isinstance(cls, type) and issubclass(cls, Extension)):
        raise ConfigurationError(
            f"the server extension {chosen!r}: {installed()[chosen].value} is no subclass of "
            "mcpenv.server.extension.Extension, and so it cannot be chosen by name"
        )
    made: MakeExtension = cls
    return made
