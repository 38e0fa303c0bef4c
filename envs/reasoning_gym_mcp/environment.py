"""The puzzles of reasoning-gym, from the package of that name on PyPI."""

from __future__ import annotations

import functools
import random
from typing import Any

from mcpenv import ConfigurationError, OracleCall, Task, TaskSet
from mcpenv.extensions.generated_worlds import PuzzleEnvironment

try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ImportError as error:
    raise ConfigurationError(f"{error}. Install the package: pip install reasoning-gym==0.1.25") from error

RUN_ANSWERS = {
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
"""Generators whose ``score_answer`` runs the answer as Python, in the server, so that they are not offered."""

PAY_WRONG = {"complex_arithmetic", "game_of_life_halting"}
"""Generators whose ``score_answer`` pays 1.0 for a wrong answer: the first for ``nan``, the second for any text."""

NAMES = sorted(DATASETS.keys() - RUN_ANSWERS - PAY_WRONG - {"composite"})
"""The generators. ``composite`` mixes others."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What ``score_answer`` of some generators raises at an answer that is not of the expected form."""


@functools.lru_cache(maxsize=256)
def puzzle(generator: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the generator with this seed, which judges answers, and its first puzzle."""
    dataset = create_dataset(generator, size=1, seed=seed)
    return dataset, dataset[0]


def make_task(chance: random.Random, index: int) -> Task:
    """Return a puzzle; the generators take turns."""
    generator, seed = NAMES[index % len(NAMES)], chance.getrandbits(31)
    dataset, entry = puzzle(generator, seed)
    answer = entry["answer"]
    # Some generators accept any answer that keeps the puzzle's rules, and name none.
    known = answer is not None and dataset.score_answer(str(answer), entry) == 1.0
    return Task(
        id=f"{generator}-{index}",
        prompt=entry["question"],
        seed=seed,
        options={"generator": generator},
        oracle=[OracleCall(tool_name="answer", arguments={"text": str(answer)})] if known else None,
        family=generator,
        tags=[type(dataset).__module__.split(".")[1]],  # the package's own kind: algebra, games, logic, ...
    )


class ReasoningGymEnvironment(PuzzleEnvironment):
    """Solve a puzzle, and answer once.

    Description:
        Puzzles of 94 generators of reasoning-gym: algebra, arithmetic, code, games, geometry, graphs, induction,
        logic. Each task is new; the generators take turns.

    Tools:
        answer(text): give the answer. It ends the episode.

    Observation:
        Of a reset: ``metadata.prompt``, the puzzle.

    Reward:
        At the end, from 0.0 to 1.0: what the generator's own ``score_answer`` says; 0.0 without an answer, and
        for one at which ``score_answer`` raises.

    Start:
        The puzzle of the generator and the seed.

    End:
        Terminated by the answer.

    Arguments:
        generator: a reset option, the name of the generator.

    Version:
        0.1.25
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "reasoning_gym"
    VERSION = "0.1.25"
    tasks = TaskSet.generate(make_task, seed=2026, sizes={"train": 9_600, "test": 960}).with_licence(
        "Apache-2.0", source="reasoning-gym 0.1.25"
    )

    def reset(self, seed: int | None = None, episode_id: str | None = None, generator: str = "leg_counting") -> None:
        self.generator, self.seed, self.given = generator, seed or 0, None

    def judge(self, text: str) -> float:
        """Return what the generator says about the answer."""
        dataset, entry = puzzle(self.generator, self.seed)
        try:
            return float(dataset.score_answer(text, entry))
        except UNREADABLE:
            return 0.0
