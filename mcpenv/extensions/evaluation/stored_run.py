"""Stored runs: the folder of an evaluation as it was left, for reading only."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError

from .results import RESULTS, EpisodeResult, read_results
from .run_directory import SUMMARY
from .settings import SETTINGS, read_settings

Unit = tuple[str | None, str | None, int | None]
"""The key of a task or seed: split, task, seed (`Key.unit`)."""

_NAMED = 5


@dataclass(frozen=True)
class StoredRun:
    """The settings and results of an evaluation.

    Attributes:
        directory: its folder.
        settings: the settings of the evaluation.
        results: one for each finished episode, in the order in which they ended.
        planned: number of planned episodes at the last regular end; None if there was none.
        pass_threshold: the threshold of its figures; None for each task's full reward.
    """

    directory: Path
    settings: dict[str, Any]
    results: list[EpisodeResult]
    planned: int | None
    pass_threshold: float | None

    @property
    def environment(self) -> dict[str, Any]:
        """The name and version of the environment."""
        environment: dict[str, Any] = self.settings["environment"]
        return environment

    def by_unit(self) -> dict[Unit, list[EpisodeResult]]:
        """Return the results of each task, or of each seed of an environment without tasks."""
        units: defaultdict[Unit, list[EpisodeResult]] = defaultdict(list)
        for result in self.results:
            units[result.key.unit].append(result)
        return dict(units)


def read_run(directory: Path) -> StoredRun:
    """Return the evaluation in a folder. It may still be running, or have been interrupted.

    Raises:
        ConfigurationError: there is no such folder, it has no evaluation or no finished episode, or a file of it
            cannot be read.
    """
    if not directory.is_dir():
        missing = "is a file" if directory.exists() else "does not exist"
        raise ConfigurationError(f"{directory} {missing}; name the folder that mcpenv eval --out was given")
    try:
        settings = read_settings(directory)
        results = read_results(directory)
        planned, threshold = _planned(directory)
    except FileNotFoundError:
        raise ConfigurationError(f"{directory} is no evaluation, it has no {SETTINGS}; {_hint(directory)}") from None
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be read: {error.strerror or error}") from error
    environment = settings.get("environment")
    if not isinstance(environment, dict) or not isinstance(environment.get("name"), str):
        raise ConfigurationError(
            f"{directory / SETTINGS} names no environment, so these are no settings of mcpenv eval"
        )
    if not results:
        raise ConfigurationError(f"{directory} has no finished episode: {RESULTS} is missing or empty")
    return StoredRun(directory, settings, results, planned, threshold)


def _planned(directory: Path) -> tuple[int | None, float | None]:
    """Return the number of planned episodes and the threshold from the last summary."""
    file = directory / SUMMARY
    if not file.exists():
        return None, None
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        return summary["planned"], summary["pass_threshold"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{file} is not a summary of mcpenv eval; delete it, or evaluate again") from error


def _hint(directory: Path) -> str:
    found = sorted(str(file.parent) for file in directory.glob(f"*/{SETTINGS}"))
    if not found:
        return "name the folder that mcpenv eval --out was given"
    return f"is it {' or '.join(found[:_NAMED])}{' or another one in there' if len(found) > _NAMED else ''}?"
