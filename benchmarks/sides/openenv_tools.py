"""The same tools as an environment of OpenEnv's, served by OpenEnv: ``python openenv_tools.py [WORKERS]``."""

import asyncio
import base64
import os
from typing import Any
from uuid import uuid4

import uvicorn
from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics.base import Rubric
from pydantic import BaseModel

PAGE = "0123456789" * 10_000
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
) + bytes(16_000)


class Order(BaseModel):
    """The order of an item."""

    item: str
    quantity: int
    notes: list[str] = []


class One(Rubric):  # type: ignore[misc]
    """The rubric that gives 1 for each step."""

    def forward(self, action: Any, observation: Any) -> float:
        return 1.0


class Tools(MCPEnvironment):  # type: ignore[misc]
    """Count, in several ways."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("tools")
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

        @mcp.tool
        async def order(order: Order) -> int:
            """Order something."""
            self.count += order.quantity
            return self.count

        @mcp.tool
        async def read() -> str:
            """Read a page of 100 kB."""
            return PAGE

        @mcp.tool
        async def look() -> Image:
            """Look at a picture of 16 kB."""
            return Image(data=PICTURE, format="png")

        @mcp.tool
        async def wait(seconds: float) -> float:
            """Wait."""
            await asyncio.sleep(seconds)
            return seconds

        super().__init__(mcp)
        self.rubric = One()
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self._reset_rubric()
        self.count = 0
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(done=False)

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return self._scored(action, super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return self._scored(action, await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _scored(self, action: Action, observation: Observation) -> Observation:
        self._state.step_count += 1
        observation.reward = self._apply_rubric(action, observation)
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return self._state


app = create_app(
    Tools,
    CallToolAction,
    CallToolObservation,
    env_name="tools",
    max_concurrent_envs=int(os.environ.get("MAX_SESSIONS", "20000")),
)

if __name__ == "__main__":
    # What OpenEnv leaves to whoever serves it, as mcpenv has it: the faster loop and parser, no access log.
    uvicorn.run(
        app,
        port=0,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        access_log=False,
        timeout_keep_alive=75,
        backlog=4096,
    )
