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
from mcpenv_client import EnvClient

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "docs" / "images"
Call = tuple[str, dict[str, Any]]
WAYS = ("north", "east", "south", "west")


def take(folder: Path) -> None:
    """Write the pictures of the three pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as record,
        serving(load_target(str(ROOT / "envs" / "maze_mcp")).factory, ServerConfig(record=Path(record))) as url,
        visiting() as visitor,
    ):
        visitor.width(1280)
        episodes = [_walked(url, number) for number in (1, 2, 3)]
        visitor.play(url)
        visitor.press("walk")
        for number, way in enumerate((*WAYS, *WAYS), 1):
            visitor.choose("direction", way)
            visitor.call()
            visitor.see(f"{number}. walk")
        _keep(visitor, folder / "console-play.png")
        visitor.width(1100)
        visitor.open(url, "records")
        visitor.read("3 episodes")
        _keep(visitor, folder / "console-records.png")
        visitor.open(url, f"records/{episodes[0]}?with={episodes[1]}")
        visitor.read("The first difference")
        _keep(visitor, folder / "console-compare.png")


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


def _walked(url: str, number: int) -> str:
    rng = random.Random(number)
    with EnvClient(url).sync() as env:
        episode = str(env.reset(seed=7, task="train-0").info["episode_id"])
        for way in ("north", *(rng.choice(WAYS) for _ in range(5 * number))):
            env.call_tool("walk", {"direction": way})
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
