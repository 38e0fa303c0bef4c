"""The clients of an environment in the same process, with the methods of `EnvClient` and `SyncEnvClient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import Misuse
from mcpenv.execution.snapshots import Snapshot
from mcpenv.extensions.records.replay import branch, branch_async
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepResult, Trajectory
from mcpenv_client.types.starts import Recorded, Start
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Tool

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

    @property
    def name(self) -> str:
        """The environment's name for clients."""
        return self.env.exposed_name()

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
        """Begin an episode. Takes the arguments of `EnvClient.reset`."""
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
        """Return the tools of the environment. This is not a step."""
        return self.env.list_tools()

    async def state(self) -> State:
        """Return the environment's state."""
        state: State = self.env.state
        return state

    async def snapshot(self) -> Snapshot:
        """Return a snapshot of the episode. Raises as `MCPEnvironment.snapshot`."""
        return await self.env.snapshot_async()

    async def restore(self, snapshot: Snapshot) -> StepResult[Observation]:
        """Continue from a snapshot, in a new episode. Raises as `MCPEnvironment.restore`."""
        return _result(await self.env.restore_async(snapshot))

    async def branch(self, record: Trajectory | Recorded | Start, step: int) -> StepResult[Observation]:
        """Begin an episode that continues a recorded one after a step. Raises as `EnvClient.branch`."""
        return _result(await branch_async(self.env, record, step))

    async def drop_snapshot(self, snapshot: Snapshot) -> bool:
        """Return True. A snapshot in this process takes memory as long as the caller refers to it."""
        return True

    async def trajectory(self) -> Trajectory:
        """Return the record of the running or last episode.

        Raises:
            Misuse: no episode has begun.
        """
        return _trajectory(self.env)


class SyncInProcessClient:
    """An environment with the methods of `SyncEnvClient`. Tools run in the caller's thread.

    Attributes:
        env: the environment. `close` closes it.
    """

    mcp_url: None = None

    def __init__(self, env: MCPEnvironment) -> None:
        self.env = env

    @property
    def name(self) -> str:
        """The environment's name for clients."""
        return self.env.exposed_name()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> StepResult[Observation]:
        """Begin an episode. Takes the arguments of `EnvClient.reset`."""
        return _result(self.env.reset(seed, episode_id, **options))

    def step(self, action: Action, *, timeout_s: float | None = None) -> StepResult[Observation]:
        """Take one step."""
        return _result(self.env.step(action, timeout_s=timeout_s))

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Observation]:
        """Call one tool, which is a step."""
        return _result(self.env.call_tool(name, arguments, timeout_s=timeout_s))

    def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Observation]:
        """End the episode."""
        return _result(self.env.end(truncated=truncated, reason=reason))

    def list_tools(self) -> list[Tool]:
        """Return the tools of the environment. This is not a step."""
        return self.env.list_tools()

    def state(self) -> State:
        """Return the environment's state."""
        state: State = self.env.state
        return state

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the episode. Raises as `MCPEnvironment.snapshot`."""
        return self.env.snapshot()

    def restore(self, snapshot: Snapshot) -> StepResult[Observation]:
        """Continue from a snapshot, in a new episode. Raises as `MCPEnvironment.restore`."""
        return _result(self.env.restore(snapshot))

    def branch(self, record: Trajectory | Recorded | Start, step: int) -> StepResult[Observation]:
        """Begin an episode that continues a recorded one after a step. Raises as `EnvClient.branch`."""
        return _result(branch(self.env, record, step))

    def drop_snapshot(self, snapshot: Snapshot) -> bool:
        """Return True. A snapshot in this process takes memory as long as the caller refers to it."""
        return True

    def trajectory(self) -> Trajectory:
        """Return the record of the running or last episode. Raises as `InProcessClient.trajectory`."""
        return _trajectory(self.env)


def _trajectory(env: MCPEnvironment) -> Trajectory:
    if env.trajectory is None:
        raise Misuse("no episode has begun, so that there is no trajectory; call reset() first")
    return env.trajectory


def _result(observation: Observation) -> StepResult[Observation]:
    return StepResult(
        observation=observation,
        reward=observation.reward,
        terminated=observation.terminated,
        truncated=observation.truncated,
        info=observation.info,
    )
