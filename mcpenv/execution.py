"""The one execution core: every tool call of every plane goes through `Execution.call_tool`.

    turn -> state -> validate -> deadline -> run -> convert -> score -> rubric -> verify -> record

`env.step`, ``/ws``, HTTP, ``/mcp`` and stdio differ only in how they spell what goes in and comes out.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from mcp.shared.subscriptions import ToolsListChanged

from mcpenv_client.actions import Action
from mcpenv_client.errors import (
    EpisodeDone,
    ErrorCode,
    ExecutionError,
    InvalidMessage,
    NotSupported,
    RateLimited,
    SessionLost,
    WireError,
)
from mcpenv_client.observations import Observation
from mcpenv_client.records import Plane, Reward, StepRecord, call_made
from mcpenv_client.state import State
from mcpenv_client.tools import Mode, Tool
from mcpenv_client.values import to_plain
from mcpenv_client.wire import EpisodeState, Event, action_type, next_state

from .admission import Listing
from .assignment import Assignment, Wanted
from .author import Author
from .cancellation import score_regardless
from .errors import Misuse
from .failures import environment_failure
from .judging import Judging
from .loops import NoLoop
from .rewards import Finish, reward_of
from .snapshots import Snapshot
from .snapshots.work import Put, hold
from .step import Step, current, inside
from .stepping import Run, Stepping
from .tool_run import InputRequired
from .toolbox import BoundTool
from .turn import Turn
from .watch import Ending

_STEP, _RUNNING, _DONE = Event.STEP, EpisodeState.RUNNING, EpisodeState.DONE
_AGENT = Plane.AGENT
# Names of their own: to look a member up in its class costs a quarter of a microsecond.

STUCK = "state could not be stopped"
"""Why an episode ended in which the orchestrator asked for a state that never came."""


class Execution(Stepping):
    """One environment instance at work: whose turn it is, its episode, its steps.

    Attributes:
        max_calls: how many may be under way or wait; None: any number.
        last_active: when something last ended here (``time.monotonic``, seconds).
    """

    __slots__ = ("_told_version", "_turn", "last_active", "max_calls")

    def __init__(self, env: Author) -> None:
        super().__init__(env)
        self._told_version = 0
        self.last_active = time.monotonic()
        self.max_calls: int | None = None
        self._turn = Turn()

    @property
    def closed(self) -> bool:
        """Whether the instance is closed."""
        return self.episode.state is EpisodeState.CLOSED

    @property
    def busy(self) -> bool:
        """Whether something is under way or waits for its turn."""
        return self._turn.taken

    async def wait_idle(self) -> None:
        """Return once what is under way has ended."""
        await self._turn.take()
        self._turn.give()

    # -- tools

    async def list_tools(self) -> list[Tool]:
        """The tools that this mode sees. Takes no turn: allowed in any state, also during a step."""
        return (await self.listing()).tools

    async def listing(self) -> Listing:
        """The same, with who may use them."""
        if self.handed_in is not None:
            return await self.handed_in.listing(self._visible)
        return self.tools.listing(self.mode)

    # -- steps

    def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        plane: Plane = Plane.PROCESS,
        principal: str | None = None,
        timeout_s: float | None = None,
        episode_id: str | None = None,
    ) -> Coroutine[Any, Any, StepRecord]:
        """Call a tool: one step, whatever comes of it. A tool's failure is data in the record.

        Args:
            name: the tool.
            arguments: the JSON as sent.
            plane: where the call came from.
            principal: who asks, if that is known.
            timeout_s: seconds that the tool may take.
            episode_id: the only episode that the call is meant for; a reset may come before its turn.

        Cancelling stops an async tool. A sync one cannot be stopped: the episode is truncated, and the instance does
        nothing more.

        Raises:
            EpisodeDone: the episode is over.
            RateLimited: too many calls wait already.
            ExecutionError: the author's scoring, or an implicit reset, raised.
            InputRequired: the tool asks its client for input.
        """
        if plane is _AGENT and self.episode.orchestrated:
            return score_regardless(partial(self._call_tool, name, arguments, plane, principal, timeout_s, episode_id))
        return self._call_tool(name, arguments, plane, principal, timeout_s, episode_id)

    async def act(
        self,
        action: Action,
        *,
        plane: Plane = Plane.PROCESS,
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[StepRecord, Observation]:
        """Take an action of the environment's own: one step.

        Raises:
            EpisodeDone: the episode is over.
            RateLimited: too many calls wait already.
            ExecutionError: the action or its scoring raised.
            OperationTimeout: it passed its deadline.
        """
        arguments = {name: value for name, value in to_plain(action, "action").items() if name != "type"}
        if not arguments["metadata"]:
            del arguments["metadata"]
        if self.max_calls is not None:
            self._refuse_crowd(self.max_calls)
        await self._take_turn()
        try:
            if not self._may_step:
                with self._in_flight.call():
                    await self._begin_step()
            record = await self._begun(
                None, action_type(type(action)), arguments, self._run_of_action(action), plane, principal, timeout_s
            )
        finally:
            self._give_turn()
        observation = record.outcome.value
        assert isinstance(observation, Observation)
        return record, observation

    # -- the episode

    async def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Observation:
        """Begin an episode: id and count first, then the author's body, once.

        Raises:
            InvalidMessage: an option that the environment does not take, or a task that it does not have.
            ExecutionError: the author's reset raised; the environment is NEW.
            OperationTimeout: it passed its deadline.
        """
        self._refuse_inside()
        wanted = Wanted(options or {}, self.env._reset_options, type(self.env).tasks)
        return await self.begin(await self.assign(seed, wanted, timeout_s), episode_id, timeout_s=timeout_s)

    async def assign(self, seed: int | None, wanted: Wanted, timeout_s: float | None = None) -> Assignment:
        """The task that is wanted, read where the author's sync code runs. Takes no turn.

        Raises:
            InvalidMessage: there is none such, or its options do not fit.
            ExecutionError: the author's code that makes tasks raised.
        """
        if not wanted.any:
            return Assignment(None, seed, wanted.options)
        assigned: Assignment = await self.author.stage(
            "tasks", lambda: self.author.beside(wanted.found, seed), timeout_s
        )
        return assigned

    async def begin(
        self, assigned: Assignment, episode_id: str | None = None, *, timeout_s: float | None = None
    ) -> Observation:
        """`reset` with what `assign` gave.

        Raises:
            as `reset`.
        """
        await self._take_turn(event=Event.RESET)
        try:
            with self._in_flight.call():
                return await self._reset(assigned, episode_id, timeout_s, implicit=False)
        finally:
            self._give_turn()

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> None:
        """The agent has stopped: the orchestrator ends the episode, and its end is judged. Nothing, if it is over.

        Raises:
            InvalidMessage: there is no episode yet.
            ExecutionError: judging the end failed; the episode is over all the same.
        """
        if self.episode.state is EpisodeState.DONE:
            return
        await self._take_turn(event=Event.END)
        try:
            with self._in_flight.call():
                await self._end(truncated, reason)
        finally:
            self._give_turn()

    async def snapshot(self, *, timeout_s: float | None = None) -> Snapshot:
        """Hold the episode as it stands. Changes nothing, whatever comes of it.

        Raises:
            NotSupported: it cannot be held.
            InvalidMessage: there is no episode yet.
            ExecutionError: the author's code raised.
            OperationTimeout: it passed its deadline.
        """
        self._refuse_without_episodes()
        await self._take_turn(event=Event.SNAPSHOT)
        try:
            with self._in_flight.call():
                return await self._hold(timeout_s)
        finally:
            if self.author.stuck:
                self.episode.cut_short("a snapshot could not be stopped")
            self._give_turn()

    async def restore(self, snapshot: Snapshot, *, timeout_s: float | None = None) -> None:
        """Go on from a snapshot, in a new episode that has the same steps.

        Raises:
            Misuse: it is of another class or version.
            NotSupported: it does not fit this instance.
            ExecutionError: the author's code raised; the environment is NEW.
            OperationTimeout: it passed its deadline.
        """
        self._refuse_without_episodes()
        snapshot.check_class(type(self.env), self.env.VERSION)
        await self._take_turn(event=Event.RESET)
        try:
            with self._in_flight.call():
                await self._restore(snapshot, timeout_s)
        finally:
            if self.author.stuck:
                self.episode.cut_short("a restore could not be stopped")
            self._give_turn()

    async def wait(self, timeout_s: float | None = None, *, episode_id: str | None = None) -> bool:
        """Return when the running episode is over (True), or after ``timeout_s`` seconds (False). Takes no turn.

        Args:
            timeout_s: seconds, None for no limit.
            episode_id: the episode that was running when somebody asked.

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
        """The author's `state`, in turn with the steps.

        Raises:
            ExecutionError: the author's property raised.
            OperationTimeout: it passed its deadline.
        """
        await self._take_turn()
        try:
            if self.episode.state is EpisodeState.CLOSED:
                next_state(self.episode.state, Event.STEP)
            with self._in_flight.call():
                return await self._read_state(timeout_s)
        finally:
            if self.author.stuck:
                self.episode.cut_short(STUCK)
            self._give_turn()

    def stop(self) -> None:
        """Stop what is under way or waits for its turn: its session ends. Who asked gets `SessionLost`.

        From the event loop that drives it all; `close` follows.
        """
        self._in_flight.stop()

    async def close(self, reason: str = "closed") -> None:
        """Run the author's close once; later calls do nothing.

        Args:
            reason: for the record of an episode that has not come to its end.

        Raises:
            ExecutionError: the author's close raised; the environment is closed all the same.
        """
        if self.closed:
            return
        self._refuse_inside()
        if not self.author.stuck:
            await self._turn.take()
            try:
                if self.closed:
                    return
                if not self.author.stuck:
                    await self._close_in_turn(reason)
                    return
            finally:
                self._give_turn()
        if self.closed:
            return
        self._close_episode(reason)
        loop = None if self.author.runner.inline else asyncio.get_running_loop()
        # While its thread is in the author's code, close follows there when it returns.
        if not self.author.when_returned(lambda: self._close_late(loop)):
            await self._close_in_turn(reason)

    def finish(self, reward: Any, truncated: bool, reason: str | None) -> None:
        """`MCPEnvironment.finish`.

        Raises:
            Misuse: outside a step and a reset of this environment.
            ExecutionError: the reward is no finite number; the step fails with it, whatever the tool makes of it.
        """
        now = current.get()
        step = now if isinstance(now, Step) and now.owner is self else None
        in_reset = now is self and self.episode.state is EpisodeState.NEW
        if (step is None or step.settled) and not in_reset:
            raise Misuse("finish() has a meaning only inside a tool, score, act or reset of its environment")
        try:
            said = Finish(reward_of(reward), truncated, reason)
        except (TypeError, ValueError) as error:
            failure = environment_failure("finish", error)
            failure.__cause__ = error
            if step is not None:
                step.fault = step.fault or failure
            raise failure from error
        if step is not None:
            step.finish = step.finish or said
        else:
            self.episode.reset_finish = self.episode.reset_finish or said

    @property
    def said_of_end(self) -> list[str]:
        """Why the end of the episode was verified to be worth no more, as sentences."""
        return [] if self._judging is None else self._judging.said

    # -- inside

    def _refuse_crowd(self, most: int) -> None:
        if len(self._turn) >= most:
            raise RateLimited(f"{most} calls are under way or wait their turn; no more are taken")

    async def _take_turn(self, event: Event = Event.STEP) -> None:
        if not self._takes_turn(False, event):
            await self._wait_turn(False, event)

    def _takes_turn(self, shared: bool, event: Event) -> bool:
        """Take the turn if nobody has it."""
        if current.get() is not None:
            self._refuse_inside()
        if self._in_flight.stopped or self.author.stuck:
            self._refuse_at_the_end(event)
        return self._turn.try_take(shared)

    async def _wait_turn(self, shared: bool, event: Event) -> None:
        await self._turn.take(shared)
        try:
            self._refuse_at_the_end(event)
        except BaseException:
            self._turn.give(shared)
            raise

    def _refuse_inside(self) -> None:
        if inside(self):
            raise Misuse(
                "this environment is in the middle of a step: its own tools and reset cannot step, reset or close it; "
                "call the function itself"
            )

    def _refuse_at_the_end(self, event: Event) -> None:
        if self._in_flight.stopped:
            raise SessionLost("the session was closed")
        if self.author.stuck:
            if self.episode.state is not EpisodeState.NEW:
                next_state(self.episode.state, event)
            raise ExecutionError("code that could not be stopped still runs in this environment; begin with a new one")

    async def _call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        plane: Plane,
        principal: str | None,
        timeout_s: float | None,
        episode_id: str | None,
        on_ran: Callable[[], None] | None = None,
    ) -> StepRecord:
        tool = self.tools.get(self.mode, name)
        # Own tools that say so run together, and all of them where there are no episodes.
        shared = (tool is not None and tool.kind.concurrent) or (
            not self.episode.orchestrated and self.env.CONCURRENT_CALLS
        )
        if self.max_calls is not None and self._turn.holders:
            self._refuse_crowd(self.max_calls)
        if not self._takes_turn(shared, _STEP):
            await self._wait_turn(shared, _STEP)
        try:
            if episode_id is not None and episode_id != self.episode.id:
                raise EpisodeDone("The episode is over.")
            if not self._may_step:
                with self._in_flight.call():
                    await self._begin_step()
            return await self._begun(tool, name, arguments, self._run_of(tool), plane, principal, timeout_s, on_ran)
        finally:
            self._give_turn(shared)

    async def _begun(
        self,
        tool: BoundTool | None,
        name: str,
        arguments: dict[str, Any],
        run: Run,
        plane: Plane,
        principal: str | None,
        timeout_s: float | None,
        on_ran: Callable[[], None] | None = None,
    ) -> StepRecord:
        """Count and take the step while holding the turn."""
        self.episode.count_step()
        call = call_made(name, arguments, self.episode.step_count, plane, principal)
        step = Step(self, call, self.episode.kept, timeout_s)
        with self._in_flight.call():
            return await self._step(step, run, tool, on_ran)

    async def _hold(self, timeout_s: float | None) -> Snapshot:
        if self.episode.state is EpisodeState.NEW:
            raise InvalidMessage("there is no episode to hold yet; reset first")
        next_state(self.episode.state, Event.SNAPSHOT)
        return await hold(self, self._judging, timeout_s)

    async def _read_state(self, timeout_s: float | None) -> State:
        state = await self.author.stage("state", lambda: self.author.call(lambda: self.env.state), timeout_s)
        assert isinstance(state, State)
        return state

    def _give_turn(self, shared: bool = False) -> None:
        self.last_active = time.monotonic()
        try:
            if self.sink is not None and self.episode.state is _DONE and not len(self._in_flight):
                self._hand_over()  # tools that run together all stand in it
            if self.tools.version != self._told_version:
                self._told_version = self.tools.version
                self.changes.tell(ToolsListChanged())
        finally:
            self._turn.give(shared)

    @property
    def _may_step(self) -> bool:
        """Whether there is nothing to do before a step."""
        return self.episode.state is _RUNNING and (self._judging is None or not self._judging.ended)

    async def _begin_step(self) -> None:
        """In NEW, reset first."""
        if self.episode.state is EpisodeState.NEW:
            await self._reset(Assignment(None, None, {}), None, None, implicit=True)
        if self._judging is not None and self._judging.ended:
            raise EpisodeDone("the episode is over, reset to begin another")

    async def _reset(
        self, assigned: Assignment, episode_id: str | None, timeout_s: float | None, *, implicit: bool
    ) -> Observation:
        seed, options = assigned.seed, assigned.options
        self.env._reset_options.check(options)
        if self.sink is not None:
            self._hand_over("reset")
            if seed is None and self.env._reset_options.takes_seed:
                # Nobody could play a recorded episode again whose seed nobody knows.
                assigned = replace(assigned, seed=secrets.randbits(31))
                seed = assigned.seed
        self.episode.open(assigned, episode_id, implicit)
        observation = await self._author_reset(assigned, episode_id, timeout_s)
        if self.episode.orchestrated:
            judging = Judging(self.author, self.env)
            await judging.begin(assigned.task, timeout_s)
            self._judging = judging
        return self.episode.opened(observation)

    async def _author_reset(self, assigned: Assignment, episode_id: str | None, timeout_s: float | None) -> Observation:
        """Run the author's body, once."""
        seed, options = assigned.seed, assigned.options
        self._judging, self.episode.reset_number = None, -1
        observation = await self.author.stage(
            "reset",
            lambda: self.author.call(self.env._author_reset(seed, episode_id, options)),
            timeout_s,
        )
        if observation is None:
            observation = Observation()
        if not isinstance(observation, Observation):
            wrong = TypeError(f"reset returned a {type(observation).__name__}; return an Observation or None")
            raise environment_failure("reset", wrong) from wrong
        self.episode.reset_number = self.episode.number
        return observation

    async def _restore(self, snapshot: Snapshot, timeout_s: float | None) -> None:
        held, episode = snapshot.episode, self.episode
        next_state(episode.state, Event.RESET)
        assigned = held.assignment(declares_task=self.env._reset_options.declares("task"))
        same_reset = held.reset_of == (self.session_id, episode.reset_number)
        if not same_reset:  # what that reset made, this instance has not got
            self._open_instead(assigned)
            await self._author_reset(assigned, episode.id, timeout_s)
        judging = Judging(self.author, self.env)
        await judging.resume(held, timeout_s)
        put = Put(self, snapshot, judging)
        await put.read(timeout_s)
        if same_reset:
            self._open_instead(assigned)
        reset_number, episode.reset_number = episode.reset_number, -1
        await put.write(timeout_s)
        self._judging, episode.reset_number = judging, reset_number
        episode.resumed(held, snapshot.step, put.kept)
        if self.sink is not None and held.spilled is not None and episode.trajectory is not None:
            self.sink.resume(episode.trajectory, held.spilled)

    def _open_instead(self, assigned: Assignment) -> None:
        """From now on the episode before is over, and the environment NEW until it is restored."""
        self._hand_over("restored")
        self.episode.open(assigned, None, implicit=False, instead="restored")

    def _refuse_without_episodes(self) -> None:
        if self.mode is Mode.PRODUCTION:
            raise NotSupported("snapshots are for simulation, and this environment is used in production mode")
        if not self.episode.orchestrated:
            raise NotSupported("snapshots are of episodes, and there are none here: nobody resets this environment")

    async def _end(self, truncated: bool, reason: str | None) -> None:
        if self.episode.state is EpisodeState.DONE:
            return  # the step that was under way has ended it
        next_state(self.episode.state, Event.END)
        judging, trajectory = self._judging, self.episode.trajectory
        assert trajectory is not None
        reward: Reward | None = None
        if judging is not None and judging.asks_end:
            ended = self.episode.as_ended(truncated, reason)
            judging.begin_end()
            try:
                reward = await judging.of_end(ended)
            except BaseException as error:
                code = error.code if isinstance(error, WireError) else ErrorCode.CANCELLED
                self.episode.end(None, truncated, reason, code.value)
                raise
            trajectory.verified = ended.verified
        self.episode.end(reward, truncated, reason)

    def _hand_over(self, reason: str | None = None) -> None:
        """Give the episode to the sink, once, if it is over.

        Args:
            reason: why it is given up, if it has not come to its end.
        """
        episode = self.episode
        trajectory = episode.trajectory
        if self.sink is None or trajectory is None or episode.handed_over or not episode.orchestrated:
            return
        if episode.state is EpisodeState.NEW:
            return  # its reset failed: it never began
        if reason is not None and episode.state is EpisodeState.RUNNING:
            episode.give_up(reason)
        episode.handed_over = True
        self.sink.episode_over(trajectory)

    def _close_episode(self, reason: str) -> None:
        self._hand_over(reason)
        self.episode.close(reason)

    async def _close_in_turn(self, reason: str) -> None:
        self._close_episode(reason)
        try:
            if self.env._own_close:
                await self.author.stage("close", lambda: self.author.call(self.env._author_close()))
        finally:
            if self.handed_in is not None:
                await self.handed_in.leave()
            self._forget()

    def _close_late(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Close in the thread that had been given up, after it has returned; a coroutine on the server's ``loop``."""
        close = self.env._author_close()
        if loop is not None and loop.is_closed():
            loop = None  # the server has ended
        if loop is not None and self.handed_in is not None:
            asyncio.run_coroutine_threadsafe(self.handed_in.leave(), loop)
        if loop is not None and inspect.iscoroutinefunction(close):
            asyncio.run_coroutine_threadsafe(self._close_later(close), loop)
            return
        token = current.set(self)
        try:
            with NoLoop():
                if inspect.iscoroutinefunction(close):
                    asyncio.run(close())  # in a loop of its own: the one that it was used on may be gone
                else:
                    close()
        finally:
            current.reset(token)
            self._forget()

    async def _close_later(self, close: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            await self.author.stage("close", close)
        finally:
            self._forget()

    def _forget(self) -> None:
        """Let go of the instance, and of closures that hold it: it is freed without waiting for the collector."""
        self.tools.clear()
        self.episode.kept.clear()
        self._judging = None
        self.author.forget_owner()
        self.env = _CLOSED


class _Closed:
    """In the place of an instance that is closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionLost("the environment is closed")


_CLOSED: Any = _Closed()


__all__ = ["Execution", "InputRequired"]
