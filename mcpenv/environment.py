"""MCPEnvironment: what an author subclasses."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

from fastmcp import FastMCP
from mcp_types import Icon, ToolAnnotations

from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.models import build_models
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane, Reward, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.state import State
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode, Tool
from mcpenv_client.wire.protocol import ActionTypes, action_type

from .errors import InvalidTool, Misuse
from .execution import observations
from .execution.execution import Execution
from .execution.lifespan import IN_PROCESS, UNSET, being_made
from .execution.mcp_server import AgentServer, OnlyExecution
from .execution.mounted_server import HandedIn
from .execution.overrides import NOTHING, around_close, around_reset, around_state, no_options
from .execution.snapshots import Snapshot
from .execution.snapshots.state import default_state, load_default_state
from .rewards.rubrics import Rubric
from .rewards.rubrics.episode_rubric import refuse_silent
from .rewards.verifiers import Evidence
from .tasks import TaskSet
from .tasks.reset_options import ResetOptions
from .tasks.source import TaskSource
from .tools.access import AuthChecks
from .tools.definition import PLAIN, KindCache, ToolOptions, check_name
from .tools.registry import BoundTool, modes_of
from .worlds import Worlds

F = TypeVar("F", bound=Callable[..., Any])

_NOT_GIVEN: Any = object()

build_models()


class _TaskOfEpisode:
    """An attribute of instances; an author's own of that name takes its place."""

    def __get__(self, instance: Any, owner: type) -> Any:
        trajectory = None if instance is None else instance._execution.episode.trajectory
        return None if trajectory is None else trajectory.task


class MCPEnvironment:
    """A world that an agent acts on only through tools. Subclass it and register tools in ``__init__``.

    Whoever calls ``env.reset()``, ``env.close()`` or ``env.state`` gets the framework's, which runs the author's body:
    override them freely, sync or async. ``super().__init__()`` and ``super().reset()`` are optional. The blocking
    methods work in scripts, inside a running event loop and from threads; calls take turns.

    Args:
        mcp: a FastMCP server whose tools, resources, prompts, middleware, mounts and providers this environment has.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    """Whether a server may hold more than one instance at a time."""
    THREAD_AFFINE: ClassVar[bool] = False
    """Run constructor, reset, sync tools, state, score and close in one thread (SQLite, sync Playwright)."""
    CONCURRENT_CALLS: ClassVar[bool] = False
    """Where nobody owns episodes (plain ``/mcp``, production): calls need not wait for each other."""
    SURVIVES_TIMEOUT: ClassVar[bool] = False
    """An async tool that was stopped at its deadline leaves a world that can go on; else the episode is truncated."""
    DYNAMIC_TOOLS: ClassVar[bool] = False
    """Tools depend on the instance: no prototype is made, a listing builds the session's own environment."""
    EXPOSED_NAME: ClassVar[str | None] = None
    """The environment's name for clients; the class name otherwise."""
    VERSION: ClassVar[str] = "0.1.0"
    """The environment's version for clients and records."""

    action_types: ClassVar[tuple[type[Action], ...]] = ()
    """Actions of the environment's own; they go to `act`."""
    observation_type: ClassVar[type[Observation]] = Observation
    """What `reset` and `act` return, for ``/schema``."""
    state_type: ClassVar[type[State]] = State
    """What `state` returns, for ``/schema``."""

    tasks: ClassVar[TaskSet | None] = None
    """What agents may be given to do. A reset begins one by ``task=``, or by ``split=`` and ``index=``."""
    rubric: Rubric | None = None
    """What is good, beside `score`; may be set in ``__init__`` or ``reset``. Each episode has a copy of its own."""
    world: Worlds | None = None
    """Where the state is, for verifiers and snapshots; set it in ``__init__`` or ``reset``. Several by their names."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None for no limit. May be set per instance."""
    max_kept_steps: int = 10_000
    """Step records that a trajectory holds; older ones are dropped and counted. Several at once: until then it holds
    up to one 64th more, and 256 at most."""

    if TYPE_CHECKING:
        task: Task | None
        """What the agent is to do in the running or last episode; None if its reset named no task."""
    else:
        task = _TaskOfEpisode()

    _execution: Execution
    _shared: Any
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _own_state: ClassVar[bool] = False
    _own_close: ClassVar[bool] = False
    _kinds: ClassVar[KindCache] = KindCache()
    _reset_options: ClassVar[ResetOptions]
    _score_is_async: ClassVar[bool] = False
    _verifies: ClassVar[bool] = False
    _verify_is_async: ClassVar[bool] = False
    _reset_body: ClassVar[Callable[..., Any]]
    _close_body: ClassVar[Callable[..., Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Prepare the instance, so that ``super().__init__()`` is optional."""
        self = object.__new__(cls)
        self._execution = Execution(self)
        self._shared = being_made.get()
        self._arguments = (args, kwargs)
        return self

    def __init__(self, mcp: FastMCP | None = None) -> None:
        if mcp is not None:
            self._execution.handed_in = HandedIn(mcp)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._kinds = KindCache()
        own = cls.__dict__
        if "REQUIRES_SINGLE_THREAD_EXECUTOR" in own:
            cls.THREAD_AFFINE = bool(own["REQUIRES_SINGLE_THREAD_EXECUTOR"])
        if "reset" in own:
            cls._reset_body, cls._reset_options = own["reset"], ResetOptions(own["reset"])
            cls.reset = around_reset(own["reset"])  # type: ignore[method-assign]
        if "close" in own:
            cls._close_body, cls._own_close = own["close"], True
            cls.close = around_close(own["close"])  # type: ignore[method-assign]
        if isinstance(own.get("state"), property):
            cls.state = around_state(own["state"])  # type: ignore[assignment]
        elif "state" in own:
            raise TypeError(f"{cls.__name__}.state is read as an attribute: put @property above it")
        if "lifespan" in own and not isinstance(own["lifespan"], classmethod):
            raise TypeError(f"{cls.__name__}.lifespan is the class's: put @classmethod above @asynccontextmanager")
        if cls.tasks is not None and not isinstance(cls.tasks, TaskSet):
            raise TypeError(f"{cls.__name__}.tasks is a {type(cls.tasks).__name__}; make it a TaskSet")
        if isinstance(own.get("rubric"), Rubric):
            refuse_silent(own["rubric"])
        cls._own_state = cls.save_state is not MCPEnvironment.save_state
        cls._score_is_async = inspect.iscoroutinefunction(cls.score)
        cls._verifies = cls.verify is not MCPEnvironment.verify
        cls._verify_is_async = inspect.iscoroutinefunction(cls.verify)
        ActionTypes(cls.action_types)  # two classes of one type are refused here

    # -- what an author overrides

    def reset(self, seed: int | None = None, episode_id: str | None = None, *args: Any, **options: Any) -> Any:
        """Begin an episode.

        Override it as ``reset(self, seed=None, episode_id=None, ...)``, sync or async; it may return an `Observation`.

        Args:
            seed: for a reproducible episode.
            episode_id: a name for it; made up otherwise.
            options: those of the override; unknown ones are refused. To begin a task: ``task=`` (a `Task`, or the id
                of one of `tasks`), or ``split=`` and ``index=`` of one. Its options are added to these, its seed is
                taken if none is given, and an override with a parameter ``task`` is given the `Task`.

        Returns:
            The observation, with ``info.episode_id``; of a task with its ``prompt``. ``done`` if the body said so.

        Raises:
            InvalidMessage: an unknown or missing option.
            ExecutionError: the author's body raised (``__cause__``); the environment is NEW.
        """
        return NOTHING

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | float | Any | None:
        """The reward of a step, or None if it is not scored. Override it, sync or async.

        Runs where the tool ran: for an async tool on the event loop, so that a slow score must be ``async def``. An
        exception is an error of the environment: the step fails, it is never reward 0.
        """
        return None

    def verify(self, evidence: Evidence) -> Reward | float | Any | None:
        """What the state at the end of an episode is worth, whatever the agent says of it. Override it, sync or async.

        Asked once, when a step or the orchestrator has ended the episode; a task with a verifier of its own is verified
        by that instead. The value is a part of the reward, called "verified"; True or a `Verdict` that passed is worth
        the top of the task's ``reward_range``, any other bool or verdict the bottom (without a task 1 and 0). An
        exception is an error of the environment: the episode is over and has no score, it is never 0.

        Args:
            evidence: what `world` looked like after the reset, and now.
        """
        return None

    def act(self, action: Action) -> Observation | Any:
        """Take an action of `action_types`. Override it, sync or async; the observation may carry a reward and done."""
        raise InvalidMessage(f"this environment takes no {action_type(type(action))!r} action")

    @property
    def state(self) -> Any:
        """What the orchestrator may know. An override may leave episode id and step count to the framework."""
        return State(episode_id=self.episode_id, step_count=self.step_count)

    def close(self) -> Any:
        """Release what the instance holds. Override it, sync or async; it runs once.

        Raises:
            ExecutionError: the author's body raised; the environment is closed all the same.
        """
        return NOTHING

    def save_state(self) -> Any:
        """What a snapshot holds of this instance: its attributes by name, worlds and rubric apart. It has to pickle.

        Override it, sync or async, for what does not; ``super().save_state()`` gives the attributes, to be changed.
        """
        return default_state(self)

    def load_state(self, state: Any) -> Any:
        """Be as it was when `save_state` gave ``state``. Override it, sync or async.

        Worlds are loaded before, and the instance was reset with the seed, options and task of the snapshot's episode;
        an attribute that ``state`` leaves out stays what it is.
        """
        load_default_state(self, state)

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[Any]:
        """What all sessions of a process share; the yielded value is `shared` of every instance."""
        yield None

    @classmethod
    def task_source(cls) -> TaskSource | None:
        """Return the source that a server asks about tasks where `tasks` is None; None: there is none."""
        return None

    # -- what an author calls

    @overload
    def tool(
        self,
        fn: F,
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
    ) -> F: ...
    @overload
    def tool(
        self,
        fn: str | None = None,
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
    ) -> Callable[[F], F]: ...
    def tool(
        self,
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
            mode: where it is visible; both modes if left out. One name may have one body per mode.
            name: instead of the function's.
            description: instead of the docstring.
            timeout_s: seconds that a call may take.
            terminal: a call that returned ends the episode.
            concurrent: calls of it need not wait for each other.
            title, version, icons, tags, annotations, output_schema, meta: as FastMCP's.
            auth: FastMCP's checks (``require_scopes("write")``) of the agents that may list and call it. The
                orchestrator, who has the environment, is not asked; nor is a client over stdio.

        Raises:
            InvalidTool: a reserved or taken name, an unknown mode, a signature that cannot be a tool's.
        """
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
            return functools.partial(self._register, mode=mode, options=options, auth=auth)
        return self._register(fn, mode=mode, options=options, auth=auth)

    def remove_tool(self, name: str) -> None:
        """Take a tool away, in both modes.

        Raises:
            InvalidTool: there is none of that name.
        """
        if not self._execution.tools.remove(name):
            raise InvalidTool(name, "there is no such tool to remove")

    def finish(
        self, reward: Reward | float | None = None, *, truncated: bool = False, reason: str | None = None
    ) -> None:
        """End the episode with the step under way, which is still scored; the first call counts.

        Works in tools, `score`, `act` and `reset`. Has no effect where nobody owns episodes.

        Args:
            reward: added to the step's reward.
            truncated: a limit ended it; otherwise it is terminated.
            reason: for the record and ``info.reason``.

        Raises:
            Misuse: anywhere else.
        """
        self._execution.finish(reward, truncated, reason)

    @property
    def episode_id(self) -> str | None:
        """The running episode's id, None before the first reset."""
        return self._execution.episode.id

    @property
    def step_count(self) -> int:
        """Steps of this episode, the one under way included."""
        return self._execution.episode.step_count

    @property
    def trajectory(self) -> Trajectory | None:
        """The record of the running or last episode."""
        return self._execution.episode.trajectory

    @property
    def mode(self) -> Mode:
        """The mode in which this instance is used; simulation in process."""
        return self._execution.mode

    @property
    def shared(self) -> Any:
        """What `lifespan` yielded; None if the class has none."""
        if self._shared is UNSET:
            self._shared = IN_PROCESS.value(type(self))
        return self._shared

    # -- in process

    def step(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        """Take a step; blocks until it is done.

        Args:
            action: `CallToolAction`, `ListToolsAction` or one of `action_types`.
            timeout_s: deadline in seconds. Without one, sync tools run in the caller's thread; nothing stops them.

        Returns:
            The observation; a tool's failure is its ``error``.

        Raises:
            EpisodeDone: the episode is over.
            ExecutionError: the author's score, act or implicit reset raised (``__cause__``).
            TypeError: not an action of this environment.
        """
        return self._execution.home.drive(self.step_async(action, timeout_s=timeout_s))

    async def step_async(self, action: Action, *, timeout_s: float | None = None) -> Observation:
        """`step` for coroutines."""
        if not isinstance(action, (CallToolAction, ListToolsAction, *self.action_types)):
            raise TypeError(f"{type(self).__name__} takes no {type(action).__name__} as an action")
        return await observations.step(self._execution, action, plane=Plane.PROCESS, timeout_s=timeout_s)

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Observation:
        """Call one tool: a step. The same as `EnvClient.call_tool`."""
        return self.step(CallToolAction(tool_name=name, arguments=arguments or {}), timeout_s=timeout_s)

    def end(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """End the episode: the agent has stopped. Rubric and `verify` are asked about the state that it left.

        Args:
            truncated: a limit of the orchestrator's ended it; otherwise it is terminated.
            reason: for the record and ``info["reason"]``.

        Returns:
            The reward of the end, and ``info["return"]``, the sum, None if nothing was scored. If it was over already,
            the last observation.

        Raises:
            InvalidMessage: there is no episode yet.
            ExecutionError: judging the end failed (``__cause__``); the episode is over, without that part of a score.
        """
        return self._execution.home.drive(self.end_async(truncated=truncated, reason=reason))

    async def end_async(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """`end` for coroutines."""
        await self._execution.end(truncated=truncated, reason=reason)
        return observations.latest(self._execution)

    def list_tools(self) -> list[Tool]:
        """The tools that are visible in this mode. No step."""
        return self._execution.home.drive(self._execution.list_tools())

    def snapshot(self) -> Snapshot:
        """Hold the episode as it stands: state, steps and return. Changes nothing.

        Raises:
            NotSupported: something of it cannot be held; it says what, and what to do.
            InvalidMessage: there is no episode yet.
            ExecutionError: the author's `save_state` raised (``__cause__``).
        """
        return self._execution.home.drive(self.snapshot_async())

    def restore(self, snapshot: Snapshot) -> Observation:
        """Go on from a snapshot of this class, in a new episode with the same steps; gives the last observation again.

        Raises:
            NotSupported: it does not fit this instance.
            Misuse: it is of another class or version, or no snapshot at all.
            ExecutionError: the author's code raised (``__cause__``); the environment is NEW.
        """
        return self._execution.home.drive(self.restore_async(snapshot))

    def fork(self, snapshot: Snapshot | None = None) -> Self:
        """Another instance, made with the same arguments, that goes on from a snapshot, or from here. Close it too.

        Raises:
            as `snapshot` and `restore`; whatever the constructor raises.
        """
        held = self.snapshot() if snapshot is None else snapshot
        other = self._another()
        try:
            other.restore(held)  # where it is at home
        except BaseException:
            other.close()
            raise
        return other

    async def snapshot_async(self) -> Snapshot:
        """`snapshot` for coroutines."""
        return await self._execution.snapshot()

    async def restore_async(self, snapshot: Snapshot) -> Observation:
        """`restore` for coroutines."""
        if not isinstance(snapshot, Snapshot):
            raise Misuse(f"restore takes a Snapshot, as snapshot() gives it, and got a {type(snapshot).__name__}")
        return await observations.restore(self._execution, snapshot)

    async def fork_async(self, snapshot: Snapshot | None = None) -> Self:
        """`fork` for coroutines."""
        held = await self.snapshot_async() if snapshot is None else snapshot
        other = self._another()
        try:
            await other.restore_async(held)
        except BaseException:
            await other.close_async()
            raise
        return other

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """`reset` for coroutines."""
        return await self._execution.reset(seed, episode_id, options)

    async def close_async(self) -> None:
        """`close` for coroutines."""
        await self._execution.close()

    @property
    def mcp(self) -> FastMCP:
        """This instance as a FastMCP server: for an in-memory ``fastmcp.Client``, or to mount elsewhere."""
        server: FastMCP | None = self.__dict__.get("_mcp_server")
        if server is None:
            server = AgentServer(self.exposed_name(), OnlyExecution(self._execution), instructions=self.instructions())
            self.__dict__["_mcp_server"] = server
        return server

    def run(self, transport: str = "stdio", **options: Any) -> None:
        """Serve this one instance with FastMCP (``transport``: "stdio" or "http"); ``mcpenv run`` serves many."""
        self.mcp.run(transport=transport, **options)  # type: ignore[arg-type]

    @classmethod
    def exposed_name(cls) -> str:
        """The environment's name for clients."""
        return cls.EXPOSED_NAME or cls.__name__

    @classmethod
    def instructions(cls) -> str | None:
        """What agents are told of the environment: the first line of its docstring."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0] or None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- for the core

    def _register(self, fn: F, *, mode: Mode | str | None, options: ToolOptions, auth: AuthChecks | None = None) -> F:
        if not callable(fn):
            raise InvalidTool(options.name or repr(fn), f"a {type(fn).__name__} cannot be called")
        target: Any = fn
        while isinstance(target, functools.partial):
            target = target.func
        name = str(options.name or getattr(target, "__name__", type(target).__name__))
        check_name(name)
        modes = modes_of(mode, name)
        kinds = type(self)._kinds
        kind = kinds.known(fn, name, options)
        if kind is None:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
                frame = frame.f_back
            kind = kinds.kind_of(fn, name, options, functools.partial(_locals_of, frame))
        self._execution.tools.add(BoundTool(kind, fn, auth), modes)
        return fn

    def _another(self) -> Self:
        """An instance made as this one was."""
        args, kwargs = self._arguments
        token = being_made.set(self._shared)
        try:
            other = type(self)(*args, **kwargs)
        finally:
            being_made.reset(token)
        other._execution.mode = self.mode
        sink = self._execution.sink
        if sink is not None:
            other._execution.sink = sink.another(other._execution.tools, other.mode)
        return other

    def _author_reset(self, seed: int | None, episode_id: str | None, options: dict[str, Any]) -> Callable[[], Any]:
        arguments = self._reset_options.arguments(seed, episode_id, options)
        return functools.partial(type(self)._reset_body, self, **arguments)

    def _author_close(self) -> Callable[[], Any]:
        return functools.partial(type(self)._close_body, self)


def _locals_of(frame: FrameType) -> dict[str, Any]:
    return dict(frame.f_locals)


MCPEnvironment._reset_body = MCPEnvironment.reset
MCPEnvironment._close_body = MCPEnvironment.close
MCPEnvironment._reset_options = ResetOptions(no_options)
MCPEnvironment.reset = around_reset(MCPEnvironment._reset_body)  # type: ignore[method-assign]
MCPEnvironment.close = around_close(MCPEnvironment._close_body)  # type: ignore[method-assign]
