"""OpenEnv in one process: the same."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, Observation, State
from rounds import play


class Counter(MCPEnvironment):  # type: ignore[misc]
    """Count."""

    def __init__(self) -> None:
        mcp = FastMCP("counter")
        self.count = 0

        @mcp.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @mcp.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        super().__init__(mcp)
        self._state = State(episode_id="one", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.count = 0
        return Observation(done=False)

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        observation.reward = 1.0
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return self._state


def main() -> None:
    env = Counter()
    env.reset()
    for name in ("add", "add_sync"):
        assert env.step(CallToolAction(tool_name=name, arguments={"by": 1})).error is None
    play(
        {
            "async": lambda: env.step(CallToolAction(tool_name="add", arguments={"by": 1})),
            "sync": lambda: env.step(CallToolAction(tool_name="add_sync", arguments={"by": 1})),
            "instance": Counter,
        }
    )


if __name__ == "__main__":
    main()
