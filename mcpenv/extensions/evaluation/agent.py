"""Define `Agent`, the interface of an agent that plays episodes. The evaluation resets and ends the episode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mcpenv_client.client import EnvClient
from mcpenv_client.errors import WireError
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.status import Status
from mcpenv_client.types.tools import Tool

from .results import Failure


@dataclass(frozen=True)
class Play:
    """The running episode that an agent plays.

    Attributes:
        env: the session. The agent may step, call and list tools; it must not reset or end the episode.
        mcp_url: the URL for an MCP client of this episode.
        prompt: the prompt for the agent.
        task_id: the task's id; without a task, the episode's id.
        tools: the tools that the agent can call.
        deadline: by the event loop's clock, in seconds.
        output: the file for the agent's output, if it prints any.
        hidden: the files and folders that a program of the agent must not see: the environment's code, the results.
        images: the images of the reset's observation, as blocks of MCP content.
    """

    env: EnvClient
    mcp_url: str
    prompt: str
    task_id: str
    tools: Sequence[Tool]
    deadline: float
    output: Path
    hidden: Sequence[Path] = ()
    images: Sequence[Mapping[str, Any]] = ()

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; 0 after it."""
        return max(self.deadline - asyncio.get_running_loop().time(), 0.0)


@dataclass
class Acted:
    """The outcome of an agent's play.

    Attributes:
        failure: None if the agent stopped without a failure, or the episode ended.
        detail: the failure's details, in one line.
        turns: number of answers of a model; None for other agents.
        malformed_calls: number of calls that could not be parsed.
        messages: the conversation in the format of chat completions, if there was one.
        context: the turns that the model dropped from its context (`ContextManager.to_plain`); None if it could drop
            none.
        prompt_tokens, completion_tokens: as counted by the endpoint.
        cost: the price of the model's answers, as reported by the endpoint; None if it reports none.
        model_turns: the turns of the agent's model; None if no proxy recorded them.
        status: the status of the environment's error that ended the play.
    """

    failure: Failure | None = None
    detail: str | None = None
    turns: int | None = None
    malformed_calls: int = 0
    messages: list[dict[str, Any]] | None = None
    context: dict[str, Any] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    model_turns: list[ModelTurn] | None = None
    status: Status | None = None

    def fail(self, failure: Failure, detail: str | None = None) -> Acted:
        """Set the failure and return this object."""
        self.failure, self.detail = failure, detail
        return self

    def fail_with(self, error: WireError) -> Acted:
        """Set the failure for an error of the environment, and return this object."""
        self.status = error.status
        return self.fail(Failure.ENVIRONMENT_ERROR, f"{error.code.value}: {error.message}")


class Agent(Protocol):
    """The interface of an agent. One object plays many episodes, several at once."""

    def described(self) -> dict[str, Any]:
        """Return the agent's settings as plain JSON data, for the record.

        A run is continued only with equal settings.
        """
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is entered before the first episode and left after the last.

        Raises:
            ConfigurationError: the agent cannot play with its settings.
        """
        ...

    async def act(self, play: Play) -> Acted:
        """Play one episode until the agent is done, the episode is over, or the deadline is reached.

        Report failures by `Acted.fail`, which keeps the conversation. Cancelling must stop everything that the agent
        started.

        Raises:
            WireError: the environment failed; equivalent to `Failure.ENVIRONMENT_ERROR`.
            ConfigurationError: the agent cannot play any episode. The evaluation stops.
        """
        ...
