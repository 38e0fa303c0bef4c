"""Evaluations: play the tasks of an environment concurrently, and continue an interrupted run."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, meant
from mcpenv.targets.place import is_url
from mcpenv.trajectories import RecordedEnvironment
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.tasks import Task

from .agent import Agent
from .episode import play
from .isolation import history_of
from .plan import Key, Planned, chosen, of_seeds, samples_of
from .results import EpisodeResult, Failure
from .run_directory import AGENTS, SERVER_LOG, SUMMARY, RunFolder
from .server import Server, served
from .stored_run import StoredRun
from .summary import Summary, summarize

EPISODES_WITHOUT_TASKS = 10
CONCURRENCY = 4
RUNS = Path("runs")

NO_CALLS = "no episode has a tool call"
"""The finding that invalidates the figures of an evaluation."""

CRASHES = 5
"""Number of first episodes after which a run stops, if the agent crashed alike in each, and without any call."""

_TASKS_AT_A_TIME = 1000


@dataclass(frozen=True)
class Progress:
    """The progress of an evaluation.

    Attributes:
        result: the result of the episode that just finished; None at the start of a run.
        finished: number of finished episodes, earlier runs included.
        planned: number of planned episodes.
        passed: number of finished episodes that passed; None if it is unknown for all of them.
        directory: the folder of the results.
    """

    result: EpisodeResult | None
    finished: int
    planned: int
    passed: int | None
    directory: Path


@dataclass(frozen=True)
class Evaluated:
    """The outcome of a finished evaluation.

    Attributes:
        directory: the folder of the results.
        summary: the figures.
        results: one for each episode of the plan, in its order.
        settings: the settings of the evaluation.
    """

    directory: Path
    summary: Summary
    results: list[EpisodeResult]
    settings: dict[str, Any]

    @property
    def isolation(self) -> str | None:
        """``bubblewrap`` or ``not isolated`` if the agent is a program, else None."""
        isolation: str | None = self.settings["agent"].get("isolation")
        return isolation

    @property
    def run(self) -> StoredRun:
        """The same as its folder has it."""
        return StoredRun(self.directory, self.settings, self.results, self.summary.planned, self.summary.pass_threshold)

    def to_plain(self) -> dict[str, Any]:
        """Return settings and figures as plain JSON data."""
        return {"directory": str(self.directory), **self.settings, **self.summary.to_plain()}


class Options(TypedDict, total=False):
    """The arguments of `evaluate_async` except target and agent."""

    out: Path | str | None
    split: str | None
    n: int | None
    k: int
    seed: int | None
    concurrency: int | None
    timeout_s: float
    tasks: Path | str | None
    columns: str | None
    settings: Sequence[str]
    control_token: str | None
    pass_threshold: float | None
    fresh: bool
    retry_errors: bool
    on_progress: Callable[[Progress], None]


def evaluate(target: str | type[MCPEnvironment], agent: Agent, **options: Unpack[Options]) -> Evaluated:
    """Run `evaluate_async` with the same arguments, in a program without an event loop."""
    return asyncio.run(evaluate_async(target, agent, **options))


async def evaluate_async(
    target: str | type[MCPEnvironment],
    agent: Agent,
    *,
    out: Path | str | None = None,
    split: str | None = None,
    n: int | None = None,
    k: int = 1,
    seed: int | None = None,
    concurrency: int | None = None,
    timeout_s: float = 1800.0,
    tasks: Path | str | None = None,
    columns: str | None = None,
    settings: Sequence[str] = (),
    control_token: str | None = None,
    pass_threshold: float | None = None,
    fresh: bool = False,
    retry_errors: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Evaluated:
    """Let an agent play episodes, and return the results and figures.

    Each finished episode is written to disk at once. To continue after cancellation or a crash, call this again with
    the same ``out``. Finished episodes are not played again; unfinished ones are.

    Args:
        target: an environment as named on the command line, the URL of a server, or a class.
        agent: the agent that plays.
        out: the folder for the results. Default: a new one in ``runs``.
        split: the split of the tasks. Default: ``test``, or else the only split.
        n: number of tasks. Default: all. For an environment without tasks, number of seeds. Default: 10.
        k: number of episodes of each task or seed.
        seed: the seed to choose the tasks at random, instead of the first ``n``. Without tasks: the first seed
            (default: 0).
        concurrency: maximum concurrent episodes. Default: 4, or the number of free sessions if that is lower.
        timeout_s: seconds for which the agent may act in one episode.
        tasks: a file of tasks to use instead of the environment's own.
        columns: its columns by the fields of a task: ``prompt=question,answer=solution``.
        settings: ``name=value`` each, for the environment's constructor.
        control_token: the control token of a server at a URL, if it requires one.
        pass_threshold: minimum return of an episode that passes. Default: each task's full reward.
        fresh: delete the results in ``out`` first.
        retry_errors: repeat episodes in which the environment or the model's endpoint failed.
        on_progress: called in the event loop, at the start and after each episode.

    Raises:
        ConfigurationError: an argument cannot be used (an unknown split, other settings in ``out``), the results
            cannot be written, or the agent's program crashes alike in each of the first episodes, without a call.
        ConnectionFailed: the server cannot be reached, or the connection is lost.
    """
    _check(n, k, concurrency, timeout_s, pass_threshold)
    directory = Path(out) if out is not None else RUNS / f"{_name(target)}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be created: {error.strerror}") from error
    async with served(
        target,
        settings=settings,
        tasks=None if tasks is None else Path(tasks),
        columns=columns,
        control_token=control_token,
        log=directory / SERVER_LOG,
    ) as server:
        at_a_time = _concurrency(concurrency, server)
        split, plan = await _plan(server, split, n, k, seed)
        described = {
            "format": 1,
            "target": server.shown if isinstance(target, str) and is_url(target) else _named(target),
            "set": list(settings),
            "environment": {"name": server.name, "version": server.version},
            "agent": agent.described(),
            "split": split,
            "seed": seed,
            "timeout_s": timeout_s,
        }
        environment = RecordedEnvironment(server.name, server.version, server.task_set)
        hidden = _hidden(directory, server.folder, None if tasks is None else Path(tasks))
        folder = await asyncio.to_thread(RunFolder, directory, described, environment, fresh=fresh)
        try:
            run = _Run(server, agent, folder, plan, timeout_s, pass_threshold, on_progress, hidden)
            await run.play(at_a_time, retry_errors)
            return run.evaluated(described)
        finally:
            folder.close()


class _Run:
    """The execution of a plan."""

    def __init__(
        self,
        server: Server,
        agent: Agent,
        folder: RunFolder,
        plan: Sequence[Planned],
        timeout_s: float,
        pass_threshold: float | None,
        on_progress: Callable[[Progress], None],
        hidden: Sequence[Path],
    ) -> None:
        self._server = server
        self._agent = agent
        self._folder = folder
        self._plan = plan
        self._timeout_s = timeout_s
        self._pass_threshold = pass_threshold
        self._on_progress = on_progress
        self._hidden = hidden
        self._passed: dict[Key, bool | None] = {}
        self._crashes: list[str | None] | None = []

    async def play(self, at_a_time: int, retry_errors: bool) -> None:
        """Play the episodes that are not finished.

        Raises:
            ConfigurationError: a task has changed since its episodes were played, or the agent cannot play or start.
            ConnectionFailed: the connection to the server is lost.
        """
        todo = [planned for planned in self._plan if self._wanted(planned, retry_errors)]
        self._tell(*self._finished())
        waiting = iter(todo)
        async with self._agent.running():
            workers = [asyncio.ensure_future(self._work(waiting)) for _ in range(min(at_a_time, len(todo)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def evaluated(self, settings: dict[str, Any]) -> Evaluated:
        """Return the outcome, and write its summary to the folder."""
        results = self._finished()
        summary = summarize(results, len(self._plan), self._pass_threshold)
        evaluated = Evaluated(self._folder.directory, summary, results, settings)
        self._folder.write(SUMMARY, json.dumps(evaluated.to_plain(), indent=2, ensure_ascii=False) + "\n")
        return evaluated

    def _wanted(self, planned: Planned, retry_errors: bool) -> bool:
        """Return True if the episode is to be played.

        Raises:
            ConfigurationError: the task has changed since the episode was played.
        """
        result = self._folder.finished(planned.key)
        if result is None:
            return True
        if result.digest != planned.digest:
            raise ConfigurationError(
                f"{self._folder.directory}: task {planned.key.task!r} has changed since it was played; "
                "use another --out, or --fresh to delete the results"
            )
        return retry_errors and result.unscored

    async def _work(self, waiting: Iterator[Planned]) -> None:
        for planned in waiting:
            output = self._folder.output_of(planned.key)
            played = await play(
                planned, self._server, self._agent, timeout_s=self._timeout_s, output=output, hidden=self._hidden
            )
            # The thread runs to its end even if this task is cancelled, so that an episode is never half written.
            await asyncio.to_thread(
                self._folder.add,
                played.result,
                played.trajectory,
                played.tools,
                self._agent.described(),
                played.messages,
                played.context,
                played.model_turns,
            )
            self._tell(played.result, now=played.result)
            self._expect_start(played.result)

    def _expect_start(self, result: EpisodeResult) -> None:
        """Raise if the agent has crashed alike in each of the first episodes of this run, and without any call.

        Raises:
            ConfigurationError: with what its program printed last.
        """
        crashed = result.failure is Failure.AGENT_CRASHED and not result.steps
        if self._crashes is None or not crashed or result.detail not in (self._crashes or [result.detail]):
            self._crashes = None  # it can start
            return
        self._crashes.append(result.detail)
        if len(self._crashes) >= CRASHES and len(self._passed) < len(self._plan):
            raise ConfigurationError(
                f"the agent crashed in each of the first {len(self._crashes)} episodes, without a call: "
                f"{result.detail}. Its output is in {self._folder.directory / AGENTS}. --fresh begins anew"
            )

    def _tell(self, *results: EpisodeResult, now: EpisodeResult | None = None) -> None:
        for result in results:
            self._passed[result.key] = result.passed(self._pass_threshold)
        passed = [each for each in self._passed.values() if each is not None]
        counted = sum(passed) if passed else None
        self._on_progress(Progress(now, len(self._passed), len(self._plan), counted, self._folder.directory))

    def _finished(self) -> list[EpisodeResult]:
        """Return the results of this plan. The folder may contain further results, of a larger plan."""
        found = (self._folder.finished(planned.key) for planned in self._plan)
        return [result for result in found if result is not None]


def _hidden(directory: Path, folder: Path | None, tasks: Path | None) -> list[Path]:
    """Return the paths to hide from an agent's program: results of all runs, and the environment's files.

    Earlier versions of these files in git are hidden too.

    Args:
        folder: the folder of the environment's code; None if unknown.
        tasks: the file of tasks, if it is not the environment's own.
    """
    files = [path.absolute() for path in (folder, tasks) if path is not None]
    return [directory.absolute(), RUNS.absolute(), *files, *(git for path in files for git in history_of(path))]


async def _plan(
    server: Server, split: str | None, n: int | None, k: int, seed: int | None
) -> tuple[str | None, list[Planned]]:
    """Return the split and the planned episodes.

    Raises:
        ConfigurationError: there is no such split, or it is empty.
    """
    client = server.client()
    if not server.has_tasks:
        if split is not None:
            raise ConfigurationError(f"{server.name} has no tasks, and so no split {split!r}")
        return None, of_seeds(EPISODES_WITHOUT_TASKS if n is None else n, k, seed or 0)
    try:
        splits = await client.splits()
        split = _split(server, splits, split)
        indices = chosen(await client.num_tasks(split), n, seed)
        found: dict[int, Task] = {}
        for start, stop in _ranges(sorted(indices)):
            found |= dict(enumerate(await client.get_tasks(split, start, stop), start))
    except InvalidMessage as error:
        raise ConfigurationError(f"{server.shown}: {error.message}") from error
    if not indices:
        raise ConfigurationError(f"the split {split!r} of {server.name} has no tasks")
    return split, samples_of([found[index] for index in indices], k)


def _split(server: Server, splits: Sequence[str], split: str | None) -> str:
    listed = ", ".join(splits) or "none"
    if split is None:
        if "test" in splits or len(splits) == 1:
            return "test" if "test" in splits else splits[0]
        raise ConfigurationError(f"{server.name} has several splits; choose one with --split ({listed})")
    if split not in splits:
        raise ConfigurationError(
            f"--split {split}: {server.name} has no such split (there are: {listed}){meant(split, splits)}"
        )
    return split


def _ranges(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges that cover ascending indices, each short enough for one request."""
    start = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1 or at - start == _TASKS_AT_A_TIME:
            yield indices[start], indices[at - 1] + 1
            start = at


def _concurrency(wanted: int | None, server: Server) -> int:
    if server.free == 0 or (wanted is not None and wanted > server.free):
        taken = f"has {server.free} of {server.slots} sessions free"
        limit = f"allows {server.slots} sessions at once" if server.free == server.slots else taken
        hint = f"use --concurrency {server.free}" if server.free else "mcpenv sessions lists those in use"
        raise ConfigurationError(f"{server.name} {limit}; {hint}")
    return min(CONCURRENCY, server.free) if wanted is None else wanted


def _check(n: int | None, k: int, concurrency: int | None, timeout_s: float, pass_threshold: float | None) -> None:
    for option, count in (("-n", n), ("-k", k), ("--concurrency", concurrency)):
        if count is not None and count < 1:
            raise ConfigurationError(f"{option} is {count}; it must be 1 or more")
    if not 0 < timeout_s < math.inf:
        raise ConfigurationError(f"--timeout-s is {timeout_s:g}; it must be a number of seconds above 0")
    if pass_threshold is not None and not math.isfinite(pass_threshold):
        raise ConfigurationError(f"--pass-threshold is {pass_threshold:g}; it must be a finite number")


def _named(target: str | type[MCPEnvironment]) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def _name(target: str | type[MCPEnvironment]) -> str:
    """Return a short name of the target for a folder."""
    if not isinstance(target, str):
        return target.__name__
    last = re.split(r"[/\\]", target.rstrip("/\\"))
    name = last[2] if is_url(target) else last[-1].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "environment"
