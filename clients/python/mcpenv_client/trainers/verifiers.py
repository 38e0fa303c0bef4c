"""The adapter for verifiers 0.4, and for prime-rl by it: the tasks of an environment on a server as a v1 taskset.

Needs the package verifiers, which cannot be installed together with ``mcpenv``: the environment is on a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from .failures import refuse_names, reward_of
from .hosted import HostedEpisode
from .sessions import Sessions

NO_ROLLOUT = "http://127.0.0.1:1/mcp"
"""The address of the tools outside of a rollout, where verifiers only asks for their number."""


class McpenvData(vf.TaskData):
    """A task: its server, and the row that names it at a reset.

    Attributes:
        url: the server.
        row: ``split`` and ``index``, or ``seed``. The rollouts of a group have one row, and so one initial state.
        client: arguments of `EnvClient`.
        mask_failed_steps: as in `McpenvConfig`.
    """

    url: str
    row: dict[str, Any]
    client: dict[str, Any]
    mask_failed_steps: bool = True


class McpenvTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """The MCP address of an episode. Its tools have their own names and their whole schemas."""

    TOOL_PREFIX = None


class Played:
    """The episode of one rollout, and its session, which ends with the rollout in any case."""

    mcp_url: ContextVar[str] = ContextVar("mcp_url", default=NO_ROLLOUT)
    """The address of the tools of the rollout that this asyncio task runs; `toolsets` gets no reference to it."""

    by_trace: dict[str, Played] = {}

    def __init__(self, trace: vf.Trace, data: McpenvData) -> None:
        self._trace_id = trace.id
        self._closing: asyncio.Task[None] | None = None
        self.episode = HostedEpisode(data.url, data.client, mask_failed_steps=data.mask_failed_steps)
        self.by_trace[trace.id] = self
        rollout = asyncio.current_task()
        if rollout is not None:
            # A failed rollout has no `finalize`.
            rollout.add_done_callback(self._abandon)

    async def close(self) -> None:
        """End the session."""
        self.by_trace.pop(self._trace_id, None)
        await self.episode.close()

    def _abandon(self, rollout: asyncio.Task[Any]) -> None:
        if self.by_trace.pop(self._trace_id, None) is None or rollout.get_loop().is_closed():
            return
        if rollout.cancelled():
            # Ctrl-C: the loop ends before a task could close the session.
            self.episode.abandon()
        else:
            self._closing = rollout.get_loop().create_task(self.close())


class McpenvTask(vf.Task[McpenvData, vf.State, vf.TaskConfig]):
    """A task with episodes as rollouts: begun in `setup`, judged in `finalize`, ended in any case."""

    @property
    def key(self) -> str:
        """The identity of the task, independent of the order of loading."""
        return f"{self.data.url}#{self.data.id or self.data.row}"

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Begin an episode. Its prompt replaces the task's prompt."""
        played = Played(trace, self.data)
        opening = await played.episode.begin(self.data.row)
        trace.task.data = trace.task.data.model_copy(update={"prompt": opening.messages[-1]["content"]})
        trace.info["episode_id"] = opening.info["episode_id"]
        played.mcp_url.set(played.episode.mcp_url)

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        """Return the tools of the episode that `setup` began."""
        return [McpenvTools(vf.ToolsetConfig(url=Played.mcp_url.get()))]

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """End the episode, and record its return and the parts of its rewards.

        Raises:
            EpisodeFailed: the environment, a judge or the connection failed, or nothing scored the episode. The trace
                has an error and no reward.
        """
        played = Played.by_trace[trace.id]
        truncated = trace.is_truncated or trace.is_timeout
        ending = await played.episode.end(truncated=truncated, reason=trace.stop_condition)
        await played.close()
        trace.info["status"] = ending.status.to_plain()
        trace.record_reward("mcpenv", reward_of(ending))
        trace.record_metrics(ending.parts)


class McpenvConfig(vf.TasksetConfig):
    """The options of the taskset, under ``--env.taskset``.

    Attributes:
        url: the server.
        split: the split with the tasks to load; None: tasks are seeds.
        num_tasks: the maximum of tasks; the number of seeds without a split.
        client: arguments of `EnvClient`.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
    """

    url: str = "http://127.0.0.1:8000"
    split: str | None = "train"
    num_tasks: int | None = Field(None, ge=1)
    client: dict[str, Any] = Field(default_factory=dict)
    mask_failed_steps: bool = True


class McpenvTaskset(vf.Taskset[McpenvTask, McpenvConfig]):
    """The tasks of an environment on a server."""

    def load(self) -> Iterator[McpenvTask]:
        """Yield the tasks.

        Raises:
            ToolNotExpressible: a model's API refuses the name of a tool.
            ValueError: there are no tasks.
            WireError, ConnectionFailed: the server cannot list tools or tasks.
        """
        config = self.config
        rows, tools = Sessions(config.url, client=config.client).listed(config.split, config.num_tasks)
        refuse_names("verifiers", tools)
        for row in rows:
            named = {name: row[name] for name in ("split", "index", "seed") if name in row}
            prompt, task_id = _text_of(row.get("prompt")), row.get("task_id")
            data = McpenvData(
                id=task_id,
                name=task_id,
                prompt=prompt,
                url=config.url,
                row=named,
                client=config.client,
                mask_failed_steps=config.mask_failed_steps,
            )
            yield McpenvTask(data, config.task)


def _text_of(prompt: Any) -> str:
    return prompt[0]["content"] if prompt else ""
