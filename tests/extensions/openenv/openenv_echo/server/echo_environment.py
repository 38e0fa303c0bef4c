"""Echo: tools of a FastMCP server, one of each mode, a rubric, a few tasks."""

import asyncio
from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from openenv.core.rubrics.base import Rubric

TASKS = {"train": ["say to", "say fro"], "test": ["say hello"]}


class Words(Rubric):  # type: ignore[misc]
    """A tenth for each word that was echoed."""

    def forward(self, action: Any, observation: Any) -> float:
        if not isinstance(action, CallToolAction) or not action.tool_name.startswith("echo"):
            return 0.0
        return 0.1 * len(str(action.arguments.get("message", "")).split())


class EchoEnvironment(MCPEnvironment):  # type: ignore[misc]
    """Gives messages back."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, greeting: str = "Echo is ready.") -> None:
        mcp = FastMCP("echo")

        @mcp.tool
        def echo_message(message: str) -> str:
            """Give a message back."""
            return message

        @mcp.tool
        async def echo_with_length(message: str, times: int = 1) -> dict[str, Any]:
            """Give a message back several times, and its length."""
            if times < 1:
                raise ValueError("times is an invalid argument")
            return {"message": message * times, "length": len(message)}

        @mcp.tool
        async def echo_late(message: str, seconds: float) -> str:
            """Give a message back, late."""
            await asyncio.sleep(seconds)
            return message

        super().__init__(mcp)
        self.rubric = Words()
        self.greeting = greeting
        self._state = State(episode_id=str(uuid4()), step_count=0)

        @self.tool(mode="simulation")  # type: ignore[untyped-decorator]
        def hint(topics: list[str], loud: bool = False) -> str:
            """Only in an episode."""
            text = f"echo {' and '.join(topics)}"
            return text.upper() if loud else text

        @self.tool(mode="production")  # type: ignore[untyped-decorator]
        async def support(text: str) -> str:
            """Only for live clients."""
            return f"ticket: {text}"

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int = 0
    ) -> Observation:
        self._reset_rubric()
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0, task=TASKS[split][index])
        return Observation(done=False, metadata={"greeting": self.greeting, "seed": seed})

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"error": f"no {type(action).__name__} here"})

    @property
    def state(self) -> State:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="openenv_echo", description="Gives messages back.", version="0.3.0")

    def list_splits(self) -> list[str]:
        return list(TASKS)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [self.get_task(split, index) for index in range(self.num_tasks(split))]

    def num_tasks(self, split: str) -> int:
        return len(TASKS[split])

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return {"id": f"{split}-{index}", "text": TASKS[split][index]}

    async def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return self.list_tasks(split)[start:stop]
