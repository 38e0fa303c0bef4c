"""The factory of environments. It makes instances in worker threads, and a prototype at start."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.server.providers import Provider

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, InvalidTasks, StartupError, describe
from mcpenv.execution.concurrency.threads import THREADS, OwnThread, Runner
from mcpenv.execution.execution import Execution
from mcpenv.execution.lifespan import UNSET, being_made, lifespan_of
from mcpenv.execution.mounted.mounted_server import MountedServer
from mcpenv.execution.server_settings import NO_SETTINGS, ServerSettings, settings_of
from mcpenv.failures import factory_failure, is_no_failure
from mcpenv.server.config import ServerConfig
from mcpenv.tasks import TaskSet
from mcpenv.tools.access import Listing
from mcpenv.tools.names import RESERVED_NAMES
from mcpenv.trajectories.recorder import OwnTools, Recorder, Tools
from mcpenv_client.errors import FactoryError, McpenvError
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.protocol import ActionTypes

logger = logging.getLogger("mcpenv")

EnvFactory = Callable[[], MCPEnvironment]


class EnvironmentFactory:
    """The source that makes the instances of one environment.

    Args:
        factory: a class, or a callable without required arguments.

    Attributes:
        recorder: records the episodes of instances made while it is set; None: no recording.

    Raises:
        TypeError: an instance was given, or something that cannot be called.
    """

    def __init__(self, factory: EnvFactory, config: ServerConfig) -> None:
        if isinstance(factory, MCPEnvironment):
            raise TypeError(
                f"an instance of {type(factory).__name__} was given; give the class or a factory, "
                "because every session gets an instance of its own"
            )
        if not callable(factory):
            raise TypeError(f"an environment class or a factory is needed, not a {type(factory).__name__}")
        self._factory = factory
        self._config = config
        self._shared: Any = UNSET
        self.environment_class = _class_of(factory)
        self.prototype: Prototype | None = None
        self.recorder: Recorder | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the class's `lifespan`, and make the prototype.

        Raises:
            StartupError: one of them failed.
        """
        if self.environment_class is None:
            await self._learn_class()
        assert self.environment_class is not None
        await self._read_tasks()
        try:
            lifespan = lifespan_of(self.environment_class)
            self._shared = await lifespan.__aenter__()
        except Exception as error:
            raise StartupError(f"the lifespan of {self.name} raised {describe(error)}") from error
        failure: BaseException | None = None
        try:
            if not self.environment_class.DYNAMIC_TOOLS:
                self.prototype = await self._make_prototype()
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if failure is None:
                    await lifespan.__aexit__(None, None, None)
                else:
                    await lifespan.__aexit__(type(failure), failure, failure.__traceback__)
            except Exception as error:
                if error is not failure:
                    logger.exception("leaving the lifespan of %s failed", self.name)

    @asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Record episodes while the block runs, if the settings name a folder.

        Raises:
            ConfigurationError: there are no episodes in this mode.
            StartupError: the folder cannot be used.
        """
        directory, mode = self._config.record, self._config.mode
        if directory is None:
            yield
            return
        if mode is not Mode.SIMULATION:
            raise ConfigurationError(f"there are no episodes in {mode.value} mode, and so nothing to record")
        self.recorder = recorder = await asyncio.to_thread(Recorder, directory)
        try:
            yield
        finally:
            await asyncio.to_thread(recorder.close)

    def make(self, *, orchestrated: bool, on_abandoned: Callable[[], Callable[[], None]]) -> PendingInstance:
        """Begin to make a new instance, whose sync code runs in worker threads.

        Args:
            orchestrated: True if an orchestrator will reset and step it. Otherwise it is reset here, once.
            on_abandoned: called when the constructor is still running after its deadline. The function that it
                returns is called once the resulting instance has been closed.
        """
        return PendingInstance(self._make(orchestrated), self._config.step_timeout_s, on_abandoned)

    @property
    def settings(self) -> ServerSettings:
        """The settings of the mounted server that hold for the whole server."""
        return NO_SETTINGS if self.prototype is None else self.prototype.settings

    @property
    def tasks(self) -> TaskSet | None:
        """The environment's tasks; None where episodes have no orchestrator."""
        cls = self.environment_class
        return cls.tasks if cls is not None and self._config.mode is Mode.SIMULATION else None

    @property
    def name(self) -> str:
        """The environment's name for clients."""
        cls = self.environment_class
        return cls.exposed_name() if cls is not None else getattr(self._factory, "__name__", "environment")

    @property
    def version(self) -> str | None:
        """The environment's version."""
        return self.environment_class.VERSION if self.environment_class is not None else None

    @property
    def description(self) -> str:
        """The environment's docstring."""
        # `inspect.getdoc` would describe a class without a docstring as MCPEnvironment.
        return inspect.cleandoc(self.environment_class.__doc__ or "") if self.environment_class is not None else ""

    @property
    def actions(self) -> ActionTypes:
        """The actions that the environment takes."""
        return ActionTypes(self.environment_class.action_types if self.environment_class is not None else ())

    async def _make(self, orchestrated: bool) -> Execution:
        assert self.environment_class is not None
        runner: Runner = OwnThread() if self.environment_class.THREAD_AFFINE else THREADS
        try:
            try:
                env = await self._construct(runner)
            except BaseException as error:
                if is_no_failure(error, inline=False):
                    raise
                raise factory_failure(self.name, error) from error
            execution = env._execution
            self._check_settings(execution.mounted)
            execution.mode = self._config.mode
            execution.user_code.runner = runner
            execution.user_code.deadline_s = self._config.step_timeout_s
            execution.max_calls = self._config.max_calls_in_flight
            execution.episode.orchestrated = orchestrated
            if self.recorder is not None:
                execution.sink = self.recorder.sink_for(self.name, self.version, self._tools_of(execution), self.tasks)
            if not orchestrated:
                await execution.reset()
        except BaseException:
            runner.close()
            raise
        return execution

    def _check_settings(self, mounted: MountedServer | None) -> None:
        """Raise if an instance has a mounted server with other settings than those that are in force.

        Raises:
            FactoryError: with the names of these settings.
        """
        known = None if self.prototype is None else self.prototype.mounted
        if mounted is None or (known is not None and known.server is mounted.server):
            return
        differing = sorted(set(settings_of(mounted.server).given()) ^ set(self.settings.given()))
        if differing:
            raise FactoryError(
                f"FastMCP server {mounted.server.name!r}: {', '.join(differing)} cannot be in force: the server was "
                "not known when serving began (DYNAMIC_TOOLS), or differs from that of the first instance"
            )

    async def _read_tasks(self) -> None:
        """Check in a thread that the tasks can be read."""
        if self.tasks is None:
            return
        try:
            await THREADS.run(self.tasks.sizes)
        except InvalidTasks as error:
            raise StartupError(f"the tasks of {self.name} cannot be read: {error}") from error
        except Exception as error:  # a generator is user code
            raise StartupError(f"the tasks of {self.name} raised {describe(error)}") from error

    def _tools_of(self, execution: Execution) -> Tools:
        if execution.mounted is None:
            return OwnTools(execution.tools, execution.mode)
        # Listing a mounted server needs the event loop. The prototype's listing is the same.
        listed = None if self.prototype is None else self.prototype.tools
        return lambda: listed

    async def _construct(self, runner: Runner) -> MCPEnvironment:
        token = being_made.set(self._shared)
        try:
            env = await runner.run(self._factory)
        finally:
            being_made.reset(token)
        if not isinstance(env, MCPEnvironment):
            raise FactoryError(f"the factory gave a {type(env).__name__}, not an MCPEnvironment")
        return env

    async def _learn_class(self) -> None:
        """Learn the class of a plain factory from its first instance."""
        runner = OwnThread()
        env = await self._first(runner)
        self.environment_class = type(env)
        env._execution.user_code.runner = runner
        try:
            await env.close_async()
        finally:
            runner.close()

    async def _make_prototype(self) -> Prototype:
        runner = OwnThread()
        env = await self._first(runner)
        execution = env._execution
        execution.user_code.runner = runner
        try:
            listings: dict[Mode, Listing] = {}
            for mode in Mode:
                execution.mode = mode
                listings[mode] = await execution.listing()
            if execution.mounted is not None:
                await _refuse_reserved(execution.mounted)
            return Prototype(listings, self._config.mode, execution.mounted, execution.provider)
        except McpenvError as error:
            raise StartupError(f"{self.name}: {error}") from error
        finally:
            try:
                await execution.close()
            finally:
                runner.close()

    async def _first(self, runner: Runner) -> MCPEnvironment:
        try:
            return await self._construct(runner)
        except BaseException as error:
            runner.close()
            if isinstance(error, ConfigurationError) or is_no_failure(error, inline=False):
                raise
            why = error.message if isinstance(error, FactoryError) else describe(error)
            raise StartupError(f"{self.name} could not be made: {why}") from error


class PendingInstance:
    """The construction of an instance. It cannot be stopped, and continues if its caller is cancelled."""

    __slots__ = ("_limit_s", "_on_stuck", "_task", "_until")

    def __init__(
        self, work: Coroutine[Any, Any, Execution], limit_s: float, on_abandoned: Callable[[], Callable[[], None]]
    ) -> None:
        self._task = asyncio.ensure_future(work)
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s
        self._on_stuck = on_abandoned

    async def result(self) -> Execution:
        """Return the instance. Cancelling does not stop its construction.

        A cancelled caller must call again later and dispose of the instance.

        Raises:
            FactoryError: the constructor raised or took longer than a step may.
            ExecutionError: the first reset raised.
        """
        if not (await asyncio.wait({self._task}, timeout=self._until - time.monotonic()))[0]:
            gone = self._on_stuck()
            self._task.add_done_callback(lambda task: _close_late(task, gone))
            raise FactoryError(f"the environment could not be made within {self._limit_s:g} s")
        return self._task.result()


class Prototype:
    """The common properties of an environment's instances, learnt from one that was made and closed at start.

    Attributes:
        listed: the tools of the server's mode, with what only MCP clients see of them.
        tools: those tools alone.
        tools_by_mode: those of each mode.
        mounted: the author's mounted FastMCP server, for resources and prompts.
        provider: the provider of other resources and prompts. It lists; reading needs an instance.
        settings: its settings.

    Raises:
        ConfigurationError: a setting of the mounted server cannot be in force.
    """

    def __init__(
        self, listings: Mapping[Mode, Listing], mode: Mode, mounted: MountedServer | None, provider: Provider | None
    ) -> None:
        self.listed = listings[mode]
        self.tools = self.listed.tools
        self.tools_by_mode = {each: listing.tools for each, listing in listings.items()}
        self.mounted = mounted
        self.provider = provider
        self.settings = NO_SETTINGS if mounted is None else settings_of(mounted.server)

    async def listing(self) -> Listing:
        """Return the tools of the server's mode."""
        return self.listed


def _class_of(factory: Any) -> type[MCPEnvironment] | None:
    """Return the class that a factory makes, if known: of a class, a partial of one, or an annotated function."""
    while hasattr(factory, "func") and not isinstance(factory, type):
        factory = factory.func
    if isinstance(factory, type):
        if not issubclass(factory, MCPEnvironment):
            raise TypeError(f"{factory.__name__} is not a subclass of MCPEnvironment")
        return factory
    return None


async def _refuse_reserved(mounted: MountedServer) -> None:
    taken = sorted({tool.name for tool in await mounted.server.list_tools()} & RESERVED_NAMES)
    if taken:
        raise StartupError(f"tool names reserved for the orchestrator: {', '.join(taken)}")


def _close_late(making: asyncio.Task[Execution], gone: Callable[[], None]) -> None:
    if making.cancelled():
        return
    if making.exception() is not None:
        logger.warning("an environment whose client left could not be made")
        gone()
        return
    closing = asyncio.ensure_future(close_instance(making.result()))
    closing.add_done_callback(lambda task: gone())


async def close_instance(execution: Execution, reason: str = "closed") -> None:
    """Close an instance for good. Exceptions of user code are logged.

    Args:
        reason: for the record of an episode that has not come to its end.
    """
    try:
        await execution.close(reason)
    except McpenvError as error:
        logger.error("closing an environment failed: %s", error)
    finally:
        # A thread of its own ends after its queue, also if its code cannot be stopped.
        execution.user_code.runner.close()
