"""The state of one environment instance, `Instance`: its environment, tools, episode and lock."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fastmcp import FastMCP

from mcpenv import tracing
from mcpenv.tasks import TaskSet
from mcpenv.tools.registry import ToolRegistry
from mcpenv_client.errors import SessionLost
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.protocol import EpisodeState

from .concurrency.event_loop import BlockingRunner
from .concurrency.lock import Lock
from .episode import Episode
from .hooks import AuthorHooks
from .lifespan import being_made
from .mounted.mounted_server import MountedServer
from .notifications import Subscribers
from .scoring import Scoring
from .sink import EpisodeSink, Observer, StepJournal
from .user_code import UserCode

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Instance:
    """One environment instance. `Execution` is the instance together with its operations.

    Attributes:
        env: the environment.
        arguments: the positional and keyword arguments of its constructor.
        shared: the value that the class's ``lifespan`` yielded; `UNSET` before its first use in process.
        environment_type: the name of its class.
        hooks: the methods that its author wrote.
        user_code: runs the environment's code.
        mode: the mode that decides which tools are visible.
        tools: the environment's own tools.
        mounted: the mounted FastMCP server, if any.
        episode: the running or last episode.
        scoring: its scoring; None before the first reset, and without an orchestrator.
        session_id: names this instance for tools that keep state.
        blocking: runs the coroutines of blocking calls.
        subscribers: the subscribers to changes of tools, prompts and resources.
        lock: the lock of operations.
        sink: receives episodes that are over; None: no recording.
        observer: observes steps, episodes and resets; None: no observer.
        journal: the journal of the steps; None: no journal.
        traces: True if steps and resets make spans. Set at each reset.
        max_calls: maximum number of calls that run or wait; None: no limit.
        last_active: the time at which an operation last ended (``time.monotonic``, seconds).
        closing: True once its session ends: a step that is cancelled then does not end the episode.
        played_by_agents: False in the checks of the contract kit, where no failure is an agent's and no seed a user's.
        logs: the `LogEntry`s of the step that began last, which grow while it runs.
        told_version: the version of the tools at the last notification of subscribers.
    """

    env: MCPEnvironment
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    shared: Any = field(default_factory=being_made.get)
    environment_type: str = field(init=False)
    hooks: AuthorHooks = field(init=False)
    user_code: UserCode = field(init=False)
    mode: Mode = Mode.SIMULATION
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    mounted: MountedServer | None = None
    episode: Episode = field(default_factory=Episode)
    scoring: Scoring | None = None
    session_id: str = field(default_factory=partial(secrets.token_hex, 8))
    blocking: BlockingRunner = field(default_factory=BlockingRunner)
    subscribers: Subscribers = field(default_factory=Subscribers)
    lock: Lock = field(default_factory=Lock)
    sink: EpisodeSink | None = None
    observer: Observer | None = None
    journal: StepJournal | None = None
    traces: bool = field(default_factory=tracing.enabled)
    max_calls: int | None = None
    last_active: float = field(default_factory=time.monotonic)
    closing: bool = False
    played_by_agents: bool = True
    logs: list[Any] = field(default_factory=list)
    told_version: int = 0

    def __post_init__(self) -> None:
        """Set the attributes that depend on the class of the environment."""
        self.environment_type = type(self.env).__name__
        self.hooks = type(self.env).author_hooks
        self.user_code = UserCode(self, self.env.THREAD_AFFINE)

    @property
    def server(self) -> FastMCP | None:
        """The mounted server."""
        return None if self.mounted is None else self.mounted.server

    @property
    def tasks(self) -> TaskSet | None:
        """The tasks of its class.

        Raises:
            SessionLost: the environment is closed.
        """
        if self.episode.state is EpisodeState.CLOSED:
            raise SessionLost("the environment is closed")
        return type(self.env).tasks
