"""Agent: who plays. It gets an episode that was reset, acts, and says how that went; the end is not its business."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mcpenv_client.client import EnvClient
from mcpenv_client.tools import Tool

from .results import Failure


@dataclass(frozen=True)
class Play:
    """An episode, as an agent gets it.

    Attributes:
        env: the session; the agent may step, call and list, and neither resets nor ends.
        mcp_url: where an MCP client acts on this episode.
        prompt: what the agent is told.
        task_id: of the task, or the episode's id where there is none.
        tools: what it can call.
        deadline: by the event loop's clock, in seconds.
        output: the file that keeps what the agent prints, if it prints.
    """

    env: EnvClient
    mcp_url: str
    prompt: str
    task_id: str
    tools: Sequence[Tool]
    deadline: float
    output: Path

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 when it is past."""
        return max(self.deadline - asyncio.get_running_loop().time(), 0.0)


@dataclass
class Acted:
    """How an agent's play went.

    Attributes:
        failure: None if it stopped by itself, or the episode ended.
        detail: of the failure, in one line.
        turns: answers of a model; None for other agents.
        malformed_calls: calls that could not be read.
        messages: the conversation as chat completions have it, if there was one.
        prompt_tokens, completion_tokens: as the endpoint counts them.
    """

    failure: Failure | None = None
    detail: str | None = None
    turns: int | None = None
    malformed_calls: int = 0
    messages: list[dict[str, Any]] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def fail(self, failure: Failure, detail: str | None = None) -> Acted:
        """The same, failed."""
        self.failure, self.detail = failure, detail
        return self


class Agent(Protocol):
    """Anything that can play. One object plays many episodes, several at a time."""

    def described(self) -> dict[str, Any]:
        """What it is, as plain JSON data: it stands in the record, and a run goes on only with the same."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Around all its episodes.

        Raises:
            ConfigurationError: it cannot play as it was set up.
        """
        ...

    async def act(self, play: Play) -> Acted:
        """Play one episode, until there is no more to do, the episode is over, or the deadline is past.

        What fails is said by `Acted.fail`, so that the conversation until then is kept. Cancelling leaves nothing
        running.

        Raises:
            WireError: the environment failed; the same as `Failure.ENVIRONMENT_ERROR`.
            ConfigurationError: it cannot play at all, this episode or any other; the evaluation stops.
        """
        ...
