"""Hold the environment under test, its settings, and the traces of its walks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.concurrency.event_loop import BlockingRunner
from mcpenv.execution.concurrency.threads import OwnThread
from mcpenv_client.errors import InvalidMessage, WireError
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.tools import Mode, Tool

from .arguments import arguments_for
from .findings import ContractViolation
from .walk import Served, Trace, error_text

T = TypeVar("T")

PASS_FACTORY = "or pass a factory that fills them in"
"""The second remedy of a constructor that needs arguments; a caller with other options replaces it."""


@dataclass
class Subject:
    """The environment under test, with the arguments of `check_environment`."""

    factory: Callable[[], MCPEnvironment]
    examples: Mapping[str, Mapping[str, Any]]
    actions: Sequence[Action]
    reset_options: Mapping[str, Any]
    seed: int
    deterministic: bool
    block_limit_s: float
    call_timeout_s: float

    @property
    def name(self) -> str:
        """The name of the class or function that makes the environment."""
        return getattr(self.factory, "__name__", type(self.factory).__name__)

    def make(self) -> MCPEnvironment:
        """Return a new instance.

        Raises:
            ContractViolation: if no instance can be made.
        """
        try:
            env = self.factory()
        except Exception as error:
            not_called = isinstance(error, TypeError) and getattr(error.__traceback__, "tb_next", None) is None
            remedy = f"Give every constructor argument a default, {PASS_FACTORY}" if not_called else ""
            raise ContractViolation(f"{self.name}() failed: {error_text(error)}", remedy) from error
        if not isinstance(env, MCPEnvironment):
            raise ContractViolation(f"{self.name}() returned a {type(env).__name__}, not an MCPEnvironment")
        env._execution.played_by_agents = False
        return env

    @contextmanager
    def instance(self) -> Iterator[MCPEnvironment]:
        """Yield a new instance for use in process, and close it. Async code has a deadline, sync code has none."""
        env = self.make()
        env._execution.user_code.deadline_s = self.call_timeout_s
        try:
            yield env
        finally:
            with suppress(WireError):  # the check of close covers this
                env.close()

    def reset(self, env: MCPEnvironment) -> Any:
        """Reset an instance with the subject's seed and options."""
        return env.reset(self.seed, **self.reset_options)

    @functools.cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which the environment can be used. Production requires defaults for all reset options."""
        refused = isinstance(self._listings[Mode.PRODUCTION][0].error, InvalidMessage)
        return (Mode.SIMULATION,) if refused else tuple(Mode)

    @functools.cached_property
    def tools(self) -> dict[Mode, list[Tool]]:
        """The tools of each mode, as listed after a reset."""
        return {mode: self._listings[mode][1] for mode in self.modes}

    @functools.cached_property
    def _listings(self) -> dict[Mode, tuple[Trace, list[Tool]]]:
        return {mode: run(self._reset_and_list(mode)) for mode in (Mode.PRODUCTION, Mode.SIMULATION)}

    @property
    def all_tools(self) -> list[Tool]:
        """The tools of all modes; a tool of both modes occurs twice."""
        return [tool for mode in self.modes for tool in self.tools[mode]]

    def arguments(self, tool: Tool) -> dict[str, Any] | None:
        """Return the example for a tool, or else arguments made from its schema; None if none can be made."""
        return dict(self.examples[tool.name]) if tool.name in self.examples else arguments_for(tool.input_schema)

    @functools.cached_property
    def walk(self) -> list[Trace]:
        """The traces of a reset, every simulation tool, every own action, state and close, in one thread."""
        return self.walk_anew(Mode.SIMULATION)

    @functools.cached_property
    def production_walk(self) -> list[Trace]:
        """The traces in production, without own actions."""
        return self.walk_anew(Mode.PRODUCTION) if Mode.PRODUCTION in self.modes else []

    def walk_anew(self, mode: Mode, threads: int = 1) -> list[Trace]:
        """Make the same calls again on a new instance, with sync code alternating between ``threads`` threads."""
        return run(self._walk_through(mode, self._script(mode), threads))

    def actions_of(self, mode: Mode) -> list[Action]:
        """Return one call of each tool, and in simulation the own actions."""
        return [action for _, action in self._script(mode)]

    def served(self, mode: Mode, threads: int = 1) -> Served:
        """Return an instance that runs as on a server; `Served.open` makes it."""
        return Served(
            mode,
            tuple(OwnThread() for _ in range(threads)),
            seed=self.seed,
            reset_options=self.reset_options,
            call_timeout_s=self.call_timeout_s,
            block_limit_s=self.block_limit_s,
        )

    async def _reset_and_list(self, mode: Mode) -> tuple[Trace, list[Tool]]:
        """Return a reset, and the tools that are listed after it: they may depend on it."""
        served = self.served(mode)
        try:
            await served.open(self.make)
            trace = await served.reset()
            # A mode that needs options for a reset is not judged, and lists nothing.
            refused = mode is Mode.PRODUCTION and isinstance(trace.error, InvalidMessage)
            tools = [] if refused else await served.execution.list_tools()
            await served.close()
            return trace, tools
        finally:
            served.end_threads()

    async def _walk_through(self, mode: Mode, script: list[tuple[str, Action]], threads: int) -> list[Trace]:
        served = self.served(mode, threads)
        try:
            await served.open(self.make)
            traces = [await served.reset()]
            for label, action in script:
                if traces[-1].ended:
                    traces.append(await served.reset())
                traces.append(await served.step(action, label))
            return [*traces, await served.state(), await served.close()]
        finally:
            served.end_threads()

    def _script(self, mode: Mode) -> list[tuple[str, Action]]:
        script: list[tuple[str, Action]] = []
        for tool in self.tools[mode]:
            arguments = self.arguments(tool)
            if arguments is not None:
                script.append((tool.name, CallToolAction(tool_name=tool.name, arguments=arguments)))
        own = [(type(action).__name__, action) for action in self.actions]
        return script + own if mode is Mode.SIMULATION else script


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine. Also works inside a running event loop."""
    return BlockingRunner().run(coroutine)
