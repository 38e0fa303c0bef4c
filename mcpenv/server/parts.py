"""The parts of a server, and the order in which they start and end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from fastmcp.server.auth import AuthProvider, MultiAuth
from starlette.routing import BaseRoute, Match, Route

from mcpenv.environment import agent_server
from mcpenv.errors import ConfigurationError
from mcpenv.execution.blocked_loop import BlockedLoop
from mcpenv.execution.mcp_server import AgentServer

from .config import ServerConfig
from .control.http import ControlRoutes
from .control.metadata import Description
from .control.public_url import base_url_of
from .control.session_routes import SessionRoutes
from .control.task_routes import TaskRoutes, task_source_of
from .control.websocket import ControlSocket
from .extension import Extension
from .mcp.connections import RESOURCE
from .mcp.endpoint import MCPEndpoint, lend_stream
from .mcp.server_card import ServerCard
from .metrics.collection import Collection
from .security.control_auth import AgentTokens
from .sessions.factory import EnvFactory, EnvironmentFactory
from .sessions.membership import Membership
from .sessions.pool import SessionPool
from .sessions.resolver import RequestSessions, connection_key, connection_of

logger = logging.getLogger("mcpenv")

AgentAuth = AuthProvider | Literal[False] | None
"""The operator's authentication of agents. None leaves it to the mounted server; False admits everybody."""


class Parts:
    """The parts of one server in one mode.

    Attributes:
        source: makes the instances of the environment.
        pool: the sessions.
        collection: the metrics.
        description: the descriptions of the environment.
        mcp: the endpoint of agents.
        card: the handler of the server card.
        socket: the application at ``/ws``.
        control, sessions, tasks: the handlers of the control plane.
        agent_server: the FastMCP server at ``/mcp``. It exists once `running` is entered.
    """

    agent_server: AgentServer

    def __init__(
        self, env_factory: EnvFactory, readme: str | None, auth: AgentAuth, config: ServerConfig, membership: Membership
    ) -> None:
        self._config = config
        self._auth = auth
        self._membership = membership
        self.source = EnvironmentFactory(env_factory, config)
        self.pool = SessionPool(self.source, config, membership)
        self.collection = Collection(self.pool, self.source, config)
        self.description = Description(self.source, config, readme)
        self.control = ControlRoutes(self.pool, self.source, config, self.description, self.collection, membership)
        self.sessions = SessionRoutes(self.pool, self.control, membership)
        self.tasks = TaskRoutes(task_source_of(self.source), self.control)
        self.socket = ControlSocket(self.pool, config)
        self.mcp = MCPEndpoint(
            handles=self.pool.handles,
            on_session_end=lambda session_id: self.pool.close_soon(connection_key(session_id)),
            session_timeout_s=config.concurrency.session_timeout,
            max_body_bytes=config.max_message_bytes,
        )
        self.pool.on_connection_end = lambda session_id: self.mcp.end_connection(connection_of(session_id))
        self.card = ServerCard(
            lambda: self.agent_server,
            lambda: self.source.description,
            lambda scope: config.public_url or base_url_of(scope, config.trusted_proxies),
        )

    @asynccontextmanager
    async def running(
        self, extensions: Sequence[Extension] | None, *checks: Callable[[], object]
    ) -> AsyncIterator[None]:
        """Run the parts while the server serves requests, and end them in reverse order.

        Args:
            extensions: run too; None for one client over stdio, which has no episodes to record, and no extensions.
            checks: called once the mounted server is known and the agent server exists.

        Raises:
            StartupError: the environment, the settings or an extension do not allow it.
        """
        async with AsyncExitStack() as stack:
            if extensions is not None:
                # It ends last, when every session is closed.
                await stack.enter_async_context(self.source.recording())
            await stack.enter_async_context(self.source.running())
            stack.enter_context(BlockedLoop().watch())
            self._make_agent_server()
            for check in checks:
                check()
            await stack.enter_async_context(self.pool.running())
            if extensions is not None:
                # Before the endpoint, whose task group would wrap an error of theirs in an exception group.
                for extension in extensions:
                    await extension.start()
                    stack.push_async_callback(extension.stop)
                await stack.enter_async_context(self.mcp.running(self.agent_server))
            yield

    def stop_streams(self) -> None:
        """End the open streams to MCP clients, so that shutdown does not wait for them."""
        self.mcp.stop()

    @property
    def static_tokens(self) -> AgentTokens | None:
        """The static tokens of the operator's authentication; None if it has none."""
        verifiers = self._auth.verifiers if isinstance(self._auth, MultiAuth) else [self._auth]
        return next((each for each in verifiers if isinstance(each, AgentTokens)), None)

    def auth_routes(self) -> list[Route]:
        """Return the routes of the operator's authentication, such as those of OAuth."""
        return self._auth.get_routes(mcp_path=RESOURCE) if self._auth else []

    def mounted_routes(self, taken: Sequence[BaseRoute]) -> list[Route]:
        """Return the routes of the mounted server: of its authentication if that is in force, and its own.

        Args:
            taken: the other routes of the server.

        Raises:
            ConfigurationError: one of its own is at the path of another route.
        """
        settings = self.source.settings
        auth = settings.auth if self._auth is None else None
        of_auth = [] if auth is None else auth.get_routes(mcp_path=RESOURCE)
        for route in settings.routes:
            for method in sorted(route.methods or ()):
                scope = {"type": "http", "method": method, "path": route.path, "headers": []}
                if any(each.matches(scope)[0] is Match.FULL for each in (*taken, *of_auth)):
                    raise ConfigurationError(
                        f"custom_route({route.path!r}) of the FastMCP server cannot be in force: {method} of that path "
                        "is a route of mcpenv. Choose another path"
                    )
        return [*of_auth, *settings.routes]

    def _make_agent_server(self) -> None:
        assert self.source.environment_class is not None
        settings = self.source.settings
        if self._auth is not None and settings.auth is not None:
            logger.warning("agents are authenticated as this server's settings say, not by auth= of the FastMCP server")
        self.agent_server = agent_server(
            self.source.environment_class,
            RequestSessions(self.pool, self.source, self._config, self._membership),
            settings,
            auth=settings.auth if self._auth is None else self._auth or None,
            request_middleware=[lend_stream],
        )
        if self.source.prototype is not None:
            self.agent_server.learn(self.source.prototype.listed)
