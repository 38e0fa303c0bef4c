"""Take the screenshots of the documentation: ``python tests/extensions/console/browser/screenshots.py [FOLDER]``.

With ``--worlds [NAME ...]``, write for each world below, or for those, the picture ``episode.png`` beside its README
instead.
With ``--tau2`` or ``--browser``, write that of tau2's page into ``docs/images``, or that of the README of browser_mcp,
whose server of Playwright must run.

Needs Debian's chromium and chromium-driver, and the package selenium.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visitor import Visitor, visiting

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client import EnvClient
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tools import ToolErrorType, ToolFailure

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "docs" / "images"
Call = tuple[str, dict[str, Any]]
WAYS = ("north", "east", "south", "west")


def take(folder: Path) -> None:
    """Write the pictures of the console's pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as record,
        serving(load_target(str(ROOT / "envs" / "maze_mcp")).factory, ServerConfig(record=Path(record))) as url,
        visiting() as visitor,
    ):
        visitor.width(1280)
        episodes = [_walked(url, number) for number in (1, 2, 3)]
        for number in range(4, 60):
            _walked(url, number, f"train-{number % 7}", number % 5 < number % 7)
        visitor.play(url)
        visitor.press("walk")
        for number, way in enumerate((*WAYS, *WAYS), 1):
            visitor.choose("direction", way)
            visitor.call()
            visitor.see(f"{number}. walk")
        _keep(visitor, folder / "console-play.png")
        visitor.width(1100)
        visitor.open(url, "records")
        visitor.read("59 episodes")
        visitor.find("//figure[.//strong[.='Tasks by attempt']]")
        _keep(visitor, folder / "console-records.png")
        visitor.open(url, f"records/{episodes[0]}?with={episodes[1]}")
        visitor.read("The first difference")
        _keep(visitor, folder / "console-compare.png")
    with (
        tempfile.TemporaryDirectory() as record,
        serving(load_target(str(ROOT / "envs" / "maze_mcp")).factory, ServerConfig(record=Path(record))) as url,
        visiting() as visitor,
    ):
        _train(Path(record))
        visitor.width(1280, 1000)
        visitor.open(url, "training")
        visitor.read("only fails")
        _keep(visitor, folder / "console-training.png")


def _train(record: Path) -> None:
    """Write the record of a made-up run of two servers, whose reward outgrows its verified value."""
    rng = random.Random(1)
    down = ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message="down"))
    with Recorder(record) as one, Recorder(record) as other:
        for version in range(30):
            for at in range(32):
                names = [
                    rng.choice(("search", "search", "read", "submit")) for _ in range(rng.randint(2, 4 + version // 5))
                ]
                steps = [
                    StepRecord(
                        ToolCall(name, {"number": rng.randint(0, 99)}, number),
                        down if name == "submit" and version > 14 else ToolOutcome.returned("done", 0.1),
                    )
                    for number, name in enumerate(names, 1)
                ]
                checked = float(rng.random() < 0.25)
                worth = 0.5 * checked + rng.random() * min(0.9, version * 0.03)
                begin = 1.79e9 + version * 600 + at
                trajectory = Trajectory(
                    f"v{version}-{at}", seed=at, steps=steps, end_reward=Reward(worth), total_reward=worth,
                    terminated=True, started_at=begin, ended_at=begin + 9, verified=Reward(checked),
                )  # fmt: skip
                turns = [ModelTurn("chat_completions", "/v1", {}, status=200, answer={}, policy_version=version)]
                writer = one if at % 2 else other
                writer.write(RecordedEpisode(trajectory, RecordedEnvironment("maze"), model_turns=turns))


WORLDS = {
    "office": ("train", 1),
    "operations": ("train", 1),
    "terminal": ("train", 1),
    "ledger": ("train", 1),
    "workspace": ("train", 1),
    "maze": ("train", 0),
    "agentdojo": ("clean", 0),
    "bfcl": ("base", 0),
    "reasoning_gym": ("train", 0),
    "rlve": ("train", 0),
    "textworld": ("train", 2),
    "harness_bench": ("test", 0),
    "miniwob": ("train", 0),
}
"""The split and the index of a task of each world, whose solution the picture shows."""


COUNTED: list[Call] = [
    ("browser_click", {"element": "the button", "target": "e3"}),
    ("browser_take_screenshot", {"scale": "css"}),
]
"""Calls that use the page with which an episode of browser_mcp begins."""


def take_worlds(folder: Path, worlds: Sequence[str]) -> None:
    """Write a picture of an episode beside the README of each of some worlds."""
    for world in worlds:
        at = folder / f"{world}_mcp"
        take_episode(str(at), at / "episode.png", WORLDS[world])


def take_episode(target: str, file: Path, at: tuple[str, int] | None, calls: Sequence[Call] = ()) -> None:
    """Write a picture of an episode.

    Args:
        target: the environment.
        file: the picture.
        at: the split and the index of the task whose solution is played; None: an episode without a task.
        calls: the calls of such an episode.
    """
    with (
        tempfile.TemporaryDirectory() as record,
        serving(load_target(target).factory, ServerConfig(record=Path(record))) as url,
        EnvClient(url).sync() as env,
        visiting() as visitor,
    ):
        task = None if at is None else env.get_task(*at)
        episode = str((env.reset() if task is None else env.reset(task=task)).info["episode_id"])
        oracle = [] if task is None else [(each.tool_name, each.arguments) for each in task.oracle or ()]
        for name, arguments in (*oracle, *calls):
            env.call_tool(name, arguments)
        env.end()
        visitor.width(1100, 1200)
        visitor.open(url, f"records/{episode}")
        visitor.read(episode if task is None else task.id)
        visitor.browser.execute_script("const first = document.querySelector('details'); if (first) first.open = false")
        _keep(visitor, file)


def _walked(url: str, number: int, name: str = "train-0", solved: bool = False) -> str:
    """Play an episode of a task: its solution, or a random walk that begins like the others."""
    rng = random.Random(number)
    with EnvClient(url).sync() as env:
        task = env.get_task("train", int(name.removeprefix("train-")))
        episode = str(env.reset(task=task).info["episode_id"])
        walk = [("walk", {"direction": way}) for way in ("north", *rng.choices(WAYS, k=5 + number % 17))]
        for tool, arguments in [(each.tool_name, each.arguments) for each in task.oracle or ()] if solved else walk:
            env.call_tool(tool, arguments)
        env.end()
    return episode


def _keep(visitor: Visitor, file: Path) -> None:
    visitor.browser.execute_script("scrollTo(0, 0)")
    assert visitor.browser.save_screenshot(str(file))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worlds"]:
        take_worlds(ROOT / "envs", sys.argv[2:] or [*WORLDS])
    elif sys.argv[1:2] == ["--tau2"]:
        take_episode("tau2:telecom", FOLDER / "tau2-telecom.png", ("train", 0))
    elif sys.argv[1:2] == ["--browser"]:
        take_episode(str(ROOT / "envs/browser_mcp/mcp.json"), ROOT / "envs/browser_mcp/episode.png", None, COUNTED)
    else:
        take(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
