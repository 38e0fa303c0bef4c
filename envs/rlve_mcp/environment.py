"""The puzzles of RLVE, from the package ``rlve-gym`` of PyPI."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from mcpenv import ConfigurationError, OracleCall, Reward, Task, TaskSet
from mcpenv.extensions.generated_worlds import PuzzleEnvironment


@contextmanager
def without_torch() -> Iterator[None]:
    """Let the package be imported without torch, whose seed it sets and which it uses for nothing else."""
    if importlib.util.find_spec("torch") is not None:
        yield
        return
    sys.modules["torch"] = ModuleType("torch")
    try:
        yield
    finally:
        del sys.modules["torch"]


try:
    with without_torch():
        from Gym.environments import identifier2environment as GENERATORS
        from Gym.parameter_controllers import identifier2controller as CONTROLLERS
except ImportError as error:
    raise ConfigurationError(
        f"{error}. Install the package and what it imports: pip install rlve-gym==0.0.1 networkx numpy sympy"
    ) from error

UNFIT = {"CountdownClose", "CountdownEqual", "Differentiate", "Integral", "PolyaModel"}
"""Generators whose checks run answers as Python, in the server; that of the last one accepts no answer."""

GIVEN_AWAY = {
    "BAJBytecomputer",
    "BucketSorting",
    "CheckAllCycleXorZero",
    "Clique_IndependentSet_Partitioning_Counting",
    "DeltaNimGame",
    "EuclidGame",
    "GcdLcmCounting",
    "GoldWashing",
    "IntegerFactorizationCounting",
    "LASLaser",
    "LampChanging",
    "MaxTree_KPathCoverage",
    "MaximumDivisor",
    "MinimumFibonacciRepresentation",
    "MitterTransportation",
    "MostComponentTreeRemovingTwoPaths",
    "MultipleFlippingGame",
    "SplittingGame",
    "StoneGame",
    "SubsequenceReversalLNDS",
    "TakingPrimeGame",
    "TreeCenter",
    "Tree_DistanceEqualTriad_Counting",
    "TriumphalArch",
}
"""Generators of whose puzzles more than five in six are given away: the answer is a word of the prompt, or 0 or 1."""

NAMES = sorted(GENERATORS.keys() - UNFIT - GIVEN_AWAY)
"""The generators that are offered."""

LEVELS = 5
"""The number of levels. A level is the package's own difficulty, which begins with 0, and 1."""

TRIES = 100
"""Maximum puzzles of a level that are looked at for one of the right split."""

WORD = re.compile(r"[^\s\"'`,;:(){}\[\]<>]+")

_generating = threading.Lock()


def puzzle(generator: str, level: int, seed: int) -> Any:
    """Return a puzzle, which has a prompt and judges answers."""
    controller = CONTROLLERS[generator]()
    for _ in range(level - 1):
        controller.update()
    made = GENERATORS[generator]()
    made.seed, made.parameter = seed, dict(random.Random(seed).choice(controller.get_parameter_list()))
    # Generators draw from the module ``random``. Random numbers of its own keep an episode from disturbing others.
    module: Any = sys.modules[GENERATORS[generator].__module__]
    with _generating:
        module.random = random.Random(seed)
        made._generate()
    return made


def held_out(prompt: str) -> bool:
    """Return True if a puzzle belongs to the split ``test``: one in four does, by its text."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 4 == 0


def given_away(made: Any, prompt: str) -> bool:
    """Return True if a puzzle accepts a word of its own prompt, or one of the commonest answers."""
    words = {"", "0", "1", *(word.strip(".!?") for word in WORD.findall(prompt))}
    return any(made.verifier(f"<answer>{word}</answer>")["accuracy"] for word in words)


def drawn(chance: random.Random, generator: str, first: int, split: str) -> tuple[int, int, Any, str]:
    """Return the seed, level and prompt of a puzzle of a split, and the puzzle itself.

    Puzzles that are given away are passed over. Some generators have a handful of puzzles of a low level, of which
    none is left. Then the level is the next one that has some.

    Raises:
        LookupError: no level has a puzzle.
    """
    for level in (*range(first, LEVELS + 1), *range(first - 1, 0, -1)):
        for _ in range(TRIES):
            seed = chance.getrandbits(31)
            made = puzzle(generator, level, seed)
            prompt = made.prompt_generator()
            if held_out(prompt) == (split == "test") and not given_away(made, prompt):
                return seed, level, made, prompt
    raise LookupError(f"{generator} has no puzzle for the split {split}")


def make_task(chance: random.Random, index: int, split: str) -> Task:
    """Return a puzzle; generators and levels take turns."""
    turn, place = divmod(index, len(NAMES))
    generator = NAMES[place]
    seed, level, made, prompt = drawn(chance, generator, 1 + (turn + place) % LEVELS, split)
    answer = made.parameter.get("reference_answer")
    return Task(
        id=f"{generator}-{index}",
        prompt=prompt,
        seed=seed,
        options={"generator": generator, "level": level},
        oracle=None if answer is None else [OracleCall(tool_name="answer", arguments={"text": str(answer)})],
        level=level,
        family=generator,
        # The package pays apart for an answer that is no solution, where a solution is built and many may do.
        tags=["construction" if any("solution" in name for name in made.rewards) else "value"],
    )


class RLVEEnvironment(PuzzleEnvironment):
    """Solve an algorithmic puzzle of one of five levels, and answer once.

    Description:
        Puzzles of 371 generators of RLVE: counting, graphs, strings, arrays, games, grids, algebra, number theory,
        optimisation. The parameters of a generator grow with the level.

    Tools:
        answer(text): give the answer. It ends the episode.

    Observation:
        Of a reset: ``metadata.prompt``, the puzzle.

    Reward:
        At the end, 1.0 if the generator's own check accepts the answer, else 0.0. The part ``graded`` is the
        generator's own reward, from -1.0 for what it cannot read to 1.0; some generators grade wrong answers.

    Start:
        The puzzle of the generator, the level and the seed.

    End:
        Terminated by the answer.

    Arguments:
        generator, level: reset options, the name of the generator, and its level from 1 to 5.

    Version:
        0.0.1
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "rlve"
    VERSION = "0.0.1"
    tasks = TaskSet.generate(make_task, seed=2030, sizes={"train": 9275, "test": 1855}).with_licence(
        "MIT", source="rlve-gym 0.0.1"
    )

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        generator: str = "Multiplication",
        level: int = 1,
    ) -> None:
        self.generator, self.level, self.seed, self.given = generator, level, seed or 0, None

    def judge(self, text: str) -> Reward:
        """Return what the generator's own check says about the answer."""
        found = puzzle(self.generator, self.level, self.seed).verifier(f"<answer>{text}</answer>")
        return Reward(float(found["accuracy"]), {"graded": float(found["reward"])})
