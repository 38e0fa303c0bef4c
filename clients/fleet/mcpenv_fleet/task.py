"""Tasks that the platform has exported, as plain data. None of their code is run here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from mcpenv_client.wire.faults import describe_fault, faults

from .errors import InvalidTask

COMPUTER_USE = "computer_use"
"""The modality of tasks that are done by screenshots, mouse and keyboard."""


class FleetTask(BaseModel):
    """One task: the agent's instructions, the environment, and the platform's verification.

    Attributes:
        key: the task's unique key.
        prompt: the text for the agent.
        env_id: the environment, without its version.
        version: the environment's version; None: the platform's default.
        data_id: the data that the environment begins with; None: its default.
        data_version: the version of the data.
        env_variables: variables for the environment.
        modality: "tool_use" or "computer_use".
        verifier_code: the source of the verifier, a whole module. Only the platform runs it.
        verifier_function: the name of the function to run; None: see `mcpenv_fleet.verifier`.
        verifier_id: the id of a verifier that the platform keeps.
        verifier_runtime_version: the version of the platform's verifier runtime.
        metadata: further data of the author.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    key: str = Field(validation_alias=AliasChoices("key", "task_key", "id"), min_length=1)
    prompt: str
    env_id: str = Field(validation_alias=AliasChoices("env_id", "env_key", "environment_id"), min_length=1)
    version: str | None = Field(None, validation_alias=AliasChoices("version", "env_version"))
    data_id: str | None = Field(None, validation_alias=AliasChoices("data_id", "data_key"))
    data_version: str | None = None
    env_variables: dict[str, Any] = Field(default_factory=dict)
    modality: str = Field("tool_use", validation_alias=AliasChoices("modality", "task_modality"))
    verifier_code: str | None = None
    verifier_function: str | None = None
    verifier_id: str | None = None
    verifier_runtime_version: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FleetTask:
        """Return the task of one exported object.

        The verifier's code is ``verifier_code``, ``verifier_func`` or ``verifier.code``.

        Raises:
            InvalidTask: a field is missing or does not fit.
        """
        nested = data.get("verifier")
        verifier: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
        metadata = data.get("metadata") or {}
        given = {name: value for name, value in data.items() if value is not None and value != "None"}
        code = data.get("verifier_code") or data.get("verifier_func") or verifier.get("code")
        identity = data.get("verifier_id") or verifier.get("verifier_id")
        of_runtime = metadata.get("verifier_runtime_version") if isinstance(metadata, Mapping) else None
        for name, value in (
            ("verifier_code", code),
            ("verifier_id", identity),
            ("verifier_runtime_version", data.get("verifier_runtime_version") or of_runtime),
        ):
            if value:
                given[name] = value
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            name = data.get("key") or data.get("task_key") or data.get("id") or "without a key"
            raise InvalidTask(f"task {name!r}: {describe_fault(faults(error)[0])}") from error

    @property
    def env_key(self) -> str:
        """The environment with its version, as ``Fleet.make`` takes it: ``ENV`` or ``ENV:VERSION``."""
        return keyed(self.env_id, self.version)

    @property
    def data_key(self) -> str | None:
        """The data with their version; None for the environment's default."""
        return None if self.data_id is None else keyed(self.data_id, self.data_version)

    @property
    def has_verifier(self) -> bool:
        """True if the platform can verify the task."""
        return self.verifier_code is not None or self.verifier_id is not None

    @property
    def computer_use(self) -> bool:
        """True if the task is done by screenshots, mouse and keyboard."""
        return self.modality == COMPUTER_USE


def keyed(name: str, version: str | None) -> str:
    """Return ``NAME:VERSION``, or the name alone if there is no version or the name has one already."""
    return name if version is None or ":" in name else f"{name}:{version}"


def load_tasks(path: str | Path) -> list[FleetTask]:
    """Return the tasks of an exported file: a JSON list, an object with ``tasks``, or JSONL.

    Raises:
        InvalidTask: the file cannot be read, a row is not a task, or a key occurs twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTask(f"{path}: {error}") from error
    tasks: dict[str, FleetTask] = {}
    for number, row in enumerate(_rows(path, text), 1):
        try:
            if not isinstance(row, Mapping):
                raise InvalidTask(f"a {type(row).__name__} is not a task")
            task = FleetTask.from_json(row)
            if task.key in tasks:
                raise InvalidTask(f"task {task.key!r} occurs twice")
        except InvalidTask as error:
            raise InvalidTask(f"{path}: row {number}: {error}") from error
        tasks[task.key] = task
    if not tasks:
        raise InvalidTask(f"{path}: there are no tasks in it")
    return list(tasks.values())


def _rows(path: str | Path, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise InvalidTask(f"{path}: it is neither JSON nor JSONL: {whole}") from whole
    if isinstance(found, Mapping):
        found = found.get("tasks", [found])
    if not isinstance(found, list):
        raise InvalidTask(f"{path}: a {type(found).__name__} is not a list of tasks")
    return found


__all__ = ["COMPUTER_USE", "FleetTask", "keyed", "load_tasks"]
