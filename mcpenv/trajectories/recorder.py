"""The recorder, which writes every episode of its environments to one folder."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpenv.errors import ConfigurationError
from mcpenv.execution.sink import SpilledSteps
from mcpenv.tools.outputs import Output
from mcpenv_client.samples.linking import link_calls
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.tools import Mode, Tool
from mcpenv_client.types.values import to_plain

from .blobs import Blobs
from .episode import OBSERVATIONS, RecordedEnvironment, RecordedEpisode, versions
from .spilled import Spilled
from .summary import steps_of
from .tool_lists import ToolLists
from .writer import Counts, Job, Jobs, Writer

if TYPE_CHECKING:
    from typing import Self

    from mcpenv.environment import MCPEnvironment
    from mcpenv.tasks import TaskSet
    from mcpenv.tools.registry import ToolRegistry

logger = logging.getLogger("mcpenv")

Tools = Callable[[], Sequence[Tool] | None]
"""A function that returns the tools of agents when an episode is over; None if unknown."""


class Recorder:
    """The recorder of episodes to a folder, each whole or not at all. Several processes may write to the same folder.

    Recording does nothing during a step. When an episode is over, a thread of the recorder encodes and writes it. On a
    server, an episode is on disk before the reset or close that follows it is answered. In process, `flush` waits for
    it. "On disk" means passed to the operating system: a killed process loses nothing, a machine without power may.

    Args:
        directory: the folder; created if it does not exist.
        max_segment_bytes: size of a file, in bytes, above which the next episode begins another one.
        max_waiting: maximum episodes of a server in the queue. Further ones are lost, logged and counted. In process,
            where the caller can wait, the maximum is 256.
        patience_s: maximum seconds that a reset or close waits for the disk.

    Raises:
        ConfigurationError: the folder is not writable.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        max_segment_bytes: int = 64 * 1024 * 1024,
        max_waiting: int = 10_000,
        patience_s: float = 30.0,
    ) -> None:
        self.directory = Path(directory)
        self.tools = ToolLists(self.directory)
        self.blobs = Blobs(self.directory)
        self.patience_s = patience_s
        self.jobs = Jobs()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise ConfigurationError(f"cannot record to {self.directory}: {error.strerror or error}") from error
        self.writer = Writer(self.directory, max_segment_bytes=max_segment_bytes, max_waiting=max_waiting)
        atexit.register(self.close)

    @property
    def counts(self) -> Counts:
        """The numbers of episodes that were written, were lost, and wait."""
        return self.writer.counts

    def attach(self, env: MCPEnvironment) -> None:
        """Record the episodes of an environment that is used in this process, from its next reset on."""
        execution = env._execution
        tools: Tools = OwnTools(execution.tools, execution.mode)
        if execution.mounted is not None:
            listed = env.list_tools()
            tools = lambda: listed  # noqa: E731
        execution.sink = self.sink_for(env.exposed_name(), env.VERSION, tools, env.tasks, waits=True)
        execution.episode.handed_over = True  # the running episode was not recorded from its reset on

    def sink_for(
        self,
        environment_name: str,
        version: str | None,
        tools: Tools,
        tasks: TaskSet | None = None,
        *,
        waits: bool = False,
    ) -> RecordingSink:
        """Return the sink for the episodes of one environment.

        Args:
            tools: called when an episode is over. It must not refer to the instance, which refers to it.
            tasks: the environment's own, whose licence, source and version are recorded with an episode of a task.
            waits: True, as in process, if the code that ends an episode may block while the queue is full.
        """
        return RecordingSink(self, RecordedEnvironment(environment_name, version), tools, waits, tasks)

    def write(self, episode: RecordedEpisode) -> None:
        """Record an episode that was put together elsewhere. Blocks only while the queue is full."""
        steps = steps_of(episode.trajectory)
        self.writer.put(Job(lambda: self.blobs.stored(episode).line(), steps), wait=True)

    def flush(self) -> None:
        """Return when every finished episode has been written (or lost, which is logged)."""
        self.writer.flush()

    def close(self) -> None:
        """Write the queue, and end. Episodes that end later are lost. Safe to call twice.

        A signal handler may call it. The queue is then written when the interpreter exits, if not before.
        """
        if self.writer.close():
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RecordingSink:
    """The sink for the episodes of one environment. It accepts them without blocking on disk."""

    def __init__(
        self,
        recorder: Recorder,
        environment: RecordedEnvironment,
        tools: Tools,
        waits: bool,
        tasks: TaskSet | None = None,
    ) -> None:
        self._tasks = tasks
        self._recorder = recorder
        self._environment = environment
        self._tools = tools
        self._waits = waits
        self._spilled: dict[str, Spilled] = {}
        self.agent: str | None = None
        self._players: dict[str | None, str] = {}
        self._said: dict[str | None, Sequence[ModelTurn]] = {}

    def episode_over(self, trajectory: Trajectory, outputs: Sequence[Output] = ()) -> None:
        """Queue an episode for writing. It must not change any more."""
        spilled = self._spilled.pop(trajectory.episode_id, None) if self._spilled else None
        tools = self._tools()
        agent = self.agent or self._players.pop(trajectory.episode_id, None)
        turns = list(self._said.pop(trajectory.episode_id, ()))
        write = functools.partial(self._line, trajectory, tools, spilled, outputs, agent, turns)
        job = Job(write, steps_of(trajectory))
        if self._waits:
            self._recorder.writer.put(job, wait=True)
            return
        self._recorder.jobs.add(trajectory.episode_id, job)
        self._recorder.writer.put(job, wait=False)

    def played_by(self, episode_id: str | None, agent: str) -> None:
        """Note the agent that plays an episode."""
        self._players = {episode_id: agent}

    def said(self, episode_id: str | None, turns: Sequence[ModelTurn]) -> None:
        """Note the turns of the model that plays an episode."""
        self._said = {episode_id: turns}

    def another(self, tools: ToolRegistry, mode: Mode) -> RecordingSink:
        """Return a sink for another instance. A fork has its own tools, and its own spilled steps."""
        listed: Tools = OwnTools(tools, mode)
        sink = RecordingSink(self._recorder, self._environment, listed, self._waits, self._tasks)
        sink.agent = self.agent
        return sink

    def spill(self, trajectory: Trajectory, steps: Sequence[StepRecord]) -> None:
        """Store steps that the trajectory has dropped, until the episode is over."""
        spilled = self._spilled.get(trajectory.episode_id)
        if spilled is None:
            spilled = self._spilled[trajectory.episode_id] = Spilled()
        if spilled.add(steps):
            self._recorder.writer.put(Job(spilled.pack, None), wait=self._waits)

    def spilled(self, trajectory: Trajectory) -> Spilled | None:
        """Return a copy of the spilled steps so far."""
        spilled = self._spilled.get(trajectory.episode_id)
        return None if spilled is None else spilled.copy()

    def resume(self, trajectory: Trajectory, spilled: SpilledSteps) -> None:
        """Begin a continuation with the spilled steps of the episode that it continues."""
        if isinstance(spilled, Spilled):
            self._spilled[trajectory.episode_id] = spilled.copy()

    async def written(self, episode_id: str) -> bool:
        """Return True when the episode is on disk, False when it is lost, or after `patience_s`, which is logged."""
        jobs = self._recorder.jobs
        job = jobs.get(episode_id)
        if job is None:
            return episode_id not in jobs.lost
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        job.when_over(functools.partial(_tell, loop, over))
        timer = loop.call_later(self._recorder.patience_s, _settle, over, False)
        try:
            in_time = await over
        finally:
            timer.cancel()
        if not in_time:
            logger.error("an episode is not written after %g s; going on without", self._recorder.patience_s)
        return in_time and not job.lost

    def _line(
        self,
        trajectory: Trajectory,
        tools: Sequence[Tool] | None,
        spilled: Spilled | None,
        outputs: Sequence[Output],
        agent: str | None,
        turns: list[ModelTurn],
    ) -> bytes:
        self._recorder.blobs.keep_outputs(outputs)
        if spilled is not None:
            steps = [*spilled.steps(), *trajectory.steps]
            trajectory = replace(trajectory, steps=steps, dropped=trajectory.dropped - len(spilled))
        return self._recorder.blobs.stored(self._episode(trajectory, tools, agent, turns)).line()

    def _episode(
        self, trajectory: Trajectory, tools: Sequence[Tool] | None, agent: str | None, turns: list[ModelTurn]
    ) -> RecordedEpisode:
        listed = None if tools is None else self._recorder.tools.keep(tools)
        environment = self._environment
        if self._tasks is not None and trajectory.task is not None:
            environment = replace(environment, tasks=self._tasks.origin())
        episode = RecordedEpisode(trajectory, environment, versions(), listed)
        if agent is not None:
            episode.agent = {"name": agent}
        if turns:
            link_calls(turns, trajectory)
            episode.model_turns = turns
        observations = {
            str(step.call.step): seen for step in trajectory.steps if (seen := own_observation(step)) is not None
        }
        if observations:
            episode.extra[OBSERVATIONS] = observations
        return episode


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Future[bool]) -> None:
    """Wake the waiting coroutine. Called in the writer's thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine waits
        loop.call_soon_threadsafe(_settle, over, True)


def _settle(over: asyncio.Future[bool], in_time: bool) -> None:
    if not over.done():
        over.set_result(in_time)


class OwnTools:
    """The tools that an instance has registered. After its end, the tools that it had last."""

    def __init__(self, registry: ToolRegistry, mode: Mode) -> None:
        self._registry = registry
        self._mode = mode
        self._version: int | None = None
        self._listed: Sequence[Tool] = ()

    def __call__(self) -> Sequence[Tool]:
        """Return the tools."""
        if self._version != self._registry.version:
            self._version = self._registry.version
            self._listed = self._registry.listing(self._mode).tools
        return self._listed


def own_observation(step: StepRecord) -> Any:
    """Return the observation of an environment's own action. The record of a step has results of tools only."""
    value = step.outcome.value
    if not isinstance(value, Observation) or step.outcome.result is not None:
        return None
    return to_plain(value, "observation", exclude={"info", "done", "reward", "terminated", "truncated"})
