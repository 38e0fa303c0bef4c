"""Text games that TextWorld makes from a seed, from the package ``textworld`` of PyPI."""

from __future__ import annotations

import functools
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from mcpenv import ConfigurationError, Evidence, MCPEnvironment, OracleCall, Reward, Task, TaskLimits, TaskSet
from mcpenv.worlds import ObjectWorld

try:
    from textworld import GameOptions
    from textworld.generator import KnowledgeBase, QuestGenerationError, make_game
    from textworld.generator.game import GameProgression
    from textworld.generator.inform7 import Inform7Game
except ImportError as error:
    raise ConfigurationError(
        f"{error}. Install the package without spacy, which it does not use: pip install --no-deps textworld==1.7.0 "
        "jericho==3.3.1 && pip install hashids mementos more-itertools networkx numpy prompt_toolkit tatsu==5.8.3 "
        "termcolor tqdm"
    ) from error

SHAPES = ((1, 4, 2), (2, 6, 3), (3, 6, 4), (4, 8, 6), (5, 8, 7))
"""The numbers of rooms, of things and of commands of the shortest solution, by level."""

KNOWLEDGE = KnowledgeBase.load()

HELP = (
    "\n\nThe tool do takes one command: look, go north, open THING, close THING, take THING, take THING from THING, "
    "drop THING, put THING on THING, insert THING into THING, unlock THING with THING, lock THING with THING, "
    "eat THING. Names are those that you read. The game ends when its goal is reached."
)

_making = threading.Lock()


@functools.lru_cache(maxsize=128)
def game_of(level: int, seed: int) -> Any:
    """Return the game of a seed, or of the first one after it with which there is one."""
    rooms, things, length = SHAPES[level - 1]
    while True:
        options = GameOptions()
        options.kb = KNOWLEDGE
        options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, rooms, things, length
        options.grammar.only_last_action = True  # the goal without the way to it
        try:
            with _making:
                return make_game(options)
        except QuestGenerationError:
            seed += 1


class Play:
    """A game that is played."""

    def __init__(self, level: int, seed: int) -> None:
        self.game = game_of(level, seed)
        self._words = Inform7Game(self.game)
        self._progress = GameProgression(self.game, track_quests=True)
        self.commands: list[str] = []

    @property
    def won(self) -> bool:
        return bool(self._progress.completed)

    def solution(self) -> list[str]:
        """Return the commands that win, from here on."""
        return list(self._words.gen_commands_from_actions(self._progress.winning_policy))

    def act(self, command: str) -> bool:
        """Do what a command says. Return False if that cannot be done."""
        actions = list(self._progress.valid_actions)
        found = {
            name.casefold(): action
            for name, action in zip(self._words.gen_commands_from_actions(actions), actions, strict=True)
        }
        action = found.get(" ".join(command.split()).casefold())
        if action is None:
            return False
        self._progress.update(action)
        self.commands.append(command)
        return True

    def facts(self) -> list[str]:
        """Return all that is so, in a fixed order."""
        return sorted(map(str, map(self._words.get_human_readable_fact, self._progress.state.facts)))

    def seen(self) -> str:
        """Return what the player sees and carries."""
        holds, states = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        facts = sorted(self._progress.state.facts, key=str)
        for fact in facts:
            names = [each.name for each in fact.arguments]
            if fact.name in ("at", "in", "on"):
                holds[names[1]].append(names[0])
            elif fact.name in ("open", "closed", "locked"):
                states[names[0]].append(fact.name)
        here = next(room for room, inside in holds.items() if "P" in inside)
        doors = {
            (each.arguments[0].name, each.arguments[2].name): each.arguments[1].name
            for each in facts
            if each.name == "link"
        }
        lines = [f"You are in the {self._name(here)}."]
        for fact in facts:
            if fact.name.endswith("_of") and fact.arguments[1].name == here:
                door = doors.get((here, fact.arguments[0].name))
                way = "" if door is None else f", by the {self._name(door)} ({states[door][0]})"
                lines.append(f"To the {fact.name[:-3]} is a way{way}.")
        lines += self._listed(here, holds, states, "Here is")
        lines += self._listed("I", holds, states, "You carry")
        return "\n".join(lines)

    def _listed(
        self, holder: str, holds: dict[str, list[str]], states: dict[str, list[str]], begin: str
    ) -> Iterator[str]:
        for thing in holds[holder]:
            if thing != "P":
                state = states[thing]
                yield f"{begin} the {self._name(thing)}{f' ({state[0]})' if state else ''}."
                if state in ([], ["open"]):
                    relation = "In" if state else "On"
                    yield from self._listed(thing, holds, states, f"{relation} the {self._name(thing)} is")

    def _name(self, thing: str) -> str:
        return str(self.game.infos[thing].name)


def make_task(chance: random.Random, index: int) -> Task:
    """Return a game; the levels take turns."""
    level, seed = 1 + index % len(SHAPES), chance.getrandbits(31)
    play = Play(level, seed)
    commands = play.solution()
    return Task(
        id=f"game-{index}",
        prompt=play.game.objective + HELP,
        seed=seed,
        options={"level": level},
        limits=TaskLimits(max_steps=10 + 6 * len(commands)),
        oracle=[OracleCall(tool_name="do", arguments={"command": each}) for each in commands],
        level=level,
        family=commands[-1].split()[0],
        tags=sorted({command.split()[0] for command in commands}),
    )


class TextWorldEnvironment(MCPEnvironment):
    """Walk through the rooms of a text game, and do with its things what is asked for.

    Description:
        Games of TextWorld. Rooms have doors, chests, tables and keys; a goal asks for one change, such as a thing that
        is put on a table in another room. What must be done before is for the player to find out.

    Tools:
        do(command): give one command of the game.

    Observation:
        Of a reset: ``metadata.prompt``, the goal. Of a step: the room, its ways and things, and what the player
        carries.

    Reward:
        At the end, 1.0 if the goal is reached, else 0.0.

    Start:
        The game of the level and the seed.

    End:
        Terminated when the goal is reached. Truncated after the task's ``max_steps``.

    Arguments:
        level: a reset option, from 1 to 5: the number of rooms, of things and of commands that are needed.

    Version:
        1.7.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "textworld"
    VERSION = "1.7.0"
    tasks = TaskSet.generate(make_task, seed=2031, sizes={"train": 1000, "test": 200}).with_licence(
        "MIT", source="textworld 1.7.0"
    )

    def __init__(self) -> None:
        self.level, self.seed = 1, 0
        self.play = Play(self.level, self.seed)
        self.world = ObjectWorld(lambda: {"facts": self.play.facts(), "won": self.play.won})
        self.tool(self.do)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, level: Annotated[int, Field(ge=1, le=5)] = 1
    ) -> None:
        self._start(level, seed or 0)

    def _start(self, level: int, seed: int) -> None:
        self.level, self.seed, self.play = level, seed, Play(level, seed)

    def save_state(self) -> dict[str, Any]:
        return {"level": self.level, "seed": self.seed, "commands": self.play.commands}

    def load_state(self, state: dict[str, Any]) -> None:
        self._start(state["level"], state["seed"])
        for command in state["commands"]:
            self.play.act(command)

    def do(self, command: Annotated[str, Field(description="One command", examples=["take key from chest"])]) -> str:
        """Do one thing, and read what you see then."""
        if command.strip().casefold() != "look" and not self.play.act(command):
            return f"You cannot do that here: {command}\n{self.play.seen()}"
        if self.play.won:
            self.finish()
            return "The goal is reached."
        return self.play.seen()

    def verify(self, evidence: Evidence) -> Reward:
        """Return 1.0 if the goal is reached."""
        assert evidence.after is not None
        return Reward(float(evidence.after["won"]))
