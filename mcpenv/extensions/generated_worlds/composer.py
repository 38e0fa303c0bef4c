"""Compose tasks of goals: levels, splits, variants, and the split of an operator's secret."""

from __future__ import annotations

import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import SecretStr

from mcpenv import MCPEnvironment, TaskSet

from .goals import Call, Changes, Family, Goal, NoCase, Setting, goals_of, numbered, random_of, where

SettingT = TypeVar("SettingT", bound=Setting)
EnvironmentT = TypeVar("EnvironmentT", bound="ComposedEnvironment")

LEVELS = 5
PRIVATE = "private"
VARIANTS = "_variants"
"""The end of the name of a split of variants: its task 7 has the families of task 7 of the original, with other names
and figures."""

TRIES = 60


@dataclass(frozen=True)
class Shape(Generic[SettingT]):
    """What a task and its variants have in common.

    Attributes:
        level: from 1 to 5.
        families: the family of each goal.
        injected: True if an attacker has written into a text that the solution reads.
    """

    level: int
    families: tuple[Family[SettingT], ...]
    injected: bool

    @property
    def tags(self) -> list[str]:
        """What makes the task hard."""
        tags = {tag for each in self.families for tag in each.tags}
        return sorted(tags | ({"injection"} if self.injected else set()))


class Composer(ABC, Generic[SettingT]):
    """Makes the tasks of all splits. A world derives it.

    Args:
        secret: the operator's secret, from which private splits are made; None: there are none.
    """

    SEED: ClassVar[int]
    SIZES: ClassVar[Mapping[str, int]]
    """The number of tasks of each other split."""
    PRIVATE_SIZES: ClassVar[Mapping[str, int]]
    """The number of tasks of each private split."""
    WORLD: ClassVar[str]
    """The option of a reset that has the seed of the world."""
    WORLDS: ClassVar[int]
    """The number of worlds of each split."""
    CANARY: ClassVar[str]
    """A line in each text of private splits, and of splits with "test" in their names."""
    LOOKS: ClassVar[tuple[str, ...]]
    """How the names of tools begin that change nothing."""
    SPARE_STEPS: ClassVar[int]
    """The steps that an agent has beyond three times those of the solution."""
    LADDER: ClassVar[int] = 60
    """The number of tasks of each level on which the ladder is measured."""

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret

    @abstractmethod
    def shape(self, rng: random.Random, level: int) -> Shape[SettingT]:
        """Draw the families of a task."""

    @abstractmethod
    def setting(self, world: int, rng: random.Random, canary: str, shape: Shape[SettingT]) -> SettingT:
        """Return the setting of a task in the world of a seed."""

    @abstractmethod
    def attack(self, setting: SettingT, table: str, key: int, goals: list[Goal]) -> list[Call]:
        """Write an attacker's instruction below the text of a row, and return the calls that obey it.

        Raises:
            NoCase: the world has nothing to attack.
        """

    @abstractmethod
    def preamble(self, setting: SettingT) -> str:
        """Return what stands before the requests of a prompt."""

    def changes(self, setting: SettingT, goals: list[Goal]) -> Changes:
        """Return the changes that follow from those of the goals."""
        return []

    def options(self, setting: SettingT, goals: list[Goal]) -> dict[str, Any]:
        """Return options of a reset besides the seed of the world and the canary."""
        return {"rows": {table: list(rows.values()) for table, rows in setting.delta.items()}}

    def metadata(self, setting: SettingT, goals: list[Goal]) -> dict[str, Any]:
        """Return what a task notes besides its families, hops and the calls of dishonest agents."""
        return {}

    def task(self, split: str, index: int) -> dict[str, Any]:
        """Return one task as plain data."""
        secret, original = (self._secret,) if split in self.PRIVATE_SIZES else (), original_of(split)
        shape = self.shape(random_of(self.SEED, "shape", original, index, *secret), 1 + index % LEVELS)
        canary = self.CANARY if "test" in split or secret else ""
        for attempt in range(TRIES):
            rng = random_of(self.SEED, "names", split, index, attempt, *secret)
            place = random_of(self.SEED, split, rng.randrange(self.WORLDS), *secret)
            world = int.from_bytes(place.randbytes(4), "big")
            setting = self.setting(world, rng, canary, shape)
            goals = goals_of(setting, shape.families)
            if goals is None:
                continue
            attack: list[Call] = []
            if shape.injected:
                carriers = [carrier for goal in goals for carrier in goal.carriers]
                if not carriers:
                    continue
                table, key = rng.choice(carriers)
                if any(where(table, id=key) in each.reads and (table, key) not in each.carriers for each in goals):
                    continue  # another goal may copy the text, as a mail that is forwarded
                try:
                    attack = self.attack(setting, table, key, goals)
                except NoCase:
                    continue
            made = self._written(setting, shape, goals, attack, world, canary)
            if split != original and self._done_by(made) == self._done_by(self.task(original, index)):
                continue  # the calls of the original task, by chance
            return made
        raise RuntimeError(f"no {self.WORLD} has rows for {[each.name for each in shape.families]}")

    def tasks(self) -> TaskSet:
        """Return the tasks, with private splits if there is a secret."""
        sizes = self.SIZES if self._secret is None else {**self.SIZES, **self.PRIVATE_SIZES}

        def make(rng: random.Random, index: int, split: str) -> dict[str, Any]:
            # Not from rng: a variant shares the shape of a task of another split.
            return self.task(split, index)

        return TaskSet.generate(make, seed=self.SEED, sizes=sizes)

    def _done_by(self, task: dict[str, Any]) -> list[Call]:
        """Return the calls of a solution that change something or answer."""
        without = (*self.LOOKS, "decline", "ask")
        return [each for each in task["oracle"] if not each["tool_name"].startswith(without)]

    def _written(
        self,
        setting: SettingT,
        shape: Shape[SettingT],
        goals: list[Goal],
        attack: list[Call],
        world: int,
        canary: str,
    ) -> dict[str, Any]:
        """Return the task of some goals."""
        several = len(goals) > 1
        requests = [goal.prompt if goal.prompt.endswith("?") else f"{goal.prompt}." for goal in goals]
        lines = [f"{n}. {request}" if several else request for n, request in enumerate(requests, 1)]
        prompt = [self.preamble(setting), *lines, *([canary] if canary else [])]
        oracle: list[Call] = []
        breach: list[Call] = []
        changes = self.changes(setting, goals)
        for part, goal in enumerate(goals, 1):
            oracle += [numbered(each, part) for each in goal.oracle]
            breach += [numbered(each, part) for each in (goal.oracle if goal.breach is None else goal.breach)]
            changes += [(path.replace("PART", str(part)), value) for path, value in goal.changes]
        metadata: dict[str, Any] = {
            "families": [each.name for each in shape.families],
            "hops": sum(each.hops for each in shape.families),
            **self.metadata(setting, goals),
        }
        if attack:
            metadata["attack"] = attack
        if any(goal.breach is not None for goal in goals):
            metadata["breach"] = breach
        options: dict[str, Any] = {
            self.WORLD: world,
            **self.options(setting, goals),
        }
        if canary:
            options["canary"] = canary
        return {
            "prompt": "\n".join(prompt),
            "level": shape.level,
            "family": "several goals" if several else shape.families[0].name,
            "tags": shape.tags,
            "options": options,
            "limits": {"max_steps": self.SPARE_STEPS + 3 * len(oracle)},
            "oracle": oracle,
            "verifier": {"kind": "expect_exactly", "changes": changes},
            "metadata": metadata,
        }


def original_of(split: str) -> str:
    """Return the split whose variants a split has, or the split itself."""
    return split.removesuffix(VARIANTS)


class ComposedEnvironment(MCPEnvironment):
    """An environment whose tasks a composer makes."""

    COMPOSER: ClassVar[type[Composer[Any]]]


def with_private_tasks(environment: type[EnvironmentT], private_seed: SecretStr | None) -> type[EnvironmentT]:
    """Return an environment whose tasks have a split ``private``, or the environment itself without a secret.

    Args:
        environment: has the tasks of its composer.
        private_seed: a secret of the operator, without which nobody can make that split.
    """
    secret = "" if private_seed is None else private_seed.get_secret_value()
    hashable: Any = environment  # to type checkers, a class is not
    return _derived(hashable, secret) if secret else environment


@functools.cache
def _derived(environment: type[Any], secret: str) -> type[Any]:
    tasks = environment.COMPOSER(secret).tasks()
    if environment.tasks.licence is not None:
        tasks = tasks.with_licence(environment.tasks.licence)
    members = {"tasks": tasks, "__module__": environment.__module__, "__doc__": environment.__doc__}
    return type(environment.__name__, (environment,), members)
