"""The models of ``task.toml``, as of Harbor 0.26.

Keys that Harbor does not know have no effect there. They are kept here, so that `unknown_keys` can name them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

HARBOR = "0.26"
"""The version of Harbor whose format this is."""

Network = Literal["public", "no-network", "allowlist"]
Seconds = Annotated[float, Field(gt=0)]

MAIN = "main"
"""The service in which agents and tests run."""

_NO_FOLDER_NAME = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]|[. ]$')
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _artifact(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


def _transport(value: Any) -> Any:
    return "streamable-http" if value == "http" else value


class Section(BaseModel):
    """A table of ``task.toml``."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Phase(Section):
    """A table with a network policy."""

    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> Self:
        # Harbor takes an empty list beside a mode, and none beside no mode.
        refused = self.allowed_hosts is not None if self.network_mode is None else bool(self.allowed_hosts)
        if refused and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts is only valid with network_mode = "allowlist"')
        return self


class Agent(Phase):
    """The section ``[agent]``."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None


class Healthcheck(Section):
    """The section ``[environment.healthcheck]``: a command that is repeated until it succeeds.

    Attributes:
        command: a shell command.
        interval_sec: seconds between attempts.
        timeout_sec: maximum seconds of an attempt.
        start_period_sec: seconds after the start in which failures are not counted.
        start_interval_sec: seconds between attempts in that time.
        retries: the number of failures in a row that end the wait.
    """

    command: str
    interval_sec: Annotated[float, Field(ge=0)] = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Field(ge=0)] = 0.0
    start_interval_sec: Annotated[float, Field(ge=0)] = 5.0
    retries: int = 3


class McpServer(Section):
    """A table of ``[[environment.mcp_servers]]``."""

    name: str
    transport: Annotated[Literal["stdio", "sse", "streamable-http"], BeforeValidator(_transport)] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            default = "" if "transport" in self.model_fields_set else ", the default,"
            raise ValueError(f"transport {self.transport!r}{default} needs {needed!r}")
        return self


class Environment(Phase):
    """The section ``[environment]``. Sizes of older versions (``memory = "2G"``) become MiB."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_older_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old in ("memory", "storage"):
            size, new = data.pop(old, None), f"{old}_mb"
            if isinstance(size, str):
                mib = _mib(size)
                if data.setdefault(new, mib) != mib:
                    raise ValueError(f"{old} = {size!r} is {mib} MiB, and {new} = {data[new]!r}: leave one out")
        if data.get("allow_internet") is False and data.get("allowed_hosts") is None:
            data.setdefault("network_mode", "no-network")
        return data


class Collect(Section):
    """A table of ``[[verifier.collect]]``: a command that runs before artifacts are collected.

    Attributes:
        command: a shell command.
        service: the service in which it runs.
        timeout_sec: maximum seconds.
        user: the user who runs it; None for the container's.
    """

    command: str
    service: str = MAIN
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class Artifact(Section):
    """An entry of ``artifacts``: a file or folder that is carried over to a separate verifier.

    Attributes:
        source: its path, also in the verifier's container.
        destination: its place in Harbor's folder of results.
        exclude: patterns of tar for what is left out.
        service: the service that has it; None for ``main``.
    """

    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise ValueError(f"the path {value!r} has the part '..'")
        return value


Artifacts = list[Annotated[Artifact, BeforeValidator(_artifact)]]


class Verifier(Phase):
    """The section ``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" and [verifier.environment] exclude each other')
        return self


class Solution(Section):
    """The section ``[solution]``."""

    env: dict[str, str] = Field(default_factory=dict)


class Package(Section):
    """The section ``[task]``."""

    name: str
    version: str | None = None
    description: str = ""
    authors: list[Any] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class StepConfig(Section):
    """A table of ``[[steps]]``.

    Attributes:
        name: the name of its folder below ``steps/``.
        min_reward: the task ends with this step if its reward is lower; a number for the key ``reward``, or one by key.
        healthcheck: awaited once the step is set up.
        artifacts: what a separate verifier of the step finds, beside the task's.
    """

    name: str
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not value.strip() or _NO_FOLDER_NAME.search(value) or len(value.encode()) > 255:
            raise ValueError(f"{value!r} is no name of a folder on every system")
        return value


class Config(Section):
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
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[StepConfig] | None = None
    artifacts: Artifacts = Field(default_factory=list)

    @field_validator("steps")
    @classmethod
    def _have_names_of_their_own(cls, steps: list[StepConfig] | None) -> list[StepConfig] | None:
        names = [unicodedata.normalize("NFC", step.name).casefold() for step in steps or ()]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ValueError(f"two steps are named {name!r}")
        return steps


def unknown_keys(section: Section, where: str = "") -> Iterator[str]:
    """Yield the keys of a configuration that Harbor does not know, each with its table."""
    yield from (f"[{where}] {key}" if where else key for key in section.model_extra or ())
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Section):
                yield from unknown_keys(each, f"{where}.{name}" if where else name)


def _mib(size: str) -> int:
    """Return a size such as "2G" in MiB.

    Raises:
        ValueError: it is no such size.
    """
    text = size.strip().upper()
    try:
        return int(float(text[:-1]) * _MIB[text[-1:]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{size!r} is no size such as '2G' or '512M'") from None
