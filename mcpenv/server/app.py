"""The table of contents of a server: every route of the kernel, and where extensions add theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route

from mcpenv.execution.mcp_server import AgentServer
from mcpenv_client.types.tools import Mode

from .config import ConcurrencyConfig, ServerConfig, config_from, mode_from
from .control import descriptions as doc
from .control.http import front_page
from .extension import Access, ServerRoute, extensions_of
from .http.application import add_lifespan, application, around, serving_also
from .mcp.server_card import PATHS as CARD_PATHS
from .parts import AgentAuth, Parts
from .security.access import AccessChecks
from .sessions.factory import EnvFactory
from .sessions.membership import Alone, Membership

CONTROLLED, GUARDED, TRACED = Access.CONTROLLED, Access.GUARDED, Access.TRACED
GET, POST = ("GET",), ("POST",)


def create_app(
    env_factory: EnvFactory,
    *,
    mode: Mode | str | None = None,
    config: ServerConfig | None = None,
    concurrency: ConcurrencyConfig | None = None,
    max_concurrent_envs: int | None = None,
    readme: str | None = None,
    auth: AgentAuth = None,
) -> Starlette:
    """Return a Starlette application that serves an environment.

    Args:
        env_factory: an `MCPEnvironment` class, or a callable that makes instances.
        mode: "simulation" or "production"; default ``MCPENV_MODE``, or simulation.
        config: further settings; ``mode`` wins over its mode.
        concurrency: limits on sessions, instead of those fields of ``config``.
        max_concurrent_envs: maximum sessions at a time, instead of that field of the two.
        readme: text for ``/metadata``.
        auth: who may use the agent plane: any provider of FastMCP's, or `AgentTokens`; None: as the environment's
            FastMCP server says, if it has one; False: everybody, whatever that server says.

    Raises:
        TypeError: an instance was given.
        ConfigurationError: an unknown mode, a limit out of range, or a limit given twice with different values.
    """
    config = config_from(mode, config).with_limits(concurrency, max_concurrent_envs)
    server = EnvServer(env_factory, config=config, readme=readme, auth=auth)
    return application(server.routes(), server.lifespan, server.middleware)


class EnvServer:
    """The server of one environment.

    Args:
        membership: of a server of several workers; None: this is the only one.
            The other arguments are those of `create_app`.

    Attributes:
        config: the settings in force.
        source: makes the instances of the environment.
        pool: the sessions.
        membership: joins this server to the other workers, if there are any.
        description: the descriptions of the environment.
        collection: its metrics.
        control: the handlers of episodes, with helpers for the handlers of extensions.
        tasks: the handlers of tasks.
        access: the checks before handlers.
        middleware: the middleware around every request, the outermost first. A control plane at an address of its own
            is without that of agents.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        *,
        mode: Mode | str | None = None,
        config: ServerConfig | None = None,
        concurrency: ConcurrencyConfig | None = None,
        max_concurrent_envs: int | None = None,
        readme: str | None = None,
        auth: AgentAuth = None,
        membership: Membership | None = None,
    ) -> None:
        self._make_parts = partial(Parts, env_factory, readme, auth)
        self._membership = membership
        self._assemble(config_from(mode, config).with_limits(concurrency, max_concurrent_envs))

    def _assemble(self, config: ServerConfig) -> None:
        self.config = config
        console = bool(config.with_console().console)  # not kept in `config`, of which another mode may be made
        self.membership = self._membership or Alone(config)
        self._parts = parts = self._make_parts(config, self.membership)
        self.source, self.pool, self.description = parts.source, parts.pool, parts.description
        self.collection, self.control, self.tasks = parts.collection, parts.control, parts.tasks
        self._extensions = extensions_of(self, console=console)
        self.access = AccessChecks(config, [extension.admits for extension in self._extensions], parts.static_tokens)
        self._control_middleware = [each for extension in self._extensions for each in extension.middleware]
        of_agents = [each for extension in self._extensions for each in extension.agent_middleware]
        self.middleware = [*self._control_middleware, *of_agents]
        self.control.table = self._control_table([route for each in self._extensions for route in each.routes()])

    @property
    def agent_server(self) -> AgentServer:
        """The FastMCP server at ``/mcp``. It exists once the server runs, as a mounted server configures it."""
        return self._parts.agent_server

    def routes(self) -> list[BaseRoute]:
        """Return every route of this mode for one address, behind the Host and Origin check."""
        shared = self.access.shared_routes(self.control.table, self._parts.mcp)  # before the agents' own of the path
        return [*self.socket_routes(), *shared, *self.agent_routes(), *self.control_routes()]

    def applications(self, *, split: bool) -> list[Starlette]:
        """Return the running server's application at one address, or one for agents and one for the control plane."""
        if not split:
            mounted = self.mounted_routes()
            return [application([*self.routes(), *mounted, *self._root()], None, self.middleware)]
        agents = [*self.probe_routes(), *self.agent_routes(), *self.mounted_routes(), *self._root(control=False)]
        control = [*self.socket_routes(), *self.control_routes(), *self._root(agents=False)]
        return [application(agents, None, self.middleware), application(control, None, self._control_middleware)]

    def socket_routes(self) -> list[BaseRoute]:
        """Return the routes of episodes. They come first, because each episode may be a connection of its own."""
        table = [ServerRoute("/ws", self._parts.socket, Access.TOKEN, websocket=True)]
        return self.access.routes(table if self.config.has_control else ())

    def probe_routes(self) -> list[BaseRoute]:
        """Return the routes that an address of agents alone has too."""
        return self.access.routes(route for route in self.control.table if route.path in ("/health", "/ready"))

    def agent_routes(self) -> list[BaseRoute]:
        """Return the routes of the agent plane: tools and nothing else."""
        paths = ["/mcp", "/mcp/"]  # people write the slash, and clients keep it
        if self.config.mode is Mode.SIMULATION:
            paths += ["/episodes/{handle}/mcp", "/episodes/{handle}/mcp/"]
        cards = () if self.config.require_handle else CARD_PATHS
        return [
            *(Route(path, self.access.guard(self._parts.mcp)) for path in paths),
            *self.access.routes(ServerRoute(path, self._parts.card.answer, Access.PUBLIC) for path in cards),
            *map(self.access.guarded, self._parts.auth_routes()),
        ]

    def _root(self, *, agents: bool = True, control: bool = True) -> list[BaseRoute]:
        """Return the route ``/`` of an address. It comes last, so that a mounted server may have its own."""
        return self.access.routes([ServerRoute("/", front_page(self.config, agents, control), GUARDED)])

    def mounted_routes(self) -> list[BaseRoute]:
        """Return the routes of the mounted server.

        Raises:
            ConfigurationError: one of its own is at the path of another route.
        """
        return [self.access.guarded(route) for route in self._parts.mounted_routes(self.routes())]

    def control_routes(self) -> list[BaseRoute]:
        """Return the routes of probes, of the server's descriptions, of the control plane, and of the extensions."""
        return self.access.routes(self.control.table)

    def _control_table(self, further: Sequence[ServerRoute]) -> list[ServerRoute]:
        control, sessions, tasks = self.control, self._parts.sessions, self.tasks
        simulation = self.config.mode is Mode.SIMULATION
        table = [
            ServerRoute("/health", control.health, GUARDED, GET, doc.HEALTH),
            ServerRoute("/ready", control.ready, GUARDED, GET, doc.READY),
            ServerRoute("/metadata", control.metadata, GUARDED, GET, doc.METADATA),
            ServerRoute("/schema", control.schema, GUARDED, GET, doc.SCHEMA),
        ]
        if self.config.has_control or self.config.metrics_token is not None:
            table.append(ServerRoute("/metrics", control.metrics, Access.SCRAPED, GET, doc.METRICS))
        if self.config.has_control:
            methods, one = ("GET", "POST") if simulation else GET, "/sessions/{session_id:path}"
            table += [
                ServerRoute("/sessions", sessions.sessions, CONTROLLED, methods, doc.SESSIONS),
                ServerRoute(f"{one}/pause", sessions.pause, CONTROLLED, POST, doc.PAUSE),
                ServerRoute(f"{one}/resume", sessions.resume, CONTROLLED, POST, doc.RESUME),
                *(route for route in further if route.path.startswith("/sessions/")),  # the next has any such path
                ServerRoute(one, sessions.session, CONTROLLED, ("GET", "DELETE"), doc.SESSION),
                ServerRoute("/capacity", sessions.capacity, CONTROLLED, GET, doc.CAPACITY),
            ]
        if simulation:
            table += [
                ServerRoute("/reset", control.reset, TRACED, POST, doc.RESET),
                ServerRoute("/step", control.step, TRACED, POST, doc.STEP),
                ServerRoute("/end", control.end, TRACED, POST, doc.END),
                ServerRoute("/state", control.state, TRACED, GET, doc.STATE),
            ]
        table += (route for route in further if route not in table)
        if simulation:
            table += [
                ServerRoute("/list_environments", tasks.environments, CONTROLLED, GET, doc.ENVIRONMENTS),
                ServerRoute("/{name}/splits", tasks.splits, CONTROLLED, GET, doc.SPLITS),
                ServerRoute("/{name}/tasks", tasks.tasks, CONTROLLED, POST, doc.TASKS),
                ServerRoute("/{name}/num_tasks", tasks.num_tasks, CONTROLLED, POST, doc.NUM_TASKS),
                ServerRoute("/{name}/task", tasks.task, CONTROLLED, POST, doc.TASK),
                ServerRoute("/{name}/task_range", tasks.task_range, CONTROLLED, POST, doc.TASK_RANGE),
            ]
        return table

    def register_routes(self, app: Starlette, *, mode: Mode | str | None = None) -> None:
        """Add the routes and the lifespan of this server to another application.

        Args:
            mode: instead of the mode given before.
        """
        if mode is not None:
            self._assemble(replace(self.config, mode=mode_from(mode)))
        add_lifespan(app, self.lifespan)
        # Middleware of extensions is for this server's routes, not for the application's own.
        app.router.routes.extend(around(route, self.middleware) for route in self.routes())

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Run the server while the application that has the routes runs. It gets those of a mounted server, too."""
        async with self.running():
            with serving_also(app, self.mounted_routes()):
                yield

    def running(
        self, *, http: bool = True, check: Callable[[], None] = lambda: None
    ) -> AbstractAsyncContextManager[None]:
        """Run the server while the block runs.

        Args:
            http: False for one client over stdio, which has no episodes to record, and no extensions.
            check: called once the agent server exists; raises if the server must not serve.

        Raises:
            StartupError: the environment, the settings or an extension do not allow it.
        """
        return self._parts.running(self._extensions if http else None, self.mounted_routes, check)

    def stop_streams(self) -> None:
        """End the open streams to MCP clients and of extensions, which shutdown would wait for."""
        self._parts.stop_streams()
        for extension in self._extensions:
            extension.end_streams()


__all__ = ["AgentAuth", "EnvServer", "application", "create_app"]
