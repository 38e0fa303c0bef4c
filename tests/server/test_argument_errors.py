"""The faults of arguments that do not fit, as data on the wire: a form shows each at its field."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP

from mcpenv import MCPEnvironment
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, InvalidMessage, Trajectory
from mcpenv_client.types.values import MAX_NESTING, to_plain


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


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_arguments_nested_too_deep_for_a_record_are_refused_and_are_no_step() -> None:
    """A reply and a record nest them some levels deeper, and readers of JSON end at 200 levels."""
    deep = {"boxes": nested(MAX_NESTING + 5), "unit": "kg"}
    action = {"type": "call_tool", "tool_name": "weigh", "arguments": deep}
    with serving(Own) as url:
        with EnvClient(url).sync() as env:
            env.reset()
            with pytest.raises(InvalidMessage, match=f"nested too deeply: in more than {MAX_NESTING} ") as refused:
                env.call_tool("weigh", deep)
            assert "arguments.boxes[0][0]" in str(refused.value) and len(str(refused.value)) < 150
            assert env.call_tool("weigh", {**deep, "boxes": nested(MAX_NESTING)}).error is not None
            trajectory: Trajectory = env.trajectory()
            assert [len(json.dumps(step.call.arguments["boxes"])) for step in trajectory.steps] == [2 * MAX_NESTING]
        assert httpx.post(url + "/step", json={"action": action}, timeout=30).status_code == 422
    here = Own()
    here.reset()
    with pytest.raises(InvalidMessage, match="nested too deeply"):
        here.call_tool("weigh", deep)
    here.close()


class Given(MCPEnvironment):
    """Take anything at a reset."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, given: Any = None) -> None:
        """Start."""


@pytest.mark.parametrize("levels", [MAX_NESTING, 198, 260, 600, 5000])
def test_options_nested_too_deep_for_a_record_are_refused_and_the_episode_goes_on(levels: int) -> None:
    with Given() as here:
        here.reset(given=nested(MAX_NESTING - 1))
        before = here.trajectory
        with pytest.raises(InvalidMessage, match="nested in more than"):
            here.reset(given=nested(levels))
        assert here.trajectory == before
    if levels > 200:
        return  # the reader of a frame refuses it
    with serving(Given) as url, EnvClient(url).sync() as env:
        begun = env.reset(given=nested(MAX_NESTING - 1)).info["episode_id"]
        with pytest.raises(InvalidMessage, match="nested in more than"):
            env.reset(given=nested(levels))
        trajectory: Trajectory = env.trajectory()
        assert (trajectory.episode_id, trajectory.options) == (begun, {"given": nested(MAX_NESTING - 1)})
