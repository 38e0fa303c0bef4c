"""The client of an environment in the same process, with the methods of `EnvClient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepResult, Trajectory
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Tool

from .environment import MCPEnvironment
from .errors import Misuse

if TYPE_CHECKING:
    from typing import Self


class InProcessClient:
    """An environment with the methods of `EnvClient`, so that the same code plays it here and on a server.

    There is no server: a tool runs in the caller's thread unless a call has a deadline, and an agent has no URL.

    Attributes:
        env: the environment. `close` closes it.
    """

    mcp_url: None = None

    def __init__(self, env: MCPEnvironment) -> None:
        self.env = env

    async def connect(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Close the environment."""
        await self.env.close_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> StepResult[Observation]:
        """Begin an episode. The arguments are those of `EnvClient.reset`."""
        return _result(await self.env.reset_async(seed, episode_id, **options))

    async def step(self, action: Action, *, timeout_s: float | None = None) -> StepResult[Observation]:
        """Take one step."""
        return _result(await self.env.step_async(action, timeout_s=timeout_s))

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Observation]:
        """Call one tool, which is a step."""
        return _result(await self.env.call_tool_async(name, arguments, timeout_s=timeout_s))

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Observation]:
        """End the episode."""
        return _result(await self.env.end_async(truncated=truncated, reason=reason))

    async def list_tools(self) -> list[Tool]:
        """Return the tools of the environment. This is no step."""
        return self.env.list_tools()

    async def state(self) -> State:
        """Return the environment's state."""
        state: State = self.env.state
        return state

    async def trajectory(self) -> Trajectory:
        """Return the record of the running or last episode.

        Raises:
            Misuse: no episode has begun.
        """
        trajectory = self.env.trajectory
        if trajectory is None:
            raise Misuse("no episode has begun, so that there is no trajectory; call reset() first")
        return trajectory


def _result(observation: Observation) -> StepResult[Observation]:
    return StepResult(
        observation=observation,
        reward=observation.reward,
        terminated=observation.terminated,
        truncated=observation.truncated,
        info=observation.info,
    )


__all__ = ["InProcessClient"]
