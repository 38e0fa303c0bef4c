"""The steps of a task: what an agent is asked one after the other, how each is judged, and what that is worth.

A task without ``[[steps]]`` is one step whose files are in the task's own folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcpenv.errors import ConfigurationError, VerifierFailed
from mcpenv_client.scores import reaches

from .config import Artifact, Collect, Config, Environment, Healthcheck, Network, StepConfig

ARTIFACTS = "/logs/artifacts"
"""The folder that is always an artifact."""

REWARD = "reward"
"""The key of the reward among several."""

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_IMAGE_FILES = ("Dockerfile", "docker-compose.yaml")


@dataclass(frozen=True)
class Judge:
    """The container of a separate verifier.

    Attributes:
        environment: its configuration.
        context: the folder from which it is built.
        has_tests: True if its image has the tests.
    """

    environment: Environment
    context: Path
    has_tests: bool


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        task: the folder of the task.
        config: the task's ``task.toml``.
        own: its table of ``[[steps]]``; None for the only step of a task without them.
    """

    task: Path
    config: Config
    own: StepConfig | None = None

    @property
    def name(self) -> str:
        """Its name; that of the task's folder for the only step of a task without ``[[steps]]``."""
        return self.task.name if self.own is None else self.own.name

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.task if self.own is None else self.task / "steps" / self.own.name

    @property
    def place(self) -> str:
        """The path of its folder in the task, with a slash at the end; empty if it is the task's."""
        return "" if self.own is None else f"steps/{self.own.name}/"

    @property
    def instruction(self) -> str:
        """The text for the agent, without the markers that exclude it from training data."""
        try:
            lines = (self.folder / "instruction.md").read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"task {self.task.name!r}: {self.place}instruction.md: {error}") from error
        first = next((i for i, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
        return "\n".join(lines[first:]).strip("\n")

    @property
    def tests(self) -> list[Path]:
        """The folders of its tests. Files of a later one replace those of an earlier one."""
        return [path for path in dict.fromkeys((self.task / "tests", self.folder / "tests")) if path.is_dir()]

    @property
    def solution(self) -> Path | None:
        """The folder of its solution, else the task's; None if there is no ``solve.sh``."""
        folder = next((path for path in (self.folder / "solution", self.task / "solution") if path.is_dir()), None)
        return folder if folder is not None and (folder / "solve.sh").is_file() else None

    @property
    def workdir(self) -> Path | None:
        """The folder of files that are put into the working folder when it begins; None if there is none."""
        folder = self.folder / "workdir"
        return folder if self.own is not None and folder.is_dir() else None

    @property
    def timeout_s(self) -> float | None:
        """Maximum seconds of the agent; None for no limit."""
        own = None if self.own is None else self.own.agent.timeout_sec
        return self.config.agent.timeout_sec if own is None else own

    @property
    def tests_timeout_s(self) -> float:
        """Maximum seconds of its tests. As in Harbor, those of a step are 600 unless it names its own."""
        return (self.config if self.own is None else self.own).verifier.timeout_sec

    @property
    def user(self) -> str | None:
        """The user of the agent; None for the container's."""
        return _first_user(None if self.own is None else self.own.agent.user, self.config.agent.user)

    @property
    def tests_user(self) -> str | None:
        """The user who runs its tests; None for the container's."""
        return _first_user(None if self.own is None else self.own.verifier.user, self.config.verifier.user)

    @property
    def tests_env(self) -> dict[str, str]:
        """The variables of its tests as they are written."""
        return {**self.config.verifier.env, **({} if self.own is None else self.own.verifier.env)}

    @property
    def healthcheck(self) -> Healthcheck | None:
        """The health check that is awaited once it is set up."""
        return None if self.own is None else self.own.healthcheck

    @property
    def min_reward(self) -> float | dict[str, float] | None:
        """The reward below which the task ends with it."""
        return None if self.own is None else self.own.min_reward

    @property
    def collect(self) -> list[Collect]:
        """The commands before its artifacts are collected."""
        return [*self.config.verifier.collect, *(() if self.own is None else self.own.verifier.collect)]

    @property
    def artifacts(self) -> list[Artifact]:
        """What is carried over to a separate verifier, `ARTIFACTS` always."""
        found = [*self.config.artifacts, *(() if self.own is None else self.own.artifacts)]
        if not any(each.source.rstrip("/") == ARTIFACTS for each in found):
            found.insert(0, Artifact(source=ARTIFACTS))
        return found

    @cached_property
    def judge(self) -> Judge | None:
        """The container of its separate verifier; None if its tests run where the agent has worked."""
        verifiers = [*(() if self.own is None else (self.own.verifier,)), self.config.verifier]
        modes = (each.environment_mode or (each.environment and "separate") for each in verifiers)
        if next((mode for mode in modes if mode), "shared") == "shared":
            return None
        given = next((each.environment for each in verifiers if each.environment is not None), self.config.environment)
        folders = dict.fromkeys((self.folder / "tests", self.task / "tests"))
        for verifier, folder in zip(verifiers, folders, strict=True):
            image = verifier.environment and verifier.environment.docker_image
            if image or any((folder / name).is_file() for name in _IMAGE_FILES):
                return Judge(given.model_copy(update={"docker_image": image}), folder, has_tests=True)
        of_task = self.config.environment
        same = {"docker_image": of_task.docker_image}
        if "os" not in given.model_fields_set:
            same["os"] = of_task.os
        return Judge(given.model_copy(update=same), self.task / "environment", has_tests=False)

    @property
    def network(self) -> Network:
        """The network of the agent."""
        own = None if self.own is None else self.own.agent.network_mode
        return own or self.config.agent.network_mode or self.config.environment.network_mode or "public"

    @property
    def tests_network(self) -> Network:
        """The network of its tests."""
        own = None if self.own is None else self.own.verifier.network_mode
        environment = self.config.environment if self.judge is None else self.judge.environment
        return own or self.config.verifier.network_mode or environment.network_mode or "public"

    def missing(self) -> Iterator[str]:
        """Yield the files that it needs and does not have, as paths in the task."""
        if not (self.folder / "instruction.md").is_file():
            yield f"{self.place}instruction.md"
        if self.judge is not None and self.judge.has_tests:
            return
        if not any((folder / "test.sh").is_file() for folder in self.tests):
            yield f"{self.place}tests/test.sh"


def steps_of(folder: Path, config: Config) -> tuple[Step, ...]:
    """Return the steps of a task, at least one."""
    return tuple(Step(folder, config, own) for own in config.steps or (None,))


def falls_short(rewards: Mapping[str, float], least: float | Mapping[str, float] | None) -> bool:
    """Return True if rewards are below a step's ``min_reward`` by more than rounding; so is a missing one."""
    if least is None:
        return False
    each = least if isinstance(least, Mapping) else {REWARD: least}
    return not all(reaches(rewards.get(key, -math.inf), limit) for key, limit in each.items())


def aggregated(rewards: Sequence[Mapping[str, float]], strategy: str | None) -> dict[str, float]:
    """Return the rewards of a task by those of its steps that were judged, in order.

    Args:
        rewards: by key, for each step.
        strategy: "final" for those of the last one; otherwise the mean of each key, where a missing key is 0.
    """
    if strategy == "final":
        return dict(rewards[-1])
    keys = dict.fromkeys(key for each in rewards for key in each)
    return {key: math.fsum(each.get(key, 0) for each in rewards) / len(rewards) for key in keys}


def value_of(rewards: Mapping[str, float], place: str) -> float:
    """Return the value of `REWARD`, or of the only key.

    Args:
        place: what has the rewards, for an error.

    Raises:
        VerifierFailed: there are several keys or none, and not this one.
    """
    if REWARD not in rewards and len(rewards) != 1:
        keys = ", ".join(rewards) or "none"
        raise VerifierFailed(f"{place} has no key 'reward' and not exactly one key (it has: {keys})")
    return rewards.get(REWARD, next(iter(rewards.values())))


def _first_user(*users: str | int | None) -> str | None:
    return next((str(user) for user in users if user is not None), None)
