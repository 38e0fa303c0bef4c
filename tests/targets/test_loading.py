"""``mcpenv.load``: an environment by the name of its target."""

from __future__ import annotations

from pathlib import Path

import pytest

import mcpenv
from mcpenv import TargetError

ENVS = Path(__file__).parents[2] / "envs"


def test_a_folder_is_loaded_and_played() -> None:
    env = mcpenv.load(ENVS / "echo_mcp")
    env.reset()
    assert env.call_tool("echo_message", {"message": "hi"}).text == "hi"
    env.close()


def test_settings_are_arguments_of_the_constructor(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(
        "from mcpenv import MCPEnvironment\n"
        "class World(MCPEnvironment):\n"
        "    def __init__(self, size=1):\n"
        "        self.size = size\n"
    )
    assert mcpenv.load(tmp_path, size=[2]).size == [2]  # type: ignore[attr-defined]
    with pytest.raises(TargetError, match="unexpected keyword argument 'colour'"):
        mcpenv.load(tmp_path, colour=1)


def test_a_target_that_is_not_there_is_named() -> None:
    with pytest.raises(TargetError, match="no-such-folder"):
        mcpenv.load("./no-such-folder")
