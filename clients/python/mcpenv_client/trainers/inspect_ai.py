"""The adapter for Inspect AI: the tasks of an environment on a server as a task with setup, tools, solver and scorer.

Needs the packages inspect-ai and mcp. ``inspect eval mcpenv_client/mcpenv -T url=...`` finds the task.
"""

from __future__ import annotations

import logging
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import mcp_connection
from inspect_ai.util import store

from mcpenv_client.rows import labels_of

from .failures import UNSCORED, refuse_names, reward_of
from .inspect_tools import KEY, EpisodeTools, SampleEpisode, current, left_out
from .sessions import Sessions

logger = logging.getLogger(__name__)


@solver
def begin(url: str, client: dict[str, Any] | None = None, mask_failed_steps: bool = True) -> Solver:
    """Begin the sample's episode; its prompt replaces the sample's input."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = SampleEpisode(url, client or {}, mask_failed_steps=mask_failed_steps)
        SampleEpisode.by_sample[state.uuid] = episode
        store().set(KEY, state.uuid)
        state.user_prompt.text = await episode.begin(state.metadata)
        return state

    return solve


@solver
def play() -> Solver:
    """Let the model call tools until the episode is over or it calls none.

    A message without calls goes to the episode's user, if there is one; the user's answer is the next message.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        source = EpisodeTools(user_as_tool=False)
        async with mcp_connection(source):
            state.tools = await source.tools()
            while True:
                state = await generate(state, tool_calls="single")
                if state.completed:
                    return state
                if not state.output.message.tool_calls:
                    answer = await current().hosted.speak(state.output.completion)
                    if answer is None:
                        return state
                    state.messages.append(ChatMessageUser(content=answer))
                elif await current().hosted.over():
                    return state

    return solve


@scorer(metrics=[mean(), stderr()])
def episode_return() -> Scorer:
    """End the episode, and score the sample with its return.

    A failure of the environment, a judge or the connection raises `EpisodeFailed`, which is the sample's error. A
    sample that nothing scored is unscored, so that metrics leave it out.
    """

    async def score(state: TaskState, target: Target) -> Score:
        hosted = SampleEpisode.by_sample[state.uuid].hosted
        last = state.messages[-1]
        stopped = isinstance(last, ChatMessageAssistant) and not last.tool_calls
        truncated = not stopped and not await hosted.over()
        ending = await hosted.end(truncated=truncated, reason="limit" if truncated else None)
        about = {"status": ending.status.to_plain(), "reason": ending.reason, "parts": dict(ending.parts)}
        code = ending.status.code.value
        if ending.status.usable and ending.reward is None:
            return Score.unscored(reason=UNSCORED, explanation=code, metadata=about)
        return Score(value=reward_of(ending), explanation=code, metadata=about)

    return score


async def close(state: TaskState) -> None:
    """End the session of the sample's episode."""
    episode = SampleEpisode.by_sample.pop(state.uuid, None)
    if episode is not None:
        await episode.hosted.close()


@task
def mcpenv(
    url: str,
    split: str | None = "test",
    num_tasks: int | None = None,
    solver: Solver | None = None,
    client: dict[str, Any] | None = None,
    mask_failed_steps: bool = True,
) -> Task:
    """Return a task with one sample for each task of an environment, whose metadata has the task's labels.

    Args:
        url: the server.
        split: the split with the tasks for the samples; None: samples are seeds.
        num_tasks: the maximum of samples; the number of seeds without a split.
        solver: the solver or agent, with ``tools=[EpisodeTools()]``; None: `play`.
        client: arguments of `EnvClient`.
        mask_failed_steps: a step that failed by no fault of the agent is the sample's error.

    Raises:
        ToolNotExpressible: a model's API refuses the name of a tool.
        ValueError: there are no tasks.
        WireError, ConnectionFailed: the server cannot list tools or tasks.
    """
    rows, tools = Sessions(url, client=client).listed(split, num_tasks)
    refuse_names("inspect-ai", tools)
    missing = [path for tool in tools for path in left_out(tool.input_schema, tool.name)]
    if missing:
        logger.warning("Inspect's providers for OpenAI's chat completions leave out: %s", ", ".join(missing))
    samples = []
    for row in rows:
        named = {name: row[name] for name in ("split", "index", "seed") if name in row}
        text = row["prompt"][0]["content"] if row.get("prompt") else "The prompt comes with the episode."
        about: dict[str, Any] = named | labels_of(row)
        samples.append(Sample(input=text, id=row.get("task_id", row.get("seed")), metadata=about))
    return Task(
        dataset=MemoryDataset(samples, name=url),
        setup=begin(url, client, mask_failed_steps),
        solver=solver or play(),
        scorer=episode_return(),
        cleanup=close,
        fail_on_error=False,  # a failed environment costs only its own sample
    )


__all__ = ["EpisodeTools", "begin", "close", "episode_return", "mcpenv", "play"]
