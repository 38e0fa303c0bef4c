"""The core, `Execution`. Every tool call of every plane goes through `Execution.call_tool`.

    lock -> state -> validate -> deadline -> run -> convert -> score -> rubric -> verify -> record

`env.step`, ``/ws``, HTTP, ``/mcp`` and stdio differ only in the encoding of requests and replies.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers import Provider
from mcp.shared.subscriptions import ToolsListChanged

from mcpenv import tracing
from mcpenv.errors import Misuse
from mcpenv.tasks.assignment import Assignment, Wanted
from mcpenv.tools.access import Listing
from mcpenv.tools.context.outputs import KeptOutputs, LongOutputs
from mcpenv.tools.context.tools import tools_for_outputs
from mcpenv.tools.registry import BOTH_MODES, Toolbox
from mcpenv_client.errors import (
    EpisodeDone,
    ExecutionError,
    SessionLost,
)
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import ListToolsObservation, Observation
from mcpenv_client.types.records import Plane, StepRecord, ToolCall
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Mode, Tool
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import EpisodeState, Event, action_type, next_state

from . import closing
from .concurrency.agent_call import AgentCall
from .concurrency.event_loop import Home
from .concurrency.lock import Lock
from .ending import end, hand_over
from .episode import Episode
from .mounted.mounted_call import run_through, visible
from .mounted.mounted_server import MountedServer
from .notifications import Ending, Subscribers
from .observations import latest, observation_of
from .observer import Observer
from .pipeline import InputRequired, Run, run_action, run_tool, take_step
from .reset import reset
from .restore import refuse_without_episodes, restore, take_snapshot
from .scoring import Scoring
from .sink import EpisodeSink
from .snapshots import Snapshot
from .step import Step, current, inside
from .user_code import UserCode, UserEnvironment

STATE_ABANDONED = "state could not be stopped"
"""The reason of an episode that was truncated because reading `state` could not be stopped."""


class Execution:
    """The core of one environment instance: its tools, its episode, and the lock that its operations hold.

    Attributes:
        env: the environment.
        environment_type: the name of its class.
        mode: the mode that decides which tools are visible.
        tools: the environment's own tools.
        mounted: the mounted FastMCP server, if any.
        user_code: runs the environment's code.
        episode: the running or last episode.
        scoring: its scoring; None before the first reset, and where there are no episodes.
        session_id: names this instance for tools that keep state.
        home: the event loop of blocking calls.
        subscribers: the subscribers to changes of tools, prompts and resources.
        lock: the lock of operations.
        sink: receives episodes that are over; None: no recording.
        observer: observes steps, episodes and resets; None: nobody does.
        traces: steps and resets make spans. Read at each reset.
        max_calls: maximum number of calls that run or wait; None: no limit.
        last_active: the time at which an operation last ended (``time.monotonic``, seconds).
    """

    __slots__ = (
        "__weakref__",
        "_told_version",
        "env",
        "environment_type",
        "episode",
        "home",
        "last_active",
        "lock",
        "max_calls",
        "mode",
        "mounted",
        "observer",
        "scoring",
        "session_id",
        "sink",
        "subscribers",
        "tools",
        "traces",
        "user_code",
    )

    def __init__(self, env: UserEnvironment) -> None:
        self.env = env
        self.environment_type = type(env).__name__
        self.mode = Mode.SIMULATION
        self.tools = Toolbox()
        self.mounted: MountedServer | None = None
        self.user_code = UserCode(self, env.THREAD_AFFINE)
        self.episode = Episode()
        self.scoring: Scoring | None = None
        self.session_id = secrets.token_hex(8)
        self.home = Home()
        self.subscribers = Subscribers()
        self.lock = Lock()
        self.sink: EpisodeSink | None = None
        self.observer: Observer | None = None
        self.traces = tracing.enabled()
        self.max_calls: int | None = None
        self.last_active = time.monotonic()
        self._told_version = 0

    @property
    def server(self) -> FastMCP | None:
        """The mounted server."""
        return None if self.mounted is None else self.mounted.server

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
        """Return the tools that this mode sees. Allowed in any state, also during a step."""
        return (await self.listing()).tools

    async def listing(self) -> Listing:
        """Return the tools that this mode sees, and the checks of the agents that may use them."""
        if self.mounted is not None:
            return await self.mounted.listing(visible(self, self.mounted))
        return self.tools.listing(self.mode)

    def keep_long_outputs(self, settings: LongOutputs) -> None:
        """Add the tools that search and page long outputs."""
        self.tools.cuts = True
        for tool in tools_for_outputs(self, settings):
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
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=await self.list_tools())
        if isinstance(action, CallToolAction):
            record = await self.call_tool(
                action.tool_name, action.arguments, plane=plane, principal=principal, timeout_s=timeout_s
            )
        else:
            record = await self.act(action, plane=plane, principal=principal, timeout_s=timeout_s)
        return observation_of(self.episode, record)

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
            principal: who asks, if that is known.
            timeout_s: seconds that the tool may take.
            episode_id: the only episode that the call is meant for; a reset may come before it has the lock.
            client: the call of the agent that asks; None for all other callers.

        Cancelling stops an async tool. A sync one cannot be stopped: the episode is truncated, and the instance does
        nothing more. `AgentCall` cancels the call of an agent only if it can be stopped.

        Raises:
            EpisodeDone: the episode is over.
            RateLimited: too many calls wait already.
            ExecutionError: the user's scoring, or an implicit reset, raised.
            InputRequired: the tool asks its client for input.
        """
        tool = self.tools.by_mode[self.mode].get(name)
        mounted = self.mounted
        run = partial(run_tool, self, tool) if mounted is None else partial(run_through, self, mounted)
        settings = None if mounted is None or tool is not None else mounted.tools.of(name, self.mode)
        terminal = tool.kind.terminal if tool is not None else settings is not None and settings.terminal
        return await self._take_step(
            name,
            arguments,
            run,
            plane,
            principal,
            timeout_s,
            shared=tool is not None and tool.kind.concurrent,
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
            OperationTimeout: it passed its deadline.
        """
        arguments = {name: value for name, value in to_plain(action, "action").items() if name != "type"}
        if not arguments["metadata"]:
            del arguments["metadata"]
        run = partial(run_action, self, action)
        return await self._take_step(action_type(type(action)), arguments, run, plane, principal, timeout_s)

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
            InvalidMessage: an option that the environment does not take, or a task that it does not have.
            ExecutionError: the user's reset raised; the environment is NEW.
            OperationTimeout: it passed its deadline.
        """
        self._refuse_inside()
        wanted = Wanted(options or {}, self.env._reset_options, type(self.env).tasks)
        return await self.begin(await self.assign(seed, wanted, timeout_s), episode_id, timeout_s=timeout_s)

    async def assign(self, seed: int | None, wanted: Wanted, timeout_s: float | None = None) -> Assignment:
        """Return the task that is wanted, read where the user's sync code runs. Holds no lock.

        Raises:
            InvalidMessage: there is none such, or its options do not fit.
            ExecutionError: the user's code that makes tasks raised.
        """
        if not wanted.any:
            return Assignment(None, seed, wanted.options)
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
        async with _Operation(self, Event.RESET):
            return await reset(self, assigned, episode_id, timeout_s, implicit=False)

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> Observation:
        """End the episode, because the agent has stopped, and score its end. Return its last observation.

        Raises:
            InvalidMessage: there is no episode yet.
            ExecutionError: scoring the end failed; the episode is over all the same.
        """
        if self.episode.state is not EpisodeState.DONE:
            async with _Operation(self, Event.END):
                await end(self, truncated, reason)
        return latest(self.episode)

    async def snapshot(self, *, timeout_s: float | None = None) -> Snapshot:
        """Return a snapshot of the episode. Changes nothing, also if it fails.

        Raises:
            NotSupported: it cannot be held.
            InvalidMessage: there is no episode yet.
            ExecutionError: user code raised.
            OperationTimeout: it passed its deadline.
        """
        refuse_without_episodes(self)
        async with _Operation(self, Event.SNAPSHOT, if_abandoned="a snapshot could not be stopped"):
            return await take_snapshot(self, timeout_s)

    async def restore(self, snapshot: Snapshot, *, timeout_s: float | None = None) -> Observation:
        """Go on from a snapshot, in a new episode that has the same steps. Return its last observation.

        Raises:
            Misuse: it is of another class or version.
            NotSupported: it does not fit this instance.
            ExecutionError: user code raised; the environment is NEW.
            OperationTimeout: it passed its deadline.
        """
        refuse_without_episodes(self)
        snapshot.check_class(type(self.env), self.env.VERSION)
        async with _Operation(self, Event.RESET, if_abandoned="a restore could not be stopped"):
            await restore(self, snapshot, timeout_s)
        return latest(self.episode)

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
            OperationTimeout: it passed its deadline.
        """
        async with _Operation(self, if_abandoned=STATE_ABANDONED):
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
            reason: for the record of an episode that has not come to its end.

        Raises:
            ExecutionError: the user's close raised; the environment is closed all the same.
        """
        if self.closed:
            return
        self._refuse_inside()
        if not self.user_code.abandoned:
            await self.lock.acquire()
            try:
                if not self.closed and not self.user_code.abandoned:
                    await closing.close(self, reason)
                    self.last_active = time.monotonic()
            finally:
                self.lock.release()
        if not self.closed:
            await closing.close_stuck(self, reason)

    @property
    def said_of_end(self) -> list[str]:
        """The reasons why the end of the episode failed verification, as sentences."""
        return [] if self.scoring is None else self.scoring.problems

    # -- inside

    async def _take_step(
        self,
        name: str,
        arguments: dict[str, Any],
        run: Run,
        plane: Plane,
        principal: str | None,
        timeout_s: float | None,
        *,
        shared: bool = False,
        terminal: bool = False,
        episode_id: str | None = None,
        client: AgentCall | None = None,
    ) -> StepRecord:
        """Take a step while holding the lock. Reset an environment that is NEW with defaults.

        Args:
            shared: True if other shared steps may run at the same time.
            terminal: True if the step ends the episode if it succeeds.

        Raises:
            EpisodeDone: the episode is over, or is not ``episode_id``.
        """
        shared = shared or (self.env.CONCURRENT_CALLS and not self.episode.orchestrated)
        async with _Operation(self, Event.STEP, shared=shared, limit=self.max_calls):
            episode = self.episode
            if episode_id is not None and episode_id != episode.id:
                raise EpisodeDone("The episode is over.")
            if episode.state is EpisodeState.NEW:
                await reset(self, Assignment(None, None, {}), None, None, implicit=True)
            if self.scoring is not None and self.scoring.ended:
                raise EpisodeDone("the episode is over, reset to begin another")
            call = ToolCall(name, arguments, episode.count_step(), plane, principal)
            step = Step(self, call, episode.kept, timeout_s, client, terminal)
            return await take_step(self, step, run)

    def _after_operation(self) -> None:
        self.last_active = time.monotonic()
        # Concurrent steps are all part of the episode: it is complete with the last of them.
        if self.episode.state is EpisodeState.DONE and self.lock.holders == 1:
            hand_over(self)
        if self.tools.version != self._told_version:
            self._told_version = self.tools.version
            self.subscribers.tell(ToolsListChanged())

    def _refuse_inside(self) -> None:
        if current.get() is not None and inside(self):
            raise Misuse(
                "this environment is in the middle of a step: its own tools and reset cannot step, reset or close it; "
                "call the function itself"
            )

    def _refuse_abandoned(self, event: Event) -> None:
        if self.user_code.abandoned:
            if self.episode.state is not EpisodeState.NEW:
                next_state(self.episode.state, event)
            incident = self.user_code.incident
            raise ExecutionError(
                f"code that could not be stopped still runs in this environment (incident {incident}); "
                "begin with a new one",
                incident=incident,
            )


class _Operation:
    """The context of one operation: holds the lock, and can be cancelled by `Execution.stop`.

    Args:
        event: of the episode's state table.
        shared: other shared operations may run at the same time.
        limit: maximum number of operations that run or wait; None: no limit.
        if_abandoned: the reason why the episode is truncated if the operation's code cannot be stopped.

    Raises:
        Misuse: the caller is code of this environment.
        RateLimited: there are as many already.
        SessionLost: the session ends.
        ExecutionError: code that could not be stopped still runs here.
    """

    __slots__ = ("_event", "_execution", "_hold", "_if_abandoned", "_limit", "_shared")

    def __init__(
        self,
        execution: Execution,
        event: Event = Event.STEP,
        *,
        shared: bool = False,
        limit: int | None = None,
        if_abandoned: str | None = None,
    ) -> None:
        self._execution = execution
        self._event = event
        self._shared = shared
        self._limit = limit
        self._if_abandoned = if_abandoned

    async def __aenter__(self) -> None:
        execution = self._execution
        execution._refuse_inside()
        execution._refuse_abandoned(self._event)
        hold = await execution.lock.hold(shared=self._shared, limit=self._limit)
        if execution.user_code.abandoned:  # while this one waited
            with hold:
                execution._refuse_abandoned(self._event)
        self._hold = hold

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        execution = self._execution
        try:
            if self._if_abandoned is not None and execution.user_code.abandoned:
                execution.episode.cut_short(self._if_abandoned)
            execution._after_operation()
        finally:
            self._hold.__exit__(kind, error, trace)


__all__ = ["Execution", "InputRequired"]
