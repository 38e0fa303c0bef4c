"""The base class of environments: `MCPEnvironment`."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack, overload

from fastmcp import FastMCP
from fastmcp.server.auth import AuthProvider
from fastmcp.server.providers import Provider
from mcp.server.context import ServerMiddleware
from mcp_types import Icon, ToolAnnotations

from mcpenv_client.errors import InvalidMessage
from mcpenv_client.rows import Rows
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.models import build_models
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Reward, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.state import State
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode, Tool
from mcpenv_client.wire.protocol import ActionTypes, action_type

from .errors import InvalidTool, Misuse
from .execution.ending import finish
from .execution.execution import Execution
from .execution.hooks import (
    NOTHING,
    OWN,
    AuthorHooks,
    OwnProperty,
    around_close,
    around_reset,
    around_state,
    check_setting,
    warn_of_near_misses,
)
from .execution.lifespan import IN_PROCESS, UNSET, being_made
from .execution.mcp_server import AgentServer, Finder, OnlyExecution
from .execution.mounted.mounted_server import MountedServer
from .execution.server_settings import NO_SETTINGS, ServerSettings, settings_of
from .execution.snapshots import Snapshot
from .execution.snapshots.state import default_state, load_default_state
from .rewards.rubrics import Rubric
from .rewards.rubrics.episode_rubric import refuse_silent
from .rewards.verifiers import Evidence
from .tasks import TaskSet
from .tasks.source import TaskSource
from .tasks.task_set import tasks_of
from .tools.access import AuthChecks
from .tools.definition import PLAIN, DefinitionCache, ToolOptions
from .tools.names import check_name
from .tools.outputs import OutputPolicy
from .tools.registry import BoundTool, modes_of
from .tools.settings import ToolSettings
from .worlds import Worlds

F = TypeVar("F", bound=Callable[..., Any])

_NOT_GIVEN: Any = object()

build_models()


class _ToolArguments(TypedDict, total=False):
    """The keyword arguments of `MCPEnvironment.tool`, for its overloads."""

    mode: Mode | str | None
    name: str | None
    description: str | None
    timeout_s: float | None
    terminal: bool
    concurrent: bool
    title: str | None
    version: str | int | None
    icons: list[Icon] | None
    tags: set[str] | None
    annotations: ToolAnnotations | dict[str, Any] | None
    output_schema: dict[str, Any] | None
    meta: dict[str, Any] | None
    auth: AuthChecks | None


class _TaskOfEpisode:
    """The attribute ``task`` of instances. An author's attribute of that name overrides it."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None and "task" in instance.__dict__:
            return instance.__dict__["task"]
        trajectory = None if instance is None else instance._execution.episode.trajectory
        return None if trajectory is None else trajectory.task

    def __set__(self, instance: Any, value: Any) -> None:
        text = f"{type(instance).__name__}.task hides the task of the episode, which mcpenv sets. Use another name"
        warnings.warn(text, stacklevel=2)
        instance.__dict__["task"] = value


class MCPEnvironment:
    """The base class of environments, on which an agent acts only through tools. Register tools in ``__init__``.

    Override ``reset``, ``close`` and ``state`` freely, sync or async. ``env.reset()``, ``env.close()`` and
    ``env.state`` remain the framework's methods, which run the overriding body. Calling ``super().__init__()`` and
    ``super().reset()`` is optional. The blocking methods work in scripts, inside a running event loop and from threads.
    They hold a lock, so that concurrent calls run one after the other.

    Args:
        mcp: a FastMCP server. The environment has its tools, resources, prompts, middleware, mounts and providers.
            Clients see its name, instructions and other settings.
        tools: settings of tools of that server, by their names there: ``{"peek": {"mode": "simulation"}}``. The keys
            are the attributes of `ToolSettings`.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    """True if a server may hold more than one instance at a time."""
    THREAD_AFFINE: ClassVar[bool] = False
    """Run constructor, reset, sync tools, state, score and close in one thread (SQLite, sync Playwright)."""
    CONCURRENT_CALLS: ClassVar[bool] = False
    """Allow concurrent calls where episodes have no orchestrator (plain ``/mcp``, production)."""
    SURVIVES_TIMEOUT: ClassVar[bool] = False
    """An async tool that is cancelled at its deadline leaves a usable world. If False, the episode is truncated."""
    RESET_TIMEOUT_S: ClassVar[float | None] = None
    """Maximum seconds of a reset that may take longer than a step, such as to build an image; None: as a step."""
    DURABILITY: ClassVar[Literal["export", "rerun", "restart"] | None] = None
    """How another server continues an episode (``--durable``): from its saved state, or by playing its calls again from
    the reset, or not at all. None: from its saved state if the class has `save_state`, else by its calls."""
    DYNAMIC_TOOLS: ClassVar[bool] = False
    """Tools depend on the instance. No prototype is made: a listing creates the session's own environment."""
    EXPOSED_NAME: ClassVar[str | None] = None
    """The environment's name for clients; None for the class name."""
    VERSION: ClassVar[str] = "0.1.0"
    """The environment's version for clients and records."""
    DETAILS: ClassVar[Mapping[str, Any]] = {}
    """Facts for orchestrators, such as the versions of dependencies: ``details`` of ``/metadata``."""
    REMEDIES: ClassVar[Mapping[str, str]] = {}
    """Remedies of ``mcpenv validate`` by the name of the check, in place of those for the author of a class."""

    action_types: ClassVar[tuple[type[Action], ...]] = ()
    """The environment's own action classes, which `act` handles."""
    observation_type: ClassVar[type[Observation]] = Observation
    """The observation class that `reset` and `act` return, for ``/schema``."""
    state_type: ClassVar[type[State]] = State
    """The state class that `state` returns, for ``/schema``."""

    tasks: ClassVar[TaskSet | None] = None
    """The tasks for agents. A reset selects one by ``task=``, or by ``split=`` and ``index=``."""
    rubric: Rubric | None = None
    """The rubric, which scores in addition to `score`. Set it here, in ``__init__`` or in ``reset``. Each episode has a
    copy."""
    world: Worlds | None = None
    """The world that holds the state, for verifiers and snapshots, or a dict of worlds by name. Set it in ``__init__``
    or ``reset``."""
    mcp_provider: Provider | None = None
    """A FastMCP provider of resources and prompts for agents; None for none. Its tools are not used. With a
    `CompletingProvider` it also suggests values of arguments. Set it here or in ``__init__``."""
    user: Any = None
    """The simulated user of the episode, a `User` of `mcpenv.extensions.users`. Agents speak to it with the tool of
    `add_user`. Set it in ``reset``. None: no user."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None for no limit. May be set per instance."""
    max_kept_steps: int = 10_000
    """The maximum number of step records that an episode keeps in memory. May be set per instance.

    Above the maximum the oldest records are dropped and counted in ``trajectory.dropped``. They are dropped in batches
    of a 64th of the maximum, at most 256 records, so the maximum may be exceeded by one batch. A record on disk has
    every step."""
    max_kept_bytes: int = 32 * 1024 * 1024
    """The approximate maximum size of these records, in bytes; images and audio count an eighth. The oldest are dropped
    as above. May be set per instance."""

    long_outputs: ClassVar[OutputPolicy | None] = None
    """The policy for long results, such as ``LongOutputs()`` of `mcpenv.extensions.long_outputs`: cut them, keep the
    whole text for the episode, and add tools that search and page it. None: pass results on unchanged."""

    if TYPE_CHECKING:
        task: Task | None
        """The task of the running or last episode; None if its reset named no task."""
    else:
        task = _TaskOfEpisode()

    author_hooks: ClassVar[AuthorHooks]
    """The methods that the class overrides, for the framework."""

    _execution: Execution
    _kinds: ClassVar[DefinitionCache] = DefinitionCache()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Prepare the instance, so that ``super().__init__()`` is optional."""
        self = object.__new__(cls)
        self._execution = Execution(self, (args, kwargs))
        if cls.long_outputs is not None:
            self._execution.keep_long_outputs(cls.long_outputs)
        return self

    def __init__(
        self, mcp: FastMCP | None = None, *, tools: Mapping[str, ToolSettings | Mapping[str, Any]] | None = None
    ) -> None:
        if mcp is not None:
            self._execution.mounted = MountedServer(mcp, tools or {})
        elif tools:
            raise Misuse("tools= is for the tools of a FastMCP server, and none was given")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._kinds = DefinitionCache()
        own = cls.__dict__
        if "REQUIRES_SINGLE_THREAD_EXECUTOR" in own:
            cls.THREAD_AFFINE = bool(own["REQUIRES_SINGLE_THREAD_EXECUTOR"])
        if "reset" in own:
            cls.reset = around_reset(own["reset"])  # type: ignore[method-assign]
        if "close" in own:
            cls.close = around_close(own["close"])  # type: ignore[method-assign]
        if isinstance(own.get("state"), property):
            cls.state = around_state(own["state"])  # type: ignore[assignment]
        elif "state" in own:
            raise TypeError(
                f"{cls.__name__}.state is a method. Clients read it as an attribute: put @property above it"
            )
        if "lifespan" in own and not isinstance(own["lifespan"], classmethod):
            raise TypeError(
                f"{cls.__name__}.lifespan is not a class method: put @classmethod above @asynccontextmanager"
            )
        if cls.long_outputs is not None and not isinstance(cls.long_outputs, OutputPolicy):
            raise TypeError(
                f"{cls.__name__}.long_outputs is a {type(cls.long_outputs).__name__}. Make it LongOutputs() or None"
            )
        if cls.tasks is not None and not isinstance(cls.tasks, TaskSet):
            raise TypeError(f"{cls.__name__}.tasks is a {type(cls.tasks).__name__}. Make it a TaskSet")
        for name in ("max_steps", "rubric"):
            if name in own:
                check_setting(cls.__name__, name, own[name])
        if isinstance(own.get("rubric"), Rubric):
            refuse_silent(own["rubric"])
        warn_of_near_misses(cls)
        cls.author_hooks = AuthorHooks.of(cls, MCPEnvironment)
        ActionTypes(cls.action_types)

    # -- methods to override

    def reset(self, seed: int | None = None, episode_id: str | None = None, *args: Any, **options: Any) -> Any:
        """Begin an episode.

        Override it as ``reset(self, seed=None, episode_id=None, ...)``, sync or async; it may return an `Observation`.

        Args:
            seed: the seed of a reproducible episode.
            episode_id: the episode's id; None: a random one.
            options: the override's options; unknown ones are refused. Begin a task by ``task=`` (a `Task`, or the id
                of one of `tasks`), or by ``split=`` and ``index=``. The task's options are added to these. Its seed is
                used if none is given. An override with a parameter ``task`` gets the `Task`.

        Returns:
            The observation, with ``info.episode_id``. It has the ``prompt`` if a task began, and ``done`` if the body
            set it.

        Raises:
            InvalidMessage: an unknown or missing option.
            ExecutionError: the author's body raised (``__cause__``); the environment is NEW.
        """
        return NOTHING

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | float | Any | None:
        """Return the reward of a step, or None if it is not scored. Override it, sync or async.

        It runs where the tool ran: for an async tool, or a refused call, on the event loop unless the class is
        ``THREAD_AFFINE``, so a slow score must be ``async def``. If it
        raises, the step fails with an error of the environment; the reward is not 0.
        """
        return None

    def verify(self, evidence: Evidence) -> Reward | float | Any | None:
        """Return the worth of the state at the end of an episode. Override it, sync or async.

        It is called once, when a step or the orchestrator has ended the episode. A task with a verifier of its own is
        verified by that verifier instead. The value becomes the component "verified" of the reward. True, or a
        `Verdict` that passed, is worth the upper bound of the task's ``reward_range``. False, or any other verdict, is
        worth the lower bound. Without a task the bounds are 1 and 0.

        If it raises, that is an error of the environment: the episode ends without a score; the score is not 0.

        Args:
            evidence: the state of `world` after the reset, and at the end.
        """
        return None

    def act(self, action: Action) -> Observation | Any:
        """Take one of the `action_types`. Override it, sync or async. The observation may set reward and done."""
        raise InvalidMessage(f"this environment takes no {action_type(type(action))!r} action")

    @property
    def state(self) -> Any:
        """The state for the orchestrator. An override may leave the fields of `State` to the framework."""
        return State(episode_id=self.episode_id, step_count=self.step_count, done=self._execution.episode.done)

    def close(self) -> Any:
        """Release the instance's resources. Override it, sync or async; it runs once.

        Raises:
            ExecutionError: the author's body raised; the environment is closed regardless.
        """
        return NOTHING

    def save_state(self) -> Any:
        """Return the state for a snapshot: the attributes by name, without worlds and rubric. It must be picklable.

        Override it, sync or async, if attributes cannot be pickled. ``super().save_state()`` returns the attributes as
        a dict that the override may change.
        """
        return default_state(self)

    def load_state(self, state: Any) -> Any:
        """Restore the ``state`` that `save_state` returned. Override it, sync or async.

        The worlds are loaded before. The instance was reset with the seed, options and task of the snapshot's episode.
        Attributes missing from ``state`` keep their values.
        """
        load_default_state(self, state)

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[Any]:
        """Yield the value that all sessions of a process share. It is `shared` of every instance."""
        yield None

    @classmethod
    def task_source(cls) -> TaskSource | None:
        """Return the task source for servers if `tasks` is None; None if there is no source."""
        return None

    # -- methods to call

    @overload
    def tool(self, fn: F, /, **options: Unpack[_ToolArguments]) -> F: ...
    @overload
    def tool(self, fn: str | None = None, /, **options: Unpack[_ToolArguments]) -> Callable[[F], F]: ...
    def tool(
        self: Any = None,
        fn: Any = None,
        /,
        *,
        mode: Mode | str | None = None,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        terminal: bool = False,
        concurrent: bool = False,
        title: str | None = None,
        version: str | int | None = None,
        icons: list[Icon] | None = None,
        tags: set[str] | None = None,
        annotations: ToolAnnotations | dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = _NOT_GIVEN,
        meta: dict[str, Any] | None = None,
        auth: AuthChecks | None = None,
    ) -> Any:
        """Register a tool: ``@self.tool``, ``@self.tool(mode="simulation")``, ``self.tool(self.method)``.

        Args:
            mode: the mode in which the tool is visible; None: both. A name may have one function per mode.
            name: the tool's name; None: the function's.
            description: the tool's description; None: the docstring.
            timeout_s: maximum seconds of a call. None sets no limit of the tool's own.
            terminal: True if a call that returns ends the episode.
            concurrent: True if calls of this tool may run at the same time.
            title, version, icons, tags, annotations, output_schema, meta: as FastMCP's.
            auth: FastMCP's checks (``require_scopes("write")``) of the agents that may list and call the tool. They do
                not apply to the orchestrator or to clients over stdio.

        Raises:
            InvalidTool: the name is reserved or taken, the mode is unknown, or the signature is not one of a tool.
        """
        if not isinstance(self, MCPEnvironment):  # called on the class, with a function, a name or nothing
            raise InvalidTool(
                name or getattr(self, "__name__", None) or (self if isinstance(self, str) else "(unnamed)"),
                "tools belong to instances: write @self.tool above a function inside __init__, "
                "or self.tool(self.method) there",
            )
        if isinstance(fn, str):
            name, fn = fn, None
        fastmcp: dict[str, Any] = {}
        if title is not None or version is not None or icons is not None or tags is not None or meta is not None:
            given = {"title": title, "version": version, "icons": icons, "tags": tags, "meta": meta}
            fastmcp = {key: value for key, value in given.items() if value is not None}
        if annotations is not None:
            fastmcp["annotations"] = ToolAnnotations(**annotations) if isinstance(annotations, dict) else annotations
        if output_schema is not _NOT_GIVEN:
            fastmcp["output_schema"] = output_schema
        plain = name is None and description is None and timeout_s is None and not (terminal or concurrent or fastmcp)
        options = PLAIN if plain else ToolOptions(name, description, timeout_s, terminal, concurrent, fastmcp)
        if fn is None:
            return self._execution.tools.decorator(
                functools.partial(self._register, mode=mode, options=options, auth=auth), name, sys._getframe(1)
            )
        return self._register(fn, mode=mode, options=options, auth=auth)

    def remove_tool(self, name: str) -> None:
        """Remove a tool in both modes.

        Raises:
            InvalidTool: there is no tool of that name.
        """
        if not self._execution.tools.remove(name):
            raise InvalidTool(name, "there is no such tool to remove")

    def finish(
        self, reward: Reward | float | None = None, *, truncated: bool = False, reason: str | None = None
    ) -> None:
        """End the episode with the running step, which is still scored. Only the first call has an effect.

        Works in tools, `score`, `act` and `reset`. Has no effect where episodes have no orchestrator.

        Args:
            reward: added to the step's reward.
            truncated: True if a limit ended the episode; otherwise it is terminated.
            reason: for the record and ``info.reason``.

        Raises:
            Misuse: called anywhere else.
        """
        finish(self._execution, reward, truncated, reason)

    @property
    def episode_id(self) -> str | None:
        """The id of the running episode; None before the first reset."""
        return self._execution.episode.id

    @property
    def step_count(self) -> int:
        """The number of steps of this episode, including the running one."""
        return self._execution.episode.step_count

    @property
    def trajectory(self) -> Trajectory | None:
        """The record of the running or last episode."""
        return self._execution.episode.trajectory

    @classmethod
    def splits(cls) -> list[str]:
        """Return the splits of the environment's tasks. This and the next four are as `EnvClient` has them.

        Raises:
            InvalidMessage: the environment has no tasks, or no such split or index.
        """
        return tasks_of(cls).splits()

    @classmethod
    def num_tasks(cls, split: str) -> int:
        """Return the number of tasks in a split."""
        return tasks_of(cls).size(split)

    @classmethod
    def get_task(cls, split: str, index: int) -> Task:
        """Return the task at a 0-based index of a split, for ``reset(task=...)``. It includes its answers."""
        return tasks_of(cls).get(split, index)

    @classmethod
    def get_tasks(cls, split: str, start: int = 0, stop: int | None = None) -> list[Task]:
        """Return the tasks of a split from ``start`` up to, and without, ``stop``; None: to the last."""
        return tasks_of(cls).range(split, start, stop)

    @classmethod
    def rows(cls, split: str) -> Rows:
        """Return a split as a trainer's dataset, a row for each task, which is read when it is used."""
        return Rows(range(cls.num_tasks(split)), functools.partial(cls.get_tasks, split), split)

    @property
    def mode(self) -> Mode:
        """The mode in which this instance is used; simulation in process."""
        return self._execution.mode

    @property
    def shared(self) -> Any:
        """The value that `lifespan` yielded; None if the class has no lifespan."""
        if self._execution.shared is UNSET:
            self._execution.shared = IN_PROCESS.value(type(self))
        return self._execution.shared

    # -- in process

    def step(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        """Take a step. Blocks until it is done.

        Args:
            action: `CallToolAction`, `ListToolsAction` or one of `action_types`.
            timeout_s: deadline in seconds. Without one, sync tools run in the caller's thread and cannot be stopped.

        Returns:
            The observation; a tool's failure is its ``error``.

        Raises:
            EpisodeDone: the episode is over.
            ExecutionError: the author's score, act or implicit reset raised (``__cause__``).
            TypeError: not an action of this environment.
        """
        return self._execution.blocking.run(self._step(action, timeout_s))

    async def step_async(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        """Take a step. `step` for coroutines."""
        return await self._step(action, timeout_s)

    def _step(self, action: Action, timeout_s: float | None) -> Coroutine[Any, Any, Observation]:
        if not isinstance(action, (CallToolAction, ListToolsAction, *self.action_types)):
            raise TypeError(f"{type(self).__name__} takes no {type(action).__name__} as an action")
        return self._execution.step(action, timeout_s=timeout_s)

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Observation:
        """Call one tool, as a step. The same as `EnvClient.call_tool`."""
        return self.step(CallToolAction(tool_name=name, arguments=arguments or {}), timeout_s=timeout_s)

    async def call_tool_async(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Observation:
        """Call one tool, as a step. `call_tool` for coroutines."""
        return await self.step_async(CallToolAction(tool_name=name, arguments=arguments or {}), timeout_s=timeout_s)

    def end(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """End the episode because the agent has stopped. Score the state that it left, by rubric and `verify`.

        Args:
            truncated: True if a limit of the orchestrator ended the episode; otherwise it is terminated.
            reason: for the record and ``info["reason"]``.

        Returns:
            The reward of the end. ``info["return"]`` is the sum of rewards, None if nothing was scored. If the episode
            was already over, the last observation.

        Raises:
            InvalidMessage: no episode has begun.
            ExecutionError: scoring the end failed (``__cause__``). The episode is over, without that part of its score.
        """
        return self._execution.blocking.run(self.end_async(truncated=truncated, reason=reason))

    async def end_async(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """End the episode. `end` for coroutines."""
        return await self._execution.end(truncated=truncated, reason=reason)

    def list_tools(self) -> list[Tool]:
        """Return the tools that are visible in this mode. This is not a step."""
        return self._execution.blocking.run(self._execution.list_tools())

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the episode: its state, steps and return. Changes nothing.

        Raises:
            NotSupported: a part of the episode cannot be saved; the text names the part and the remedy.
            InvalidMessage: no episode has begun.
            ExecutionError: the author's `save_state` raised (``__cause__``).
        """
        return self._execution.blocking.run(self.snapshot_async())

    def restore(self, snapshot: Snapshot) -> Observation:
        """Continue a snapshot's episode in a new episode with the same steps. Return the snapshot's last observation.

        Raises:
            NotSupported: the snapshot does not fit this instance.
            Misuse: the snapshot is of another class or version, or the argument is not a `Snapshot`.
            ExecutionError: the author's code raised (``__cause__``); the environment is NEW.
        """
        return self._execution.blocking.run(self.restore_async(snapshot))

    def fork(self, snapshot: Snapshot | None = None) -> Self:
        """Return another instance, made with the same arguments, that continues a snapshot. Close it separately.

        Args:
            snapshot: a snapshot of this class; None: a snapshot of the present state.

        Raises:
            as `snapshot` and `restore`; any exception of the constructor.
        """
        held = self.snapshot() if snapshot is None else snapshot
        other = self._another()
        try:
            other.restore(held)  # in the thread and loop of the other instance
        except BaseException:
            other.close()
            raise
        return other

    async def snapshot_async(self) -> Snapshot:
        """Return a snapshot. `snapshot` for coroutines."""
        return await self._execution.snapshot()

    async def restore_async(self, snapshot: Snapshot) -> Observation:
        """Continue a snapshot. `restore` for coroutines."""
        if not isinstance(snapshot, Snapshot):
            raise Misuse(f"restore needs a Snapshot, as snapshot() returns, and got a {type(snapshot).__name__}")
        return await self._execution.restore(snapshot)

    async def fork_async(self, snapshot: Snapshot | None = None) -> Self:
        """Return another instance. `fork` for coroutines."""
        held = await self.snapshot_async() if snapshot is None else snapshot
        other = self._another()
        try:
            await other.restore_async(held)
        except BaseException:
            await other.close_async()
            raise
        return other

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode. `reset` for coroutines."""
        return await self._execution.reset(seed, episode_id, options)

    async def close_async(self) -> None:
        """Close the instance. `close` for coroutines."""
        await self._execution.close()

    @property
    def mcp(self) -> FastMCP:
        """The instance as a FastMCP server, for an in-memory ``fastmcp.Client`` or to mount elsewhere."""
        server: FastMCP | None = self.__dict__.get("_mcp_server")
        if server is None:
            mounted = self._execution.mounted
            settings = NO_SETTINGS if mounted is None else settings_of(mounted.server)
            server = agent_server(type(self), OnlyExecution(self._execution), settings, auth=settings.auth)
            for route in settings.routes:
                server.custom_route(
                    route.path, sorted(route.methods or ()), name=route.name, include_in_schema=route.include_in_schema
                )(route.endpoint)
            self.__dict__["_mcp_server"] = server
        return server

    def run(self, transport: str = "stdio", **options: Any) -> None:
        """Serve this one instance with FastMCP (``transport``: "stdio" or "http"). ``mcpenv run`` serves many."""
        self.mcp.run(transport=transport, **options)  # type: ignore[arg-type]

    @classmethod
    def exposed_name(cls) -> str:
        """Return the environment's name for clients."""
        return cls.EXPOSED_NAME or cls.__name__

    @classmethod
    def instructions(cls) -> str | None:
        """Return the text about the environment for agents: the first line of its docstring."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0] or None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- for the core

    def _register(self, fn: F, *, mode: Mode | str | None, options: ToolOptions, auth: AuthChecks | None = None) -> F:
        if not callable(fn):
            how = "Register the function itself: self.tool(self.method), not self.tool(self.method())"
            raise InvalidTool(options.name or repr(fn)[:80], f"a {type(fn).__name__} cannot be called. {how}")
        target: Any = fn
        while isinstance(target, functools.partial):
            target = target.func
        name = str(options.name or getattr(target, "__name__", type(target).__name__))
        check_name(name)
        modes = modes_of(mode, name)
        if self._execution.mounted is not None:
            self._execution.mounted.refuse_taken(name, modes)
        kind = type(self)._kinds.kind_of(fn, name, options, sys._getframe(1))
        self._execution.tools.add(BoundTool(kind, fn, auth), modes)
        return fn

    def _another(self) -> Self:
        """Return an instance made with the same arguments as this one."""
        args, kwargs = self._execution.arguments
        token = being_made.set(self._execution.shared)
        try:
            other = type(self)(*args, **kwargs)
        finally:
            being_made.reset(token)
        other._execution.mode = self.mode
        sink = self._execution.sink
        if sink is not None:
            other._execution.sink = sink.another(other._execution.tools, other.mode)
        return other


def agent_server(
    cls: type[MCPEnvironment],
    finder: Finder,
    settings: ServerSettings,
    *,
    auth: AuthProvider | None,
    request_middleware: Sequence[ServerMiddleware[Any]] = (),
) -> AgentServer:
    """Return the FastMCP server of environments of a class.

    Name, version and instructions of the class take precedence over the mounted server's.

    Args:
        finder: finds executions.
        settings: the settings of the mounted server.
        auth: authenticates agents.
        request_middleware: middleware of the low-level server.
    """
    base = MCPEnvironment
    own_version = any("VERSION" in each.__dict__ for each in cls.__mro__[: cls.__mro__.index(base)])
    own_instructions = cls.instructions.__func__ is not base.instructions.__func__  # type: ignore[attr-defined]
    own_name = cls.EXPOSED_NAME or cls.exposed_name.__func__ is not base.exposed_name.__func__  # type: ignore[attr-defined]
    return AgentServer(
        cls.exposed_name() if own_name else settings.name or cls.exposed_name(),
        finder,
        instructions=cls.instructions() if own_instructions else settings.instructions or cls.instructions(),
        version=cls.VERSION if own_version else settings.version or cls.VERSION,
        auth=auth,
        settings=settings,
        request_middleware=request_middleware,
    )


MCPEnvironment.reset = around_reset(MCPEnvironment.reset)  # type: ignore[method-assign]
MCPEnvironment.close = around_close(MCPEnvironment.close)  # type: ignore[method-assign]
MCPEnvironment.author_hooks = AuthorHooks.of(MCPEnvironment, MCPEnvironment)
for _name in OWN:
    setattr(MCPEnvironment, _name, OwnProperty(vars(MCPEnvironment)[_name].fget))
