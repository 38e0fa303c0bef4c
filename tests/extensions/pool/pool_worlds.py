"""Environments and policies of the tests of pools, importable in worker processes."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from mcpenv import MCPEnvironment, TaskSet
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode
from mcpenv_client.types.actions import CallToolAction


class Dice(MCPEnvironment):
    """Roll dice; a seed decides them."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet({"id": f"t{goal}", "prompt": f"Reach {goal}.", "options": {"goal": goal}} for goal in range(20))

    def __init__(self) -> None:
        self.random = random.Random()
        self.sum = self.goal = 0

        @self.tool
        def roll(times: int = 1) -> list[int]:
            """Roll dice."""
            rolled = [self.random.randint(1, 6) for _ in range(times)]
            self.sum += sum(rolled)
            if self.sum >= 60:
                self.finish()
            return rolled

        @self.tool
        def die() -> str:
            """End the process of this environment."""
            os.kill(os.getpid(), signal.SIGKILL)
            return "never"

        @self.tool
        def hang(seconds: float) -> str:
            """Do not answer for some time."""
            time.sleep(seconds)
            return "late"

        @self.tool
        def grind(seconds: float) -> str:
            """Hold the interpreter for some time, as slow code in C does."""
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
            return "ground"

        @self.tool
        def eat(size: int) -> int:
            """Take memory."""
            return len(bytearray(size))

        @self.tool
        def burst() -> str:
            """Fail."""
            raise RuntimeError("burst")

    def reset(self, seed: int | None = None, episode_id: str | None = None, goal: int = 0) -> None:
        self.random = random.Random(seed)
        self.sum, self.goal = 0, goal

    def score(self, call: Any, outcome: Any) -> float:
        return 0.125

    def verify(self, evidence: Any) -> float:
        return float(self.sum % 7 == 0)


class Endless(MCPEnvironment):
    """Its async tool never returns, and can be cancelled."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        async def wait() -> str:
            """Wait for ever."""
            await asyncio.Event().wait()
            return "over"


async def waits_in_the_first(episode: Episode) -> None:
    """Call the endless tool in the first episode."""
    if episode.assignment.number == 0:
        await episode.call_tool("wait")


class Wild(Dice):
    """Dice whose reset is random in spite of its seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, goal: int = 0) -> None:
        super().reset(seed=seed, episode_id=episode_id, goal=goal)
        self.random = random.Random(random.SystemRandom().getrandbits(64))


class Locked(Dice):
    """Dice that cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Marked(Dice):
    """Dice whose reset leaves a file, named by its task."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def reset(self, seed: int | None = None, episode_id: str | None = None, goal: int = 0) -> None:
        super().reset(seed=seed, episode_id=episode_id, goal=goal)
        (self.directory / f"t{goal}").touch()


class Beside:
    """An async policy that waits until one episode more was reset than policies began, as the files of `Marked` say.

    Args:
        directory: where the files are.
        episodes: how many there are in all.
    """

    def __init__(self, directory: Path, episodes: int) -> None:
        self.directory, self.episodes = directory, episodes

    async def __call__(self, episode: Episode) -> int:
        running = self.directory / "running"
        running.touch(exist_ok=False)  # one policy at a time
        (self.directory / f"began-{episode.assignment.number}").touch()
        wanted = min(len(list(self.directory.glob("began-*"))) + 1, self.episodes)
        while len(list(self.directory.glob("t*"))) < wanted:
            await asyncio.sleep(0.01)
        total = await five_rolls_async(episode)
        running.unlink()
        return total


def five_rolls(episode: BlockingEpisode) -> int:
    total = 0
    for times in range(1, 6):
        if episode.done:
            break
        total += sum(episode.call_tool("roll", {"times": times}).observation.result.data)
    return total


async def five_rolls_async(episode: Episode) -> int:
    total = 0
    for times in range(1, 6):
        if episode.done:
            break
        await asyncio.sleep(0)
        total += sum((await episode.call_tool("roll", {"times": times})).observation.result.data)
    return total


class Counts:
    """An async policy that calls a tool until a file says stop, and keeps the number of its calls in another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __call__(self, episode: Episode) -> None:
        for number in itertools.count(1):
            await episode.call_tool("roll", {"times": 0})
            (self.directory / "calls").write_text(str(number))
            await asyncio.sleep(0.01)
            if (self.directory / "stop").exists():
                return


class CountsBlocking(Counts):
    """The same as a plain function."""

    def __call__(self, episode: BlockingEpisode) -> None:  # type: ignore[override]
        for number in itertools.count(1):
            episode.call_tool("roll", {"times": 0})
            (self.directory / "calls").write_text(str(number))
            time.sleep(0.01)
            if (self.directory / "stop").exists():
                return


class RollsAround:
    """An async policy that rolls, waits for a file unless its episode is the first, and rolls again.

    It leaves a file for each episode that it began, with the number of its beginnings.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def __call__(self, episode: Episode) -> int:
        chat = await episode.chat()
        function = {"name": "roll", "arguments": '{"times": 2}'}
        await chat.act({"role": "assistant", "tool_calls": [{"function": function}]})
        with (self.directory / f"began-{episode.assignment.number}").open("a") as began:
            began.write("1")
        while episode.assignment.number and not (self.directory / "go").exists():
            await asyncio.sleep(0.01)
        await chat.act({"role": "assistant", "tool_calls": [{"function": function}]})
        return len(chat.messages)


async def held_by_a_pause(pool: EnvPool, playing: asyncio.Future[Any], directory: Path) -> bool:
    """Pause a pool that plays `Counts`, let its policy stop, and return True if it goes on to wait."""
    made = directory / "calls"
    while not made.exists():
        await asyncio.sleep(0.01)
    pool.pause()
    same, before = 0, ""
    while same < 4:  # the message to another process may need some time
        await asyncio.wait([playing], timeout=0.2)
        same, before = same + 1 if made.read_text() == before else 0, made.read_text()
    (directory / "stop").touch()
    done, _ = await asyncio.wait([playing], timeout=0.2)
    return not done


async def grinds(episode: Episode) -> str:
    """Make a call that holds the interpreter for a second, between two others."""
    await episode.call_tool("roll")
    text = (await episode.call_tool("grind", {"seconds": 1.0})).text
    await episode.call_tool("roll")
    return text


async def rolls_at_once(episode: Episode) -> None:
    """Make three calls at once after an answer of a model, then one after another answer."""
    episode.wrote([1], [2, 3], [-0.5, -0.5])
    rolled = await asyncio.gather(*(episode.call_tool("roll", {}) for _ in range(3)))
    episode.wrote([1, 2, 3, *(len(each.text) for each in rolled)], [4], [-0.25])
    await episode.call_tool("roll", {})


def slow_rolls(episode: BlockingEpisode) -> None:
    """Make fifty slow calls, as a model would."""
    for number in range(50):
        if episode.done:
            break
        time.sleep(0.002)
        episode.call_tool("hang" if number % 2 else "roll", {"seconds": 0.002} if number % 2 else {})


async def slow_rolls_async(episode: Episode) -> None:
    """Make fifty slow calls, as a model would."""
    for number in range(50):
        if episode.done:
            break
        await asyncio.sleep(0.002)
        await episode.call_tool("hang" if number % 2 else "roll", {"seconds": 0.002} if number % 2 else {})


def thinks(episode: BlockingEpisode) -> None:
    """Wait for a model that does not answer."""
    episode.call_tool("roll")
    time.sleep(600)


async def thinks_async(episode: Episode) -> None:
    """Wait for a model that does not answer."""
    await episode.call_tool("roll")
    await asyncio.sleep(600)


def endless(episode: BlockingEpisode) -> None:
    """Make calls for ever, whatever they answer."""
    while True:
        episode.call_tool("hang", {"seconds": 0.01})


async def endless_async(episode: Episode) -> None:
    """Make calls for ever."""
    while True:
        await episode.call_tool("hang", {"seconds": 0.01})


def hangs(episode: BlockingEpisode) -> None:
    """Make a call that does not return."""
    episode.call_tool("hang", {"seconds": 600})


def hangs_past_its_limit(episode: BlockingEpisode) -> None:
    """Make one call that is longer than half a second, and return."""
    episode.call_tool("hang", {"seconds": 1.0})


async def hangs_async(episode: Episode) -> None:
    """Make a call that does not return."""
    await episode.call_tool("hang", {"seconds": 600})


async def written_rolls(episode: Episode) -> None:
    """Make slow calls, each after an answer of a model."""
    prompt = [1]
    for number in range(10):
        episode.wrote(prompt, [number])
        prompt = [*prompt, number]
        await asyncio.sleep(0.002)
        await episode.call_tool("hang", {"seconds": 0.002})


async def one_chat(episode: Episode) -> int:
    chat = await episode.chat(max_turns=2)
    function = {"name": "roll", "arguments": '{"times": 2}'}
    while not chat.done:
        await chat.act({"role": "assistant", "tool_calls": [{"function": function}]})
    return chat.turns


class Once:
    """A policy that does something in the first attempt at one episode, and otherwise rolls."""

    def __init__(self, marker: Path, tool: str, arguments: dict[str, Any], number: int) -> None:
        self.marker, self.tool, self.arguments, self.number = marker, tool, arguments, number

    def __call__(self, episode: BlockingEpisode) -> int:
        if episode.assignment.number == self.number and not self.marker.exists():
            self.marker.touch()
            episode.call_tool(self.tool, self.arguments)
        return five_rolls(episode)


class OnceAsync(Once):
    """An async policy that does something in the first attempt at one episode, and otherwise rolls."""

    async def __call__(self, episode: Episode) -> int:  # type: ignore[override]
        if episode.assignment.number == self.number and not self.marker.exists():
            self.marker.touch()
            await episode.call_tool(self.tool, self.arguments)
        return await five_rolls_async(episode)


def wrong(episode: BlockingEpisode) -> None:
    raise KeyError("a mistake of the policy")


def calls(tool: str, **arguments: Any) -> CallToolAction:
    return CallToolAction(tool_name=tool, arguments=arguments)


class Calls:
    """A policy that makes one call."""

    def __init__(self, tool: str, **arguments: Any) -> None:
        self.tool, self.arguments = tool, arguments

    def __call__(self, episode: BlockingEpisode) -> str:
        return episode.call_tool(self.tool, self.arguments).text


def wrong_at_three(episode: BlockingEpisode) -> None:
    episode.call_tool("roll")
    if episode.assignment.number == 3:
        raise KeyError("a mistake of the policy")
