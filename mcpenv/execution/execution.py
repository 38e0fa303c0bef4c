"""The operations of one environment instance, `Execution`. Every call of every plane goes through it.

`env.step`, ``/ws``, HTTP, ``/mcp`` and stdio differ only in the encoding of requests and replies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastmcp.server.providers import Provider

from mcpenv.tasks.assignment import Assignment, Wanted, checked_id
from mcpenv.tools.access import Listing
from mcpenv.tools.outputs import KeptOutputs, OutputPolicy
from mcpenv.tools.registry import BOTH_MODES
from mcpenv_client.errors import SessionLost
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import ListToolsObservation, Observation
from mcpenv_client.types.records import Plane, StepRecord
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import read_json, to_plain, to_recorded, write_json
from mcpenv_client.wire.protocol import EpisodeState, Event, action_type, next_state

from . import closing
from .current_step import Step, current
from .ending import end
from .instance import Instance
from .mounted.mounted_call import run_through, visible
from .notifications import Ending
from .reset import reset
from .restore import refuse_without_episodes, restore, take_snapshot
from .snapshots import Snapshot
from .step import Run, admit, refuse_inside, run_action, settle, step
from .tool_call import run_tool

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

STATE_ABANDONED = "state could not be stopped"
"""The reason of an episode that was truncated because reading `state` could not be stopped."""

_SCALARS = frozenset({bool, int, type(None)})


def as_sent(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of arguments as the reader of their JSON text has them. Of plain scalars no text is made.

    Raises:
        ValueError, TypeError: as `write_json` and `read_json`, without the name of the field.
    """
    for name, value in arguments.items():
        scalar = type(value) in _SCALARS or (type(value) is str and value.isascii())
        if not scalar or type(name) is not str or not name.isascii():
            return read_json(write_json(arguments))  # type: ignore[no-any-return]
    return {**arguments}


class Execution(Instance):
    """An environment instance with its operations. They run one after the other, except for concurrent tools."""

    __slots__ = ()

    @property
    def provider(self) -> Provider | None:
        """The provider of the environment's own resources and prompts.

        Raises:
            SessionLost: the environment is closed.
        """
        return self.env.mcp_provider

    @property
    def closed(self) -> bool:
        """True if the instance is closed."""
        return self.episode.state is EpisodeState.CLOSED

    @property
    def busy(self) -> bool:
        """True if an operation holds the lock or waits for it."""
        return self.lock.locked

    async def wait_idle(self) -> None:
        """Return once the operations that hold the lock have ended."""
        await self.lock.acquire()
        self.lock.release()

    # -- tools

    async def list_tools(self) -> list[Tool]:
        """Return the tools that are visible in this mode. Allowed in any state, even during a step."""
        return (await self.listing()).tools

    async def listing(self) -> Listing:
        """Return the tools that are visible in this mode, with the checks of agents."""
        if self.mounted is not None:
            return await self.mounted.listing(visible(self, self.mounted))
        return self.tools.listing(self.mode)

    def keep_long_outputs(self, policy: OutputPolicy) -> None:
        """Add the tools that search and page long outputs."""
        self.tools.cuts = True
        for tool in policy.tools(self):
            self.tools.add(tool, BOTH_MODES)

    def kept_outputs(self) -> tuple[KeptOutputs, str | None]:
        """Return the outputs of the running episode, and the authenticated caller of the running step."""
        step = current.get()
        return self.episode.outputs, step.call.principal if isinstance(step, Step) else None

    # -- steps

    async def step(
        self,
        action: Action,
        *,
        plane: Plane = Plane.PROCESS,
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> Observation:
        """Take an action: call a tool, list the tools, or take an action of the environment's own.

        Raises:
            as `call_tool` and `act`.
        """
        if isinstance(action, CallToolAction):
            try:
                # A copy, because a caller in process may change the arguments, and values that need not be JSON.
                arguments = as_sent(action.arguments)
            except (ValueError, TypeError):
                to_recorded(action.arguments, "arguments")  # raises, and names the field
                raise
            record = await self.call_tool(
                action.tool_name, arguments, plane=plane, principal=principal, timeout_s=timeout_s
            )
        elif isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=await self.list_tools())
        else:
            record = await self.act(action, plane=plane, principal=principal, timeout_s=timeout_s)
        return self.episode.observation_of(record)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        plane: Plane = Plane.PROCESS,
        principal: str | None = None,
        timeout_s: float | None = None,
        episode_id: str | None = None,
        client: AgentCall | None = None,
    ) -> StepRecord:
        """Call a tool, which is one step. A tool's failure is data in the record.

        Args:
            name: the tool.
            arguments: the JSON as sent.
            plane: where the call came from.
            principal: the authenticated caller, if known.
            timeout_s: seconds that the tool may take.
            episode_id: the only episode that the call may act on. A reset may acquire the lock before the call.
            client: the agent's call, which may outlive its client; None for all other callers.

        Cancelling stops an async tool. A sync tool cannot be stopped: the episode is truncated, and the instance
        refuses further operations. `AgentCall` cancels the call of an agent only if it can be stopped.

        Raises:
            EpisodeDone: the episode is over.
            RateLimited: too many calls wait already.
            ExecutionError: the user's scoring, or an implicit reset, raised.
            InputRequired: the tool asks its client for input.
        """
        tool, mounted = self.tools.by_mode[self.mode].get(name), self.mounted
        shared = terminal = False
        if tool is not None:
            shared, terminal = tool.kind.concurrent, tool.kind.terminal
        run: Run
        if mounted is None:
            # An async `score` runs on the loop, after the tool; a sync one runs in the tool's thread.
            run = partial(run_tool, self, tool, self.episode.orchestrated and not self.hooks.score_is_async)
        else:
            run = partial(run_through, self, mounted)
            settings = None if tool is not None else mounted.tools.of(name, self.mode)
            terminal = terminal or (settings is not None and settings.terminal)
        return await step(
            self,
            name,
            arguments,
            run,
            plane=plane,
            principal=principal,
            timeout_s=timeout_s,
            shared=shared,
            terminal=terminal,
            episode_id=episode_id,
            client=client,
        )

    async def act(
        self,
        action: Action,
        *,
        plane: Plane = Plane.PROCESS,
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> StepRecord:
        """Take an action of the environment's own, which is one step.

        Raises:
            EpisodeDone: the episode is over.
            RateLimited: too many calls wait already.
            ExecutionError: the action or its scoring raised.
            OperationTimeout: the action passed its deadline.
        """
        arguments = {name: value for name, value in to_plain(action, "action").items() if name != "type"}
        if not arguments["metadata"]:
            del arguments["metadata"]
        return await step(
            self,
            action_type(type(action)),
            arguments,
            partial(run_action, self, action),
            plane=plane,
            principal=principal,
            timeout_s=timeout_s,
        )

    # -- the episode

    async def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Observation:
        """Begin an episode: assign id and count 0, then run the user's reset once.

        Raises:
            InvalidMessage: an id that is none, an option that the environment does not take, or a task that it lacks.
            ExecutionError: the user's reset raised; the environment is NEW.
            OperationTimeout: the reset passed its deadline.
        """
        refuse_inside(self)
        episode_id, wanted = checked_id(episode_id), Wanted(options or {}, self.hooks.options, self.tasks)
        return await self.begin(await self.assign(seed, wanted, timeout_s), episode_id, timeout_s=timeout_s)

    async def assign(self, seed: int | None, wanted: Wanted, timeout_s: float | None = None) -> Assignment:
        """Return the assignment for the requested task. Reads tasks as sync user code, without the lock.

        Raises:
            InvalidMessage: there is no such task, or its options do not fit.
            ExecutionError: the user's code that makes tasks raised.
        """
        if wanted.assigned is not None:
            return wanted.assigned
        if not wanted.any:
            return wanted.found(seed)
        assigned: Assignment = await self.user_code.stage(
            "tasks", lambda: self.user_code.beside(wanted.found, seed), timeout_s
        )
        return assigned

    async def begin(
        self, assigned: Assignment, episode_id: str | None = None, *, timeout_s: float | None = None
    ) -> Observation:
        """Begin an episode with the task that `assign` returned.

        Raises:
            as `reset`.
        """
        async with self._operation(Event.RESET):
            return await reset(self, assigned, episode_id, timeout_s, implicit=False)

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """End the episode because the agent has stopped, and score the end. Return the last observation.

        Raises:
            InvalidMessage: there is no episode yet.
            ExecutionError: scoring the end failed; the episode is over regardless.
        """
        # A step may have ended the episode already: then answer without the lock.
        if self.episode.state is not EpisodeState.DONE:
            async with self._operation(Event.END):
                await end(self, truncated, reason)
                if self.journal is not None:
                    await self.journal.ended(self.episode.latest())
        return self.episode.latest()

    async def snapshot(self, *, timeout_s: float | None = None) -> Snapshot:
        """Return a snapshot of the episode. Changes nothing, even on failure.

        Raises:
            NotSupported: a part of the episode cannot be saved.
            InvalidMessage: there is no episode yet.
            ExecutionError: user code raised.
            OperationTimeout: user code passed its deadline.
        """
        refuse_without_episodes(self)
        async with self._operation(Event.SNAPSHOT, if_abandoned="a snapshot could not be stopped"):
            return await take_snapshot(self, timeout_s)

    async def restore(self, snapshot: Snapshot, *, timeout_s: float | None = None, same: bool = False) -> Observation:
        """Continue a snapshot's episode in a new episode with the same steps. Return its last observation.

        Args:
            same: continue under its own id an episode that another server had.

        Raises:
            Misuse: the snapshot is of another class or version.
            NotSupported: the snapshot does not fit this instance.
            ExecutionError: user code raised; the environment is NEW.
            OperationTimeout: user code passed its deadline.
        """
        refuse_without_episodes(self)
        snapshot.check_class(type(self.env), self.env.VERSION)
        async with self._operation(Event.RESET, if_abandoned="a restore could not be stopped"):
            await restore(self, snapshot, timeout_s, same)
        return self.episode.latest()

    async def wait(self, timeout_s: float | None = None, *, episode_id: str | None = None) -> bool:
        """Return when the running episode is over (True), or after ``timeout_s`` seconds (False). Holds no lock.

        Args:
            timeout_s: seconds, None for no limit.
            episode_id: the episode that ran when the caller asked.

        Raises:
            SessionLost: a reset began another episode, or the environment was closed.
        """
        if episode_id is not None and episode_id != self.episode.id:
            raise SessionLost("a reset began another episode")
        if self.episode.state is EpisodeState.DONE:
            return True
        if self.closed:
            raise SessionLost("the environment is closed")
        ending = await self.episode.watchers.ending(timeout_s)
        if ending is Ending.SUPERSEDED:
            raise SessionLost("a reset began another episode")
        if ending is Ending.CLOSED:
            raise SessionLost("the environment was closed")
        return ending is Ending.DONE

    async def read_state(self, *, timeout_s: float | None = None) -> State:
        """Return the environment's `state`, read while holding the lock.

        Raises:
            ExecutionError: the user's property raised.
            OperationTimeout: the user's property passed its deadline.
        """
        async with self._operation(Event.STEP, if_abandoned=STATE_ABANDONED):
            if self.closed:
                next_state(self.episode.state, Event.STEP)
            state = await self.user_code.stage("state", lambda: self.user_code.call(lambda: self.env.state), timeout_s)
            assert isinstance(state, State)
            return state

    def stop(self) -> None:
        """Cancel the operations in flight and refuse further ones: their callers get `SessionLost`.

        Call it on the event loop that runs them, before `close`.
        """
        self.lock.stop()

    async def close(self, reason: str = "closed") -> None:
        """Run the user's close once; later calls do nothing.

        Args:
            reason: for the record of an episode that has not ended.

        Raises:
            ExecutionError: the user's close raised; the environment is closed regardless.
        """
        if self.closed:
            return
        refuse_inside(self)
        if not self.user_code.abandoned:
            # Not `hold`, which is refused after `stop`, and which `stop` would cancel.
            await self.lock.acquire()
            try:
                # Meanwhile another close may have run, or the code of an operation may have been abandoned.
                if not self.closed and not self.user_code.abandoned:
                    await closing.close(self, reason)
                    self.last_active = time.monotonic()
            finally:
                self.lock.release()
        if not self.closed:  # the instance runs abandoned code, so `close` must wait for it
            await closing.close_stuck(self, reason)

    @property
    def said_of_end(self) -> list[str]:
        """The reasons why the end of the episode failed verification, as sentences."""
        return [] if self.scoring is None else self.scoring.problems

    # -- inside

    @asynccontextmanager
    async def _operation(self, event: Event, if_abandoned: str | None = None) -> AsyncIterator[None]:
        """Hold the lock for an operation that is not a step. `stop` cancels it.

        Args:
            event: of the episode's state table.
            if_abandoned: the reason why the episode is truncated if the operation's code cannot be stopped.

        Raises:
            as `step`.
        """
        admit(self, event)
        with await self.lock.hold():
            if self.user_code.abandoned:  # while this operation waited
                admit(self, event)
            try:
                yield
            finally:
                # Before `settle`, which passes on an episode that is over.
                if if_abandoned is not None and self.user_code.abandoned:
                    self.episode.cut_short(if_abandoned)
                self.last_active = time.monotonic()
                if self.episode.state is EpisodeState.DONE or self.tools.version != self.told_version:
                    settle(self)


class AgentCall:
    """The call of an agent, in a task of its own that may outlive its client.

    Cancelling `result` cancels a call that waits for the lock, or runs an async tool in an episode without a journal.
    Any other call cannot be stopped: it runs to its end in the background, and is scored and recorded once. So a client
    that disconnects cannot leave the world of other clients half changed.

    Attributes:
        stoppable: False while sync code runs in a thread, after the tool has returned, and in a step with a journal.
    """

    __slots__ = ("_task", "stoppable")

    def __init__(self) -> None:
        self.stoppable = True

    async def result(self, call: Coroutine[Any, Any, T]) -> T:
        """Run ``call`` and return its result."""
        task = asyncio.ensure_future(call)
        try:
            # Shielded: the cancellation of this coroutine must not reach a call that cannot be stopped.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            if self.stoppable:
                task.cancel()
                # Until it has released the lock and its step is recorded. `wait` does not raise its exception.
                await asyncio.wait([task])
            else:
                logger.info("a client left during a call that cannot be stopped; the call runs to its end")
                _OUTLIVING.add(task)
                task.add_done_callback(_ended)
            raise


_OUTLIVING: set[asyncio.Task[Any]] = set()
"""The calls that have outlived their clients. A loop refers to its tasks only weakly."""


def _ended(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not report it. The record contains the step."""
    _OUTLIVING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a call whose client had left ended with %s", type(error).__name__)
