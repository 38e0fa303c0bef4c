"""The faults of arguments that do not fit, as data on the wire: a form shows each at its field."""

from __future__ import annotations

import json

import pytest
from fastmcp import FastMCP

from mcpenv import MCPEnvironment
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, Trajectory
from mcpenv_client.types.values import to_plain


def weigh(boxes: list[int], unit: str) -> str:
    """Weigh boxes."""
    return f"{sum(boxes)} {unit}"


class Own(MCPEnvironment):
    """A world with a tool."""

    def __init__(self) -> None:
        self.tool(weigh)


class Mounted(MCPEnvironment):
    """A world whose tool is a mounted server's."""

    def __init__(self) -> None:
        server: FastMCP = FastMCP("scales")
        server.tool(weigh)
        super().__init__(server)


@pytest.mark.parametrize("world", [Own, Mounted])
def test_each_fault_is_told_with_the_path_of_its_value(world: type[MCPEnvironment]) -> None:
    with serving(world) as url, EnvClient(url).sync() as env:
        env.reset()
        error = env.call_tool("weigh", {"boxes": [1, "many"]}).error
        assert error is not None and error.errors is not None
        assert [fault["loc"] for fault in error.errors] == [["boxes", 1], ["unit"]]
        assert all(fault["msg"] in error.message for fault in error.errors)
        assert env.call_tool("nothing").error.errors is None  # type: ignore[union-attr]


def test_a_record_has_the_message_and_not_the_faults() -> None:
    with serving(Own) as url, EnvClient(url).sync() as env:
        env.reset()
        env.call_tool("weigh", {"boxes": [], "unit": 1})
        trajectory: Trajectory = env.trajectory()
    error = trajectory.steps[0].outcome.error
    assert error is not None and error.errors is None
    assert "errors" not in json.dumps(to_plain(error))
