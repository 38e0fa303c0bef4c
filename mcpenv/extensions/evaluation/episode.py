"""Episodes: play one episode of an evaluation, from its reset to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.trajectories.summary import components_of, fault_of
from mcpenv_client.client import EnvClient
from mcpenv_client.errors import Unauthorized, WireError
from mcpenv_client.formats.prompts import images_of, prompt_of
from mcpenv_client.samples.linking import link_calls
from mcpenv_client.scores import score_of
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.status import Status, StatusCode
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.users import user_turns

from .agent import Acted, Agent, Play
from .plan import Key, Planned
from .results import EpisodeResult, Failure, status_of
from .server import Server


@dataclass
class Played:
    """A finished episode.

    Attributes:
        trajectory: None if the environment could not return it.
        tools: the tools that the agent could call.
        messages: the conversation, if there was one.
        context: as `Acted.context`.
        model_turns: the turns of the agent's model, linked to the steps; None if no proxy recorded them.
    """

    result: EpisodeResult
    trajectory: Trajectory | None = None
    tools: Sequence[Tool] = ()
    messages: list[dict[str, Any]] | None = None
    context: dict[str, Any] | None = None
    model_turns: list[ModelTurn] | None = None


async def play(
    planned: Planned, server: Server, agent: Agent, *, timeout_s: float, output: Path, hidden: Sequence[Path] = ()
) -> Played:
    """Play one episode in a session of its own. Cancelling ends the session and the agent.

    Args:
        timeout_s: seconds after the reset at which the agent is stopped.
        output: the file for the agent's output.
        hidden: the files and folders that a program of the agent must not see.

    Raises:
        ConnectionFailed: the connection to the server is lost.
        ConfigurationError: no episode can be played.
    """
    result = EpisodeResult(
        split=planned.key.split,
        task=planned.key.task,
        seed=planned.key.seed,
        sample=planned.key.sample,
        full_reward=planned.full_reward,
        digest=planned.digest,
        level=planned.level,
        family=planned.family,
        tags=[*planned.tags],
        started_at=time.time(),
    )
    client, played, acted = server.client(), Played(result), Acted()
    began = time.monotonic()
    try:
        async with client as env:
            try:
                acted = await _acted(env, planned.key, server, agent, timeout_s, output, hidden, played)
            except WireError as error:
                acted = Acted().fail_with(error)
            played.trajectory = await _trajectory(env)
    except Unauthorized as error:
        raise ConfigurationError(f"{server.shown}: {error.message}") from error
    except WireError as error:
        acted = Acted().fail_with(error)
    if acted.failure is Failure.ENVIRONMENT_ERROR:
        # If the server is lost too, this raises: the episode has not failed, and the next run plays it again.
        await server.check()
    played.messages, played.context, played.model_turns = acted.messages, acted.context, acted.model_turns
    if played.model_turns and played.trajectory is not None:
        link_calls(played.model_turns, played.trajectory)
    played.result = _result(result, acted, played.trajectory, time.monotonic() - began)
    return played


async def _acted(
    env: EnvClient,
    key: Key,
    server: Server,
    agent: Agent,
    timeout_s: float,
    output: Path,
    hidden: Sequence[Path],
    played: Played,
) -> Acted:
    """Reset the episode, let the agent act, and end the episode.

    Raises:
        WireError: the environment failed.
    """
    first = await (env.reset(seed=key.seed) if key.task is None else env.reset(task=key.task))
    played.tools = tools = await env.list_tools()
    if first.done:
        return Acted()
    acted = await agent.act(
        Play(
            env=env,
            mcp_url=first.info["mcp_url"],
            prompt=prompt_of(first) or server.description,
            task_id=key.task or first.info["episode_id"],
            tools=tools,
            deadline=asyncio.get_running_loop().time() + timeout_s,
            output=output,
            hidden=hidden,
            images=images_of(first),
        )
    )
    if acted.failure is not Failure.ENVIRONMENT_ERROR:
        failed = acted.failure is not None
        try:
            await env.end(truncated=failed, reason=acted.failure.value if acted.failure is not None else None)
        except WireError as error:
            acted.fail_with(error)
    return acted


async def _trajectory(env: EnvClient) -> Trajectory | None:
    """Return the record of the episode; None if the session or the episode is lost."""
    try:
        return await env.trajectory()
    except WireError:
        return None  # the failure that caused this is reported already


def _result(result: EpisodeResult, acted: Acted, trajectory: Trajectory | None, duration_s: float) -> EpisodeResult:
    result = replace(
        result,
        turns=acted.turns,
        malformed_calls=acted.malformed_calls,
        failure=acted.failure,
        detail=acted.detail,
        duration_s=round(duration_s, 3),
        prompt_tokens=acted.prompt_tokens,
        completion_tokens=acted.completion_tokens,
        cost=acted.cost,
    )
    if trajectory is None:
        if not result.unscored:
            result = replace(result, failure=Failure.ENVIRONMENT_ERROR, detail="no record")
        return replace(result, status=acted.status or status_of(result.failure))
    fault = fault_of(trajectory)
    if fault is not None and not result.unscored:
        result = replace(result, failure=Failure.ENVIRONMENT_ERROR, detail=f"{fault} in the environment's own code")
    elif trajectory.truncated and result.failure is None:
        result = replace(result, failure=Failure.TRUNCATED, detail=trajectory.reason)
    asked = [turn for turn in user_turns(trajectory) if turn.requests]
    return replace(
        result,
        episode_id=trajectory.episode_id,
        seed=trajectory.seed if result.task is not None else result.seed,
        score=None if result.unscored else score_of(trajectory),
        verified=None if trajectory.verified is None else trajectory.verified.value,
        components=components_of(trajectory),
        problems=trajectory.problems,
        steps=len(trajectory.steps) + trajectory.dropped,
        terminated=trajectory.terminated,
        truncated=trajectory.truncated,
        reason=trajectory.reason,
        status=_status(result.failure, acted.status, trajectory.status),
        user_prompt_tokens=sum(turn.prompt_tokens for turn in asked) if asked else None,
        user_completion_tokens=sum(turn.completion_tokens for turn in asked) if asked else None,
    )


def _status(failure: Failure | None, of_error: Status | None, of_episode: Status | None) -> Status:
    """Return the status of the episode: the environment's own, unless the agent or its model failed."""
    if of_episode is None or (failure is Failure.ENVIRONMENT_ERROR and of_episode.usable):
        return of_error or status_of(failure)
    of_agent = status_of(failure)
    ended_by_agent = of_episode.usable and of_agent.code in (StatusCode.AGENT_ERROR, StatusCode.TRANSPORT_LOST)
    return of_agent if ended_by_agent else of_episode
