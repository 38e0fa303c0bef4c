"""The manifest of an environment, ``mcpenv.yaml``: its keys, and their JSON Schema for editors.

A manifest makes its folder a TARGET. Its statements apply in every command that takes a TARGET; an option on the
command line takes precedence. An unknown key is an error.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MANIFEST = "mcpenv.yaml"
"""The file that makes a folder an environment with a manifest."""

SCHEMA_FILE = "mcpenv.schema.json"
"""The name of the file with the JSON Schema next to a manifest."""

SCHEMA_PATH = Path(__file__).with_name(SCHEMA_FILE)
"""That file in this package."""

SCHEMA_VERSION = 1
"""The version of the format that this mcpenv reads."""

ModeName = Literal["simulation", "production"]
_BOTH: tuple[ModeName, ...] = ("simulation", "production")
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]
Line = Annotated[str, Field(pattern=r"^[^\r\n]+$", max_length=200)]
SecretName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    """A mapping of the manifest: unknown keys are errors, and values are not converted."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )

    def given(self) -> dict[str, Any]:
        """Return the values that the manifest states, by key."""
        return {name: value for name in sorted(self.model_fields_set) if (value := getattr(self, name)) is not None}


class ManifestLimits(_Part):
    """The limits of a server of the environment: options of ``mcpenv run``, by the same names."""

    max_sessions: Count | None = None
    """Maximum concurrent sessions."""
    session_timeout_s: Seconds | None = None
    """Seconds without use after which a session is closed."""
    queue_timeout_s: Wait | None = None
    """Seconds that a client may wait for a free session."""
    resume_grace_s: Wait | None = None
    """Seconds that an orchestrator has to reconnect after its socket is lost."""
    step_timeout_s: Seconds | None = None
    """Timeout of a step, a reset, a state or a constructor, in seconds."""
    drain_s: Wait | None = None
    """Seconds that running episodes have to end at SIGTERM."""
    shutdown_timeout_s: Wait | None = None
    """Seconds that running steps have to finish at shutdown."""
    ping_interval_s: Seconds | None = None
    """Seconds between keep-alive pings on /ws."""
    max_calls_in_flight: Count | None = None
    """Maximum running and queued calls of one session."""
    max_requests_per_s: Seconds | None = None
    """Maximum average rate of one agent's listings and calls, per second."""
    max_message_bytes: Count | None = None
    """Maximum bytes of a frame or request body."""
    max_quarantined: CountOrNone | None = None
    """Maximum quarantined instances, whose code cannot be stopped; above it new sessions are refused."""
    max_snapshots: CountOrNone | None = None
    """Maximum snapshots of one session; 0 disables snapshots."""
    max_snapshot_bytes: Count | None = None
    """Maximum total bytes of one session's snapshots."""

    def server_settings(self) -> dict[str, Any]:
        """Return the stated limits, by the names of `ServerConfig`'s fields."""
        given = self.given()
        return {("max_concurrent_envs" if name == "max_sessions" else name): value for name, value in given.items()}


class ManifestNeeds(_Part):
    """The resources that a machine or a provider must have to serve the environment."""

    _UNITS: ClassVar[dict[str, int]] = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$")] | None = None
    """Memory of the machine or container, in Mi, Gi or Ti, such as 512Mi."""
    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Processors; 0.5 is half of one."""
    network: bool | None = None
    """True if tools connect to other machines. A provider that cuts containers off must then let this one out."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes; None if the manifest does not state it."""
        return None if self.memory is None else int(self.memory[:-2]) * self._UNITS[self.memory[-2:]]


class Manifest(_Part):
    """An environment for mcpenv: where its class is, and how it is served."""

    schema_version: Literal[1]
    """The version of this format: 1."""
    name: EnvironmentName
    """The environment's name for clients, hosts and providers. It replaces the class's EXPOSED_NAME."""
    entry: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$")
    """The class, or a function that makes environments: package/environment.py:Class, relative to this file."""
    version: Line | None = None
    """The environment's version, in quotes. It replaces the class's VERSION."""
    description: Line | None = None
    """One line about the environment. It replaces the first line of the class's docstring."""
    modes: list[ModeName] = Field(
        default_factory=lambda: list(_BOTH), min_length=1, json_schema_extra={"uniqueItems": True}
    )
    """The modes in which the environment may be served. Both, if this is not stated."""
    limits: ManifestLimits = Field(default_factory=ManifestLimits)
    """The limits of its servers."""
    tasks: Line | None = None
    """A file or folder of tasks, relative to this file. They replace the class's tasks."""
    needs: ManifestNeeds = Field(default_factory=ManifestNeeds)
    """The resources without which nothing is started."""
    secrets: dict[SecretName, Line] = Field(default_factory=dict, json_schema_extra={"additionalProperties": False})
    """The environment variables that must be set, by name, each with one line that says what it is."""

    @field_validator("entry", "tasks")
    @classmethod
    def _inside_the_folder(cls, path: str | None) -> str | None:
        if path is not None:
            parts = PurePosixPath(path.replace("\\", "/"))
            if parts.is_absolute() or ".." in parts.parts or path[1:3] in (":\\", ":/"):
                raise ValueError(f"must be a path in the folder of {MANIFEST}")
        return path

    @field_validator("modes")
    @classmethod
    def _each_mode_once(cls, modes: list[ModeName]) -> list[ModeName]:
        if len(set(modes)) < len(modes):
            raise ValueError("has a mode twice")
        return modes

    @field_validator("secrets")
    @classmethod
    def _not_mcpenvs_own(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name in secrets:
            if name.startswith("MCPENV_"):
                raise ValueError(f"{name} is mcpenv's own, and is taken out of the environment before code is loaded")
        return secrets

    @property
    def entry_file(self) -> str:
        """The path of the entry's file."""
        return self.entry.rpartition(":")[0]

    @property
    def entry_attribute(self) -> str:
        """The name of the entry's class or factory."""
        return self.entry.rpartition(":")[2]


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema of a manifest."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}
