"""The same tools as an environment of openreward's, served by openreward's own application."""

from __future__ import annotations

import logging
from typing import Any

import structlog
import uvicorn
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class By(BaseModel):
    """The arguments of the tool."""

    by: int = 1


class Tools(Environment):  # type: ignore[misc]
    """Count."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.count = 0

    @classmethod
    def list_splits(cls) -> list[Any]:
        """Return a single one."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        """Return a single one."""
        return [{"target": 1}]

    def get_prompt(self) -> list[Any]:
        """Return the prompt, which is not used."""
        return [TextBlock(text="Count.")]

    @tool  # type: ignore[untyped-decorator]
    async def add(self, params: By) -> ToolOutput:
        """Add to the counter."""
        self.count += params.by
        return ToolOutput(blocks=[TextBlock(text=str(self.count))], reward=1.0)


if __name__ == "__main__":
    # Its `run`, which asks the network for updates, sets no more than these; without a log line for each call.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvicorn.run(Server([Tools]).app, port=0, loop="uvloop", http="httptools", timeout_keep_alive=75, access_log=False)
