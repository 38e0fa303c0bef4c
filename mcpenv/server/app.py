"""The table of contents of a server: every route, on one screen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from fastmcp.server.auth import AuthProvider
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute, request_response
from starlette.types import ASGIApp, Lifespan

from mcpenv.environment import agent_server
from mcpenv.errors import ConfigurationError
from mcpenv.execution.mcp_server import AgentServer
from mcpenv.extensions.console.console_cookie import ConsoleCookie
from mcpenv.extensions.console.files import ConsoleFiles
from mcpenv.extensions.console.record_routes import RecordRoutes
from mcpenv.extensions.console.sign_in import SignIn
from mcpenv.extensions.reload.dev_events import DevEvents
from mcpenv.extensions.wires.nemo_gym import NemoGymRoutes
from mcpenv.extensions.wires.openenv import OpenEnvOrMCP, OpenEnvRoute, SocketRequest
from mcpenv.extensions.wires.ors import OrsRoutes
from mcpenv.tasks.source import TaskSource
from mcpenv.trajectories import Recorder
from mcpenv_client.types.tools import Mode

from .config import ConcurrencyConfig, ServerConfig, mode_from
from .control.http import ControlRoutes, Handler
from .control.live_routes import LiveRoutes
from .control.metadata import Description
from .control.metrics_route import MetricsRoute
from .control.public_url import base_url_of
from .control.session_feed import SessionFeed
from .control.session_routes import SessionRoutes
from .control.task_routes import ServedTasks, TaskRoutes
from .control.traced import Traced
from .control.version_check import VersionCheck
from .control.websocket import ControlSocket
from .mcp.connections import RESOURCE
from .mcp.endpoint import MCPEndpoint
from .mcp.event_stream import lend_stream
from .mcp.server_card import PATHS as CARD_PATHS
from .mcp.server_card import ServerCard
from .metrics.collection import Collection
from .security.control_auth import ControlGate
from .security.host_check import Guard
from .sessions.factory import EnvFactory, EnvironmentFactory
from .sessions.membership import Alone, Membership
from .sessions.pool import SessionPool
from .sessions.resolver import RequestSessions, connection_key, connection_of

logger = logging.getLogger("mcpenv")

AgentAuth = AuthProvider | Literal[False] | None
"""The operator's authentication of agents. None leaves it to the mounted server; False admits everybody."""


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
    server = EnvServer(
        env_factory,
        mode=mode,
        config=config,
        concurrency=concurrency,
        max_concurrent_envs=max_concurrent_envs,
        readme=readme,
        auth=auth,
    )
    return application(server.routes(), server.lifespan)


def application(routes: list[BaseRoute], lifespan: Lifespan[Any] | None = None) -> Starlette:
    """Return an application of these routes, without redirects, which would repeat a request's Host."""
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


class EnvServer:
    """The server of one environment: it assembles the parts.

    Args:
        membership: of a server of several workers; None: this is the only one.
        dev_events: what a server that reloads tells its pages; None: it does not reload. The others are those of
            `create_app`.

    Attributes:
        config: the settings in force.
        pool: the sessions.
        description: what it says of its environment.
        collection: its metrics.
        agent_server: the FastMCP server at ``/mcp``. It exists once the server runs, as a mounted server configures it.
    """

    agent_server: AgentServer

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
        dev_events: DevEvents | None = None,
    ) -> None:
        self._env_factory = env_factory
        self._auth = auth or None
        self._decides = auth is not None
        self._given_membership = membership
        self._dev_events = dev_events
        self._readme = readme
        if config is None:
            config = ServerConfig(mode=mode_from(mode))
        elif mode is not None:
            config = replace(config, mode=mode_from(mode))
        self._assemble(config.with_limits(concurrency, max_concurrent_envs))

    def routes(self) -> list[BaseRoute]:
        """Return every route of this mode, behind the Host and Origin check."""
        shared: list[BaseRoute] = []
        if self.config.mode is Mode.SIMULATION:
            at_mcp = OpenEnvOrMCP(self._gate(self._openenv), self._mcp, self.config.max_message_bytes)
            shared = [Route("/mcp", self._guard(at_mcp))]  # before the two planes' own of that path
        return [*self.socket_routes(), *self.probe_routes(), *shared, *self.agent_routes(), *self.control_routes()]

    def doors(self, *, split: bool) -> list[list[BaseRoute]]:
        """Return the routes of one address, or those of the agents' and of the control plane's address.

        Called while the server runs.
        """
        if not split:
            return [[*self.routes(), *self.mounted_routes()]]
        return [
            [*self.probe_routes(), *self.agent_routes(), *self.mounted_routes()],
            [*self.socket_routes(), *self.probe_routes(), *self.control_routes()],
        ]

    def socket_routes(self) -> list[BaseRoute]:
        """Return the routes of episodes. They come first, because each episode may be a connection of its own."""
        if self.config.mode is Mode.SIMULATION or self.config.control_token is not None:
            return [WebSocketRoute("/ws", self._guard(self._gate(self._socket)))]
        return []

    def probe_routes(self) -> list[BaseRoute]:
        """Return the routes of every address."""
        return [
            self._route("/health", self._control.health),
            self._route("/ready", self._control.ready),
        ]

    def agent_routes(self) -> list[BaseRoute]:
        """Return the routes of the agent plane: tools and nothing else."""
        paths = ["/mcp", "/mcp/"]  # people write the slash, and clients keep it
        if self.config.mode is Mode.SIMULATION:
            paths += ["/episodes/{handle}/mcp", "/episodes/{handle}/mcp/"]
        routes: list[BaseRoute] = [Route(path, self._guard(self._mcp)) for path in paths]
        if not self.config.require_handle:
            routes += [Route(path, self._public(request_response(self._card)), methods=["GET"]) for path in CARD_PATHS]
        if self._auth is not None:
            routes += self._routes_of(self._auth)
        return routes

    def mounted_routes(self) -> list[BaseRoute]:
        """Return the routes of the mounted server: those of its authentication if that is in force, and its own.

        Raises:
            ConfigurationError: one of its own is at the path of another route.
        """
        settings = self.source.settings
        of_auth = [] if self._decides or settings.auth is None else self._routes_of(settings.auth)
        taken = [*self.routes(), *of_auth]
        for route in settings.routes:
            for method in sorted(route.methods or ()):
                scope = {"type": "http", "method": method, "path": route.path, "headers": []}
                if any(each.matches(scope)[0] is Match.FULL for each in taken):
                    raise ConfigurationError(
                        f"custom_route({route.path!r}) of the FastMCP server cannot be in force: {method} of that path "
                        "is a route of mcpenv. Choose another path"
                    )
        return [*of_auth, *(self._guarded(route) for route in settings.routes)]

    def _guarded(self, route: Route) -> Route:
        return Route(route.path, self._guard(route.app), methods=list(route.methods or ()))

    def _routes_of(self, auth: AuthProvider) -> list[BaseRoute]:
        return [self._guarded(route) for route in auth.get_routes(mcp_path=RESOURCE)]

    def control_routes(self) -> list[BaseRoute]:
        """Return the routes of the control plane, and of the server's descriptions."""
        simulation = self.config.mode is Mode.SIMULATION
        control, sessions = self._control, SessionRoutes(self.pool, self._control, self._membership)
        tasks = TaskRoutes(self._tasks(), control)
        metrics = MetricsRoute(self.collection, self._membership)
        routes: list[BaseRoute] = [
            self._route("/metadata", control.metadata),
            self._route("/schema", control.schema),
            self._route("/openapi.json", control.openapi),
            self._route("/docs", control.docs),
        ]
        if simulation or self.config.control_token is not None or self.config.metrics_token is not None:
            routes.append(self._scraped("/metrics", metrics.metrics))
        if simulation or self.config.control_token is not None:
            opens = ("POST",) if simulation else ()
            live = LiveRoutes(self.pool, self._feed)
            routes += [
                self._controlled("/sessions", sessions.sessions, "GET", *opens),
                self._controlled("/sessions/events", live.changes),
                self._controlled("/sessions/{session_id:path}/trajectory", live.trajectory),
                self._controlled("/sessions/{session_id:path}/events", live.events),
                self._controlled("/sessions/{session_id:path}/pause", sessions.pause, "POST"),
                self._controlled("/sessions/{session_id:path}/resume", sessions.resume, "POST"),
                self._controlled("/sessions/{session_id:path}/steps/{step:int}/content/{block:int}", live.content),
                self._controlled("/sessions/{session_id:path}", sessions.session, "GET", "DELETE"),
                self._controlled("/capacity", sessions.capacity),
            ]
        if self._dev_events is not None and (simulation or self.config.control_token is not None):
            routes.append(self._controlled("/console/dev/events", self._dev_events.events))
        routes += self._console_routes()
        if self.config.record is not None:
            records = RecordRoutes(self.config.record)
            routes += [
                self._controlled("/records", records.rows),
                self._controlled("/records/{episode_id:path}/blobs/{name}", records.blob),
                self._controlled("/records/{episode_id:path}/page.html", records.page),
                self._controlled("/records/{episode_id:path}", records.episode),
            ]
        if simulation:
            routes += [
                *self._ors_routes(),  # before tasks, which it has too
                self._traced("/reset", control.reset, "POST"),
                self._traced("/step", control.step, "POST"),
                self._traced("/end", control.end, "POST"),
                self._traced("/state", control.state, "GET"),
                self._controlled("/list_environments", tasks.environments),
                self._controlled("/{name}/splits", tasks.splits),
                self._controlled("/{name}/tasks", tasks.tasks, "POST"),
                self._controlled("/{name}/num_tasks", tasks.num_tasks, "POST"),
                self._controlled("/{name}/task", tasks.task, "POST"),
                self._controlled("/{name}/task_range", tasks.task_range, "POST"),
                Route("/mcp", self._guard(self._gate(self._openenv)), methods=["POST"]),
                *self._nemo_gym_routes(),  # last, because /{tool} takes every name
            ]
        return routes

    def _ors_routes(self) -> list[BaseRoute]:
        if "ors" not in self.config.wires:
            return []
        ors, tasks = OrsRoutes(self.pool, self.source, self._control), TaskRoutes(self._tasks(), self._control)
        routes: list[BaseRoute] = [
            self._keyed("/create_session", ors.create_session, "POST"),
            self._keyed("/create", ors.create, "POST"),
            self._keyed("/ping", ors.ping, "POST"),
            self._keyed("/delete", ors.delete, "POST"),
            self._keyed("/delete_session", ors.delete, "POST"),
            self._keyed("/version", ors.version, "GET"),
            self._keyed("/list_environments", tasks.environments, "GET"),
        ]
        for prefix in ("", "/{name}"):
            routes += [
                self._keyed(f"{prefix}/tools", ors.tools, "GET"),
                self._keyed(f"{prefix}/task_tools", ors.task_tools, "GET"),
                self._keyed(f"{prefix}/prompt", ors.prompt, "GET"),
                self._keyed(f"{prefix}/call", ors.call, "POST"),
                self._keyed(f"{prefix}/splits", tasks.splits, "GET"),
                self._keyed(f"{prefix}/tasks", tasks.tasks, "POST"),
                self._keyed(f"{prefix}/num_tasks", tasks.num_tasks, "POST"),
                self._keyed(f"{prefix}/task", tasks.task, "POST"),
                self._keyed(f"{prefix}/task_range", tasks.task_range, "POST"),
            ]
        return routes

    def _nemo_gym_routes(self) -> list[BaseRoute]:
        if "nemo-gym" not in self.config.wires:
            return []
        nemo_gym = self._nemo_gym
        return [
            self._controlled("/seed_session", nemo_gym.seed, "POST"),
            self._controlled("/verify", nemo_gym.verify, "POST"),
            self._controlled("/close_session", nemo_gym.close, "POST"),
            self._controlled("/aggregate_metrics", nemo_gym.aggregate_metrics, "POST"),
            self._controlled("/reverify_mode", nemo_gym.reverify_mode),
            self._controlled("/{tool}", nemo_gym.tool, "POST"),
        ]

    def _console_routes(self) -> list[BaseRoute]:
        if not self._console:
            return []
        files = ConsoleFiles(self.config.frame_ancestors)
        gate = self._gate(self._socket)
        sign_in = SignIn(self.config, self.source, self._control, gate, self._cookie)
        return [
            self._route("/console", files.folder),
            self._route("/console/frame.html", files.frame),
            self._route("/console/api/session", sign_in.session),
            self._route("/console/api/sign-in", sign_in.sign_in, "POST"),
            self._route("/console/api/sign-out", sign_in.sign_out, "POST"),
            self._route("/console/{path:path}", files.file),
        ]

    def register_routes(self, app: Starlette, *, mode: Mode | str | None = None) -> None:
        """Add the routes and the lifespan of this server to another application.

        Args:
            mode: instead of the mode given before.
        """
        if mode is not None:
            self._assemble(replace(self.config, mode=mode_from(mode)))
        theirs = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncIterator[Any]:
            async with self.lifespan(app), theirs(app) as state:
                yield state

        app.router.lifespan_context = lifespan
        app.router.routes.extend(self.routes())

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Run the server while the application that has the routes runs. It gets those of a mounted server, too."""
        async with self.running():
            mounted = self.mounted_routes()
            app.router.routes.extend(mounted)
            try:
                yield
            finally:
                for route in mounted:
                    app.router.routes.remove(route)

    @asynccontextmanager
    async def running(self, *, http: bool = True, check: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Run the parts of the server while it serves requests, and end them in reverse order.

        Args:
            http: False for one client over stdio, which has no episodes to record.
            check: called once the agent server exists; raises if the server must not serve.

        Raises:
            StartupError: the environment or the settings do not allow it.
        """
        async with AsyncExitStack() as stack:
            if http:
                # It ends last, when every session is closed.
                await stack.enter_async_context(self._recording())
            await stack.enter_async_context(self.source.running())
            self._make_agent_server()
            check()
            await stack.enter_async_context(self.pool.running())
            if http:
                await stack.enter_async_context(self._mcp.running(self.agent_server))
            yield

    def _make_agent_server(self) -> None:
        assert self.source.environment_class is not None
        settings = self.source.settings
        self.mounted_routes()  # raises if one of them cannot be served
        if self._decides and settings.auth is not None:
            logger.warning("agents are authenticated as this server's settings say, not by auth= of the FastMCP server")
        self.agent_server = agent_server(
            self.source.environment_class,
            RequestSessions(self.pool, self.source, self.config, self._membership),
            settings,
            auth=self._auth if self._decides else settings.auth,
            request_middleware=[lend_stream],
        )
        if self.source.prototype is not None:
            self.agent_server.learn(self.source.prototype.listed)

    @asynccontextmanager
    async def _recording(self) -> AsyncIterator[None]:
        if self.config.record is None:
            yield
            return
        if self.config.mode is not Mode.SIMULATION:
            raise ConfigurationError(
                f"there are no episodes in {self.config.mode.value} mode, and so nothing to record"
            )
        self.source.recorder = recorder = await asyncio.to_thread(Recorder, self.config.record)
        try:
            yield
        finally:
            await asyncio.to_thread(recorder.close)

    def stop_streams(self) -> None:
        """End the open streams to MCP clients and to the console, so that shutdown does not wait for them."""
        self._mcp.stop()
        self.pool.stop_watching()
        self._feed.close()
        if self._dev_events is not None:
            self._dev_events.stop()

    def _assemble(self, config: ServerConfig) -> None:
        self.config = config
        self._console = bool(config.with_console().console)  # not kept in `config`, of which another mode may be made
        self.source = EnvironmentFactory(self._env_factory, config)
        self._membership = self._given_membership or Alone(config)
        self.pool = SessionPool(self.source, config, self._membership)
        self.pool.operations[SocketRequest.frame] = SocketRequest
        self._feed = SessionFeed(self.pool, self._membership)
        self.collection = Collection(self.pool, self.source, config)
        self.description = Description(self.source, config, self._readme)
        self._openenv = Traced(OpenEnvRoute(self.pool, self.source, config), "mcp")
        self._control = ControlRoutes(self.pool, self.source, config, self.description, self._membership)
        self._nemo_gym = NemoGymRoutes(self.pool, self.source, self._control)
        self._mcp = MCPEndpoint(
            handles=self.pool.handles,
            on_session_end=lambda session_id: self.pool.close_soon(connection_key(session_id)),
            session_timeout_s=config.concurrency.session_timeout,
            max_body_bytes=config.max_message_bytes,
        )
        self.pool.on_connection_end = lambda session_id: self._mcp.end_connection(connection_of(session_id))

    def _tasks(self) -> TaskSource:
        cls = self.source.environment_class
        own = None if cls is None or cls.tasks is not None else cls.task_source()
        return ServedTasks(self.source) if own is None else own

    @property
    def _socket(self) -> ControlSocket:
        return ControlSocket(
            self.pool,
            max_message_bytes=self.config.max_message_bytes,
            public_url=self.config.public_url,
            trusted_proxies=self.config.trusted_proxies,
        )

    def _gate(self, app: ASGIApp) -> ControlGate:
        return ControlGate(app, self.config.control_token, cookie=self._cookie)

    @property
    def _cookie(self) -> ConsoleCookie | None:
        config = self.config
        if not self._console or config.control_token is None:
            return None
        return ConsoleCookie(config.control_token, config.public_url)

    def _controlled(self, path: str, handler: Handler, *methods: str) -> Route:
        app = VersionCheck(request_response(handler))
        return Route(path, self._guard(self._gate(app)), methods=list(methods or ("GET",)))

    def _keyed(self, path: str, handler: Handler, method: str) -> Route:
        """Return a route of ORS, whose clients send the control token as an API key."""
        gate = ControlGate(
            request_response(handler), self.config.control_token, cookie=self._cookie, header=b"x-api-key"
        )
        return Route(path, self._guard(gate), methods=[method])

    def _traced(self, path: str, handler: Handler, method: str) -> Route:
        app = VersionCheck(Traced(request_response(handler), path.removeprefix("/")))
        return Route(path, self._guard(self._gate(app)), methods=[method])

    def _scraped(self, path: str, handler: Handler) -> Route:
        tokens = self.config.control_token, self.config.metrics_token
        gate = ControlGate(request_response(handler), *tokens, cookie=self._cookie)
        # A scraper finds a server by its address, which is a Host that no setting can name beforehand.
        return Route(path, self._guard(gate) if tokens == (None, None) else gate, methods=["GET"])

    def _route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, self._guard(request_response(handler)), methods=[method])

    @property
    def _card(self) -> ServerCard:
        return ServerCard(
            lambda: self.agent_server,
            lambda: self.source.description,
            lambda scope: self.config.public_url or base_url_of(scope, self.config.trusted_proxies),
        )

    def _public(self, app: ASGIApp) -> Guard:
        """Guard what web pages may read, once the server is meant for others."""
        return self._guard(app, any_origin=self.config.public_url is not None)

    def _guard(self, app: ASGIApp, *, any_origin: bool = False) -> Guard:
        hosts, origins = self.config.allowed_hosts, self.config.allowed_origins
        public = urlsplit(self.config.public_url or "")
        if public.hostname:
            # A proxy may send another Host than the one of the console's page.
            hosts, origins = (*hosts, public.hostname), (*origins, f"{public.scheme}://{public.netloc}")
        return Guard(app, allowed_hosts=hosts, allowed_origins=origins, any_origin=any_origin)
