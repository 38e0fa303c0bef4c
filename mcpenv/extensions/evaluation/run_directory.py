"""Folders: store the results and records of an evaluation, so that an interrupted one can be continued."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv.trajectories.episode import CONTEXT, EVALUATED
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.tools import Tool

from .plan import Key
from .results import RESULTS, EpisodeResult, ResultsFile, read_results
from .settings import SETTINGS, differences, read_settings

SUMMARY, REPORT = "summary.json", "report.html"
RECORD, AGENTS, SERVER_LOG = "record", "agents", "server.log"

_OURS = (RESULTS, SETTINGS, SUMMARY, REPORT, RECORD, AGENTS)
_SHOWN = 60


class RunFolder:
    """The folder of one evaluation. Thread-safe; one process at a time may open it.

    An episode is finished once its record is written. Its line in the results follows; if the process ends between the
    two, the line is restored from the record. So an episode is stored exactly once or not at all.

    Args:
        settings: the settings on which results depend. A run with other settings is refused.
        environment: the environment of the episodes.
        fresh: delete the files of an earlier evaluation first.

    Raises:
        ConfigurationError: the settings differ, another evaluation has the folder open, or it cannot be used.
    """

    def __init__(
        self, directory: Path, settings: Mapping[str, Any], environment: RecordedEnvironment, *, fresh: bool = False
    ) -> None:
        self.directory = directory
        self._environment = environment
        self._mutex = threading.Lock()
        with contextlib.ExitStack() as stack, _one_line(directory):
            ours = (directory / SETTINGS).exists() or (directory / RESULTS).exists()
            if (directory / RECORD).exists() and not ours:
                raise ConfigurationError(f"{directory / RECORD} is not the record of an evaluation; use another --out")
            directory.mkdir(parents=True, exist_ok=True)
            self._file = ResultsFile(directory)
            stack.callback(self._file.close)
            if fresh:
                self._file.clear()
                _drop(directory)
            _check(directory, settings)
            self._recorder = Recorder(directory / RECORD)
            stack.callback(self._recorder.close)
            self._results = {result.key: result for result in read_results(directory)}
            self._restore()
            self._closing = stack.pop_all()

    @property
    def results(self) -> list[EpisodeResult]:
        """The results of all finished episodes, in the order in which they finished."""
        with self._mutex:
            return list(self._results.values())

    def finished(self, key: Key) -> EpisodeResult | None:
        """Return the result of an episode; None if it is not finished."""
        with self._mutex:
            return self._results.get(key)

    def output_of(self, key: Key) -> Path:
        """Return an unused path for the output of an agent's program."""
        unit = key.task if key.task is not None else f"seed-{key.seed}"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", unit).strip("-.")[:_SHOWN]
        if name != unit:
            # Ids that differ only in replaced characters must not share a file.
            name += "-" + hashlib.sha256(f"{key.split}/{unit}".encode()).hexdigest()[:8]
        folder, number = self.directory / AGENTS, 0
        while True:
            again = f".{number}" if number else ""
            file = folder / f"{name}-{key.sample}{again}.log"
            if not file.exists():
                return file
            number += 1

    def add(
        self,
        result: EpisodeResult,
        trajectory: Trajectory | None,
        tools: Sequence[Tool],
        agent: dict[str, Any],
        messages: list[dict[str, Any]] | None,
        context: dict[str, Any] | None,
        model_turns: list[ModelTurn] | None = None,
    ) -> None:
        """Store a finished episode. Blocks until it is on disk.

        Args:
            trajectory: None if the environment could not return it.
            context: the turns that the model dropped from its context, if it could drop any.
            model_turns: the turns of the agent's model, if a proxy recorded them.

        Raises:
            ConfigurationError: the episode cannot be written.
        """
        with self._mutex, _one_line(self.directory):
            if trajectory is not None:
                self._recorder.write(
                    RecordedEpisode(
                        trajectory,
                        self._environment,
                        tools=self._recorder.tools.keep(tools),
                        messages=messages,
                        agent=agent,
                        model_turns=model_turns,
                        extra={EVALUATED: result.to_plain(), **({} if context is None else {CONTEXT: context})},
                    )
                )
                self._recorder.flush()
                if self._recorder.counts.lost:
                    raise OSError("an episode could not be recorded; is the disk full?")
            self._append(result)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the folder atomically, and return its path."""
        return _write(self.directory, name, text)

    def close(self) -> None:
        """Close the files and release the folder's lock."""
        with self._mutex:
            self._closing.close()

    def _append(self, result: EpisodeResult) -> None:
        self._file.append(result)
        self._results.pop(result.key, None)
        self._results[result.key] = result

    def _restore(self) -> None:
        """Append results that only the record has, because the process was killed before it wrote them."""
        known = {result.episode_id for result in self._results.values()}
        for episode in read_episodes(self.directory / RECORD):
            plain = episode.extra.get(EVALUATED)
            if not isinstance(plain, dict) or episode.id in known:
                continue
            result = EpisodeResult.from_plain(plain)
            kept = self._results.get(result.key)
            if kept is None or (kept.unscored and kept.started_at < result.started_at):
                self._append(result)


def _check(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a new folder; raise if an existing folder has other settings."""
    # Compared as JSON reads them back: tuples as lists, for example.
    settings = json.loads(json.dumps(settings))
    try:
        kept = read_settings(directory)
    except FileNotFoundError:
        if (directory / RESULTS).stat().st_size:
            raise ConfigurationError(
                f"{directory} has {RESULTS} but no {SETTINGS}; use another --out, or --fresh to delete the results"
            ) from None
        _write(directory, SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        return
    different = [str(difference) for difference in differences(kept, settings)]
    if different:
        raise ConfigurationError(
            f"{directory}: its results were made with other settings ({'; '.join(different)}); "
            "use another --out, or --fresh to delete them"
        )


def _drop(directory: Path) -> None:
    """Remove the files of an evaluation, except the file of results, which is open and empty."""
    for name in _OURS:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        elif name != RESULTS:
            path.unlink(missing_ok=True)


def _write(directory: Path, name: str, text: str) -> Path:
    file, whole = directory / name, directory / f".{name}-{secrets.token_hex(4)}"
    whole.write_text(text, encoding="utf-8")
    os.replace(whole, file)
    return file


@contextlib.contextmanager
def _one_line(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror or error}") from error
