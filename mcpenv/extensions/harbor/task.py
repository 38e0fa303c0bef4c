"""Read a task directory of Harbor: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``, ``solution/``."""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import ValidationError

from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.tasks import OracleCall, Task, TaskLimits
from mcpenv_client.types.values import encode
from mcpenv_client.wire.faults import describe_fault, faults

from .config import MAIN, Config, Network, unknown_keys
from .steps import Step, steps_of

logger = logging.getLogger("mcpenv.harbor")

CONFIG = "task.toml"
FINISH_STEP = "finish_step"
"""The tool that ends a step."""

SOLUTION_TIMEOUT_S = 3600.0
"""Maximum seconds of a solution if its task sets no time limit for agents."""

SHORT_NUMBER = 8
"""Minimum digits of a secret that has nothing but digits. A shorter one would be found among scores."""

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_SECRET = re.compile(r"KEY|SECRET|TOKEN(?!S)|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class HarborTask:
    """A task directory.

    Attributes:
        folder: its path.
        config: its ``task.toml``.
        env: the variables of its environment, with variables of this process substituted.
        tests_env: the variables of the tests of each step.
        judge_env: the variables of each step's separate verifier's environment; empty if it has none.
        steps: its steps, at least one.
        context: the folder from which the container is built; None for ``environment``.
        judging: the number of the step for whose separate verifier the container is; None if it is the agent's.
    """

    folder: Path
    config: Config
    env: Mapping[str, str]
    tests_env: Sequence[Mapping[str, str]]
    judge_env: Sequence[Mapping[str, str]]
    steps: tuple[Step, ...]
    context: Path | None = None
    judging: int | None = None

    @property
    def name(self) -> str:
        """The folder's name, which is the task's id."""
        return self.folder.name

    @property
    def environment(self) -> Path:
        """The folder from which the container is built."""
        return self.context or self.folder / "environment"

    @property
    def has_services(self) -> bool:
        """True if it has a file of several services."""
        return (self.environment / "docker-compose.yaml").exists()

    @property
    def tag(self) -> str:
        """The name of what is built for it, the same for the same files."""
        part = "" if self.context is None else f"-{self.context.relative_to(self.folder).as_posix()}"
        return hashlib.sha256(f"{self.digest}{part}".encode()).hexdigest()[:16] if part else self.digest[:16]

    @property
    def without_effect(self) -> Iterator[str]:
        """The keys of its configuration that have no effect."""
        yield from unknown_keys(self.config)
        verifiers = [("", self.config.verifier), *(("steps.", own.verifier) for own in self.config.steps or ())]
        apart = [(f"{place}verifier.environment", each.environment) for place, each in verifiers if each.environment]
        yield from (f"[{place}] healthcheck" for place, environment in apart if environment.healthcheck is not None)
        for place, environment in (("environment", self.config.environment), *apart):
            yield from (f"[{place}] {key}" for key in ("skills_dir", "gpu_types") if getattr(environment, key))
        if self.config.multi_step_reward_strategy is not None and not self.config.steps:
            yield "multi_step_reward_strategy"
        if all(step.judge is None for step in self.steps) and any(
            self.config.artifacts or (step.own and step.own.artifacts) for step in self.steps
        ):
            yield "artifacts"

    @property
    def needs(self) -> list[str]:
        """Its requirements that no provider of mcpenv meets, as parts of a sentence."""
        environment, steps = self.config.environment, self.steps
        servers = ", ".join(f"{server.name} by {server.transport}" for server in environment.mcp_servers)
        separate = [step for step in steps if step.judge is not None]
        of_agent = {step.network for step in steps}
        of_tests = {step.tests_network for step in steps if step.judge is None}
        found = {
            f"the system {environment.os!r}": environment.os != "linux",
            "GPUs": environment.gpus,
            "TPUs": environment.tpu,
            f"MCP servers for the agent ([[environment.mcp_servers]]: {servers})": servers,
            "a list of allowed hosts": any("allowlist" in (step.network, step.tests_network) for step in steps),
            "networks that differ between its steps": max(len(of_agent), len(of_tests)) > 1,
            "[[verifier.collect]] in another service": any(each.service != MAIN for s in steps for each in s.collect),
            "artifacts of another service": any(
                each.service not in (None, MAIN) for step in separate for each in step.artifacts
            ),
            "trajectory.json": any((step.folder / "trajectory.json").exists() for step in steps)
            or (self.folder / "trajectory.json").exists(),
            ".harborignore": next(self.folder.rglob(".harborignore"), None),
        }
        return [name for name, value in found.items() if value]

    def judged_in(self, number: int) -> HarborTask | None:
        """Return the task whose environment is that of a step's separate verifier; None if it has none."""
        judge = self.steps[number].judge
        if judge is None:
            return None
        config = self.config.model_copy(update={"environment": judge.environment})
        is_own = judge.context != self.folder / "environment"
        return replace(
            self, config=config, env=self.judge_env[number], context=judge.context if is_own else None, judging=number
        )

    @property
    def builds_within_s(self) -> float:
        """Maximum seconds of the builds of its container and those of its separate verifiers."""
        judges = [step.judge for step in self.steps if step.judge is not None]
        limits = {judge.context: judge.environment.build_timeout_sec for judge in judges}
        return math.fsum({**limits, self.environment: self.config.environment.build_timeout_sec}.values())

    @property
    def networks(self) -> dict[str, Network]:
        """The networks of its container, for the phases "agent" and "verifier"."""
        if self.judging is not None:
            return dict.fromkeys(("agent", "verifier"), self.steps[self.judging].tests_network)
        agent = self.steps[0].network
        return {"agent": agent, "verifier": next((s.tests_network for s in self.steps if s.judge is None), agent)}

    @property
    def keep(self) -> list[str]:
        """Paths of the system that its tests judge: ``keep`` in ``[metadata.mcpenv]``."""
        own = self.config.metadata.get("mcpenv")
        keep = own.get("keep", []) if isinstance(own, dict) else []
        return [str(path) for path in keep] if isinstance(keep, list) else []

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the names and contents of all its files, in hexadecimal digits."""
        digest = hashlib.sha256()
        for path, content in _files(self.folder):
            digest.update(os.fsencode(f"{path}\0{len(content)}\0") + content)
        return digest.hexdigest()

    @property
    def prompt(self) -> str:
        """The instruction of its first step, and how to come to the next one if there is one."""
        instruction = self.steps[0].instruction
        return instruction if len(self.steps) == 1 else f"{instruction}\n\n{step_note(0, len(self.steps))}"

    @property
    def timeout_s(self) -> float | None:
        """Maximum seconds of an episode, with the tests between its steps; None for no limit."""
        limits = [step.timeout_s for step in self.steps]
        if None in limits:
            return None
        return sum(limit or 0 for limit in limits) + sum(step.tests_timeout_s for step in self.steps[:-1])

    def task(self) -> Task:
        """Return it as a task of mcpenv, always the same one."""
        return self._task

    @cached_property
    def _task(self) -> Task:
        package = self.config.task
        return Task(
            id=self.name,
            prompt=self.prompt,
            limits=TaskLimits(timeout_s=self.timeout_s),
            metadata={
                **self.config.metadata,
                "harbor": {
                    "name": self.name if package is None else package.name,
                    "version": None if package is None else package.version,
                    "digest": self.digest,
                },
            },
            version=self.digest[:16],
            oracle=self._oracle(),
        )

    def _oracle(self) -> list[OracleCall] | None:
        """Return the solutions of the steps as calls, with the end of each step but the last between them."""
        calls: list[OracleCall] = []
        for step in self.steps:
            if step.solution is None:
                return None
            if calls:
                calls.append(OracleCall(tool_name=FINISH_STEP, arguments={}))
            calls += self._solution(step.solution, step.timeout_s)
        secrets = [name for name, value in self.config.solution.env.items() if _TEMPLATE.fullmatch(value)]
        if secrets:
            logger.warning(
                "task %r has no oracle: its solution needs the variable %s, which would stand in its calls",
                self.name,
                secrets[0],
            )
            return None
        return calls

    def _solution(self, folder: Path, timeout_s: float | None) -> Iterator[OracleCall]:
        """Yield the calls of a solution: write its files to ``/solution``, and run ``solve.sh`` there."""
        programs = ["/solution/solve.sh"]
        for name, content in _files(folder):
            path = f"/solution/{name}"
            if os.access(folder / name, os.X_OK):
                programs.append(path)
            try:
                arguments = {"path": path, "content": content.decode("utf-8")}
            except UnicodeDecodeError:
                arguments = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
            yield OracleCall(tool_name="write_file", arguments=arguments)
        values = {"DEBIAN_FRONTEND": "noninteractive", **self.config.solution.env}
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        command = f"chmod +x {shlex.join(dict.fromkeys(programs))} && {variables} /solution/solve.sh"
        limits = {"command": command, "timeout_s": timeout_s or SOLUTION_TIMEOUT_S}
        yield OracleCall(tool_name="execute", arguments=limits)


def step_note(number: int, count: int) -> str:
    """Return the sentence that tells an agent how to end the step of this number, from 0."""
    then = "ends the task" if number + 1 == count else "returns the instruction of the next step"
    return f"(This is step {number + 1} of {count}. Call {FINISH_STEP} when it is done: that {then}.)"


def read_tasks(path: Path) -> list[HarborTask]:
    """Return the task of a directory, or the tasks in its subdirectories, by name.

    Raises:
        ConfigurationError: there is no task, or one cannot be read.
    """
    if not path.is_dir():
        raise ConfigurationError(f"there is no folder {path}")
    path = path.absolute()
    if _has_config(path):
        return [read_task(path)]
    folders = sorted(filter(_has_config, path.iterdir()))
    if not folders:
        older = [each for each in (path, *path.iterdir()) if (each / "task.yaml").is_file()]
        advice = (
            "; task.yaml is of Terminal-Bench: convert it by harbor task migrate -i FOLDER -o FOLDER" if older else ""
        )
        raise ConfigurationError(f"neither the folder nor one in it has a {CONFIG}{advice}")
    return usable(folders, read_task)


def _has_config(folder: Path) -> bool:
    """Return True if a folder is one of a task; also if that cannot be known, so that reading it tells why."""
    try:
        (folder / CONFIG).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def usable(things: Iterable[T], use: Callable[[T], U]) -> list[U]:
    """Return what can be made of some things, such as tasks, and log the reasons why others are left out.

    Raises:
        ConfigurationError: none can be used, or the only one cannot.
    """
    used, reasons = [], list[str]()
    for thing in things:
        try:
            used.append(use(thing))
        except ConfigurationError as error:
            reasons.append(str(error))
    if not used:
        more = f" (and {len(reasons) - 1} more that cannot be used)" if len(reasons) > 1 else ""
        raise ConfigurationError(f"{reasons[0]}{more}")
    for reason in reasons:
        logger.warning("left out: %s", reason)
    return used


def read_task(folder: Path) -> HarborTask:
    """Return the task of a directory.

    Raises:
        ConfigurationError: a file is missing or cannot be read, or a variable is not set.
    """
    place = str(folder / CONFIG)
    try:
        config = Config.model_validate(tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")))
        place = f"task {folder.name!r}"
        task = _read_files(folder, config)
        encode(task.task(), "task")
    except ValidationError as error:
        raise ConfigurationError(f"{place}: {describe_fault(faults(error)[0])}") from error
    except (ArithmeticError, NotSerializable, OSError, RuntimeError, ValueError) as error:  # RuntimeError: link loops
        raise ConfigurationError(f"{place}: {error}") from error
    return task


def _read_files(folder: Path, config: Config) -> HarborTask:
    steps = steps_of(folder, config)
    for step in steps:
        for name in step.missing():
            several = f"has several steps ({len(steps)} [[steps]]) and" if step.own else "has"
            raise ConfigurationError(f"task {folder.name!r} {several} no {name}")
    for file in folder.rglob("*"):
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigurationError(f"task {folder.name!r}: the link {file.relative_to(folder)} leads out of the task")

    def resolved(section: str, values: Mapping[str, str]) -> dict[str, str]:
        return {name: _resolved(folder.name, section, name, value) for name, value in values.items()}

    return HarborTask(
        folder,
        config,
        resolved("environment", config.environment.env),
        [resolved("verifier", step.tests_env) for step in steps],
        [{} if step.judge is None else resolved("verifier.environment", step.judge.environment.env) for step in steps],
        steps,
    )


def _resolved(task: str, section: str, name: str, value: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    found = os.environ.get(match[1], match[2])
    if found is None:
        raise ConfigurationError(
            f"task {task!r}: [{section}.env] {name} needs the environment variable {match[1]}, which is not set"
        )
    if _SECRET.search(f"{name} {match[1]}") and not (found.isdecimal() and len(found) < SHORT_NUMBER):
        hide(found)
    return found


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(Path(at, name) for at, _, names in os.walk(folder, onerror=_raise) for name in names):
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file.read_bytes()


def _raise(error: OSError) -> NoReturn:
    raise error
