"""Read a task directory of Harbor: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``, ``solution/``."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.types.tasks import OracleCall, Task, TaskLimits

logger = logging.getLogger("mcpenv.harbor")

CONFIG = "task.toml"
SOLUTION_TIMEOUT_S = 3600.0
"""Maximum seconds of a solution if its task sets no time limit for agents."""

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_SECRET = re.compile(r"KEY|SECRET|TOKEN(?!S)|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)

Network = Literal["public", "no-network", "allowlist"]
Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    """A section of ``task.toml``. Keys unknown to Harbor have no effect there, and are logged here."""

    model_config = ConfigDict(extra="allow")


class Agent(_Section):
    """The section ``[agent]``."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class Verifier(_Section):
    """The section ``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = Field(default_factory=list)
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class Environment(_Section):
    """The section ``[environment]``. Keys of older versions are among its fields."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None
    allow_internet: bool | None = None
    memory: str | None = None
    storage: str | None = None


class Solution(_Section):
    """The section ``[solution]``."""

    env: dict[str, str] = Field(default_factory=dict)


class Package(_Section):
    """The section ``[task]``."""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[Any] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class Config(_Section):
    """The whole ``task.toml``."""

    schema_version: str = "1.4"
    version: str | None = None
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Environment = Field(default_factory=Environment)
    solution: Solution = Field(default_factory=Solution)
    source: str | None = None
    multi_step_reward_strategy: str | None = None
    steps: list[Any] | None = None
    artifacts: list[Any] = Field(default_factory=list)


@dataclass(frozen=True)
class HarborTask:
    """A task directory.

    Attributes:
        folder: its path.
        config: its ``task.toml``.
        env: the variables of its environment, with variables of this process substituted.
        verifier_env: the variables of its tests.
    """

    folder: Path
    config: Config
    env: Mapping[str, str]
    verifier_env: Mapping[str, str]

    @property
    def name(self) -> str:
        """The folder's name, which is the task's id."""
        return self.folder.name

    @property
    def instruction(self) -> str:
        """The text for the agent, without the markers that exclude it from training data."""
        lines = (self.folder / "instruction.md").read_text(encoding="utf-8").split("\n")
        first = next((i for i, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
        return "\n".join(lines[first:]).strip("\n")

    @property
    def environment(self) -> Path:
        """The folder from which the container is built."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        """The folder of the tests."""
        return self.folder / "tests"

    @property
    def needs(self) -> list[str]:
        """Its requirements that no provider of mcpenv meets, as parts of a sentence."""
        config, environment = self.config, self.config.environment
        found = {
            "several steps ([[steps]])": config.steps,
            f"the system {environment.os!r}": environment.os.lower() != "linux",
            "GPUs": environment.gpus,
            "TPUs": environment.tpu,
            "MCP servers for the agent ([[environment.mcp_servers]])": environment.mcp_servers,
            "a health check ([environment.healthcheck])": environment.healthcheck,
            "a list of allowed hosts": "allowlist" in (self.network("agent"), self.network("verifier")),
            "a separate container for its tests": config.verifier.environment is not None
            or config.verifier.environment_mode == "separate",
            "[[verifier.collect]]": config.verifier.collect,
            "environment/docker-compose.yaml": (self.environment / "docker-compose.yaml").exists(),
            "trajectory.json": (self.folder / "trajectory.json").exists(),
            ".harborignore": next(self.folder.rglob(".harborignore"), None),
        }
        return [name for name, value in found.items() if value]

    def network(self, phase: Literal["agent", "verifier"]) -> Network:
        """Return the network of a phase."""
        environment = self.config.environment
        own = (self.config.agent if phase == "agent" else self.config.verifier).network_mode
        legacy: Network = "no-network" if environment.allow_internet is False else "public"
        return own or environment.network_mode or legacy

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the names and contents of all its files, in hexadecimal digits."""
        digest = hashlib.sha256()
        for path, content in _files(self.folder):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def task(self) -> Task:
        """Return it as a task of mcpenv."""
        package = self.config.task
        return Task(
            id=self.name,
            prompt=self.instruction,
            limits=TaskLimits(timeout_s=self.config.agent.timeout_sec),
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
        """Return the solution as calls: write its files to ``/solution``, and run ``solve.sh`` there."""
        folder = self.folder / "solution"
        if not (folder / "solve.sh").is_file():
            return None
        secrets = [name for name, value in self.config.solution.env.items() if _TEMPLATE.fullmatch(value)]
        if secrets:
            logger.warning(
                "task %r has no oracle: its solution needs the variable %s, which would stand in its calls",
                self.name,
                secrets[0],
            )
            return None
        calls = []
        programs = ["/solution/solve.sh"]
        for name, content in _files(folder):
            path = f"/solution/{name}"
            if os.access(folder / name, os.X_OK):
                programs.append(path)
            try:
                arguments = {"path": path, "content": content.decode("utf-8")}
            except UnicodeDecodeError:
                arguments = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
            calls.append(OracleCall(tool_name="write_file", arguments=arguments))
        values = {"DEBIAN_FRONTEND": "noninteractive", **self.config.solution.env}
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        command = f"chmod +x {shlex.join(dict.fromkeys(programs))} && {variables} /solution/solve.sh"
        timeout_s = self.config.agent.timeout_sec or SOLUTION_TIMEOUT_S
        calls.append(OracleCall(tool_name="execute", arguments={"command": command, "timeout_s": timeout_s}))
        return calls


def read_tasks(path: Path) -> list[HarborTask]:
    """Return the task of a directory, or the tasks in its subdirectories, by name.

    Raises:
        ConfigurationError: there is no task, or one cannot be read.
    """
    if not path.is_dir():
        raise ConfigurationError(f"there is no folder {path}")
    path = path.absolute()
    if (path / CONFIG).exists():
        return [read_task(path)]
    folders = sorted(folder for folder in path.iterdir() if (folder / CONFIG).is_file())
    if not folders:
        raise ConfigurationError(f"neither the folder nor one in it has a {CONFIG}")
    return [read_task(folder) for folder in folders]


def read_task(folder: Path) -> HarborTask:
    """Return the task of a directory.

    Raises:
        ConfigurationError: a file is missing or cannot be read, or a variable is not set.
    """
    place = folder / CONFIG
    try:
        config = Config.model_validate(tomllib.loads(place.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{place}: {where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{place}: {error}") from error
    for name in ("instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            raise ConfigurationError(f"task {folder.name!r} has no {name}")
    for file in folder.rglob("*"):
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigurationError(f"task {folder.name!r}: the link {file.relative_to(folder)} leads out of the task")
    for key in _without_effect(config):
        logger.warning("task %r: %s has no effect", folder.name, key)
    env, of_tests = (
        {name: _resolved(folder.name, section, name, value) for name, value in values.items()}
        for section, values in (("environment", config.environment.env), ("verifier", config.verifier.env))
    )
    return HarborTask(folder, config, env, of_tests)


def _without_effect(config: Config) -> Iterator[str]:
    """Yield the keys of a configuration that have no effect."""
    for name in ("agent", "verifier", "environment", "solution"):
        section = getattr(config, name)
        yield from (f"[{name}] {key}" for key in section.model_extra or ())
    yield from config.model_extra or ()
    if config.environment.skills_dir is not None:
        yield "[environment] skills_dir"
    if config.artifacts:
        yield "artifacts"


def _resolved(task: str, section: str, name: str, value: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    found = os.environ.get(match[1], match[2])
    if found is None:
        raise ConfigurationError(
            f"task {task!r}: [{section}.env] {name} needs the environment variable {match[1]}, which is not set"
        )
    if _SECRET.search(name) and not found.isdecimal():
        hide(found)
    return found


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file.read_bytes()
