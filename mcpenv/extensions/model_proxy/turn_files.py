"""Files of turns: the output of a proxy without an evaluation, and joining it with a record."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mcpenv.errors import ConfigurationError, DamagedRecord
from mcpenv.trajectories import RecordedEpisode
from mcpenv_client.samples.linking import link_calls
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.wire.faults import describe_faults

from .turns import Shortening

FORMAT = 1
"""The version of a line's format. A reader refuses unknown ones."""

FILES = "turns-*.jsonl"

MAX_EPISODES = 1000
"""Maximum episodes with their latest requests in memory. The requests of older episodes are written in full."""


@dataclass(frozen=True)
class TurnLine:
    """A line of a file: one turn of an episode.

    Attributes:
        episode_id: the id in the URL.
        number: the index of the turn in its episode, counted within this file, from 0.
        turn: the turn. `Repeated.turn` is such an index.
        format: the version of the line's format, `FORMAT`.
    """

    episode_id: str
    number: int
    turn: ModelTurn
    format: int = FORMAT


_ADAPTER = TypeAdapter(TurnLine)


class TurnFile:
    """The store that appends each turn to a new file, by one write.

    Args:
        directory: the folder of the file; created if it does not exist.

    Raises:
        ConfigurationError: it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        name = FILES.replace("*", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        self.path = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{directory} cannot be written: {error.strerror}") from error
        self._shortenings: dict[str, Shortening] = {}
        self._counts: Counter[str] = Counter()

    def knows(self, episode_id: str) -> bool:
        """Return True: any id is accepted."""
        return True

    def begin(self, episode_id: str) -> None:
        """Do nothing: a turn is written when it ends."""

    def add(self, episode_id: str, turn: ModelTurn) -> None:
        """Append a turn.

        Raises:
            OSError: the disk is full, or fails.
        """
        kept = self._shortenings.pop(episode_id, None) or Shortening(self._counts[episode_id])
        self._shortenings[episode_id] = kept  # at the end, as the latest one
        while len(self._shortenings) > MAX_EPISODES:
            del self._shortenings[next(iter(self._shortenings))]
        line = TurnLine(episode_id, self._counts[episode_id], kept.shortened(turn))
        self._counts[episode_id] += 1
        # ASCII, because a text of an agent may have lone surrogates, which UTF-8 does not.
        data = json.dumps(asdict(line)).encode() + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError(f"{self.path}: a turn was not written whole; is the disk full?")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_turns(directory: Path) -> dict[str, list[ModelTurn]]:
    """Return the turns of a folder, by episode. A last line without a newline, left by a crash, is ignored.

    Raises:
        ConfigurationError: the folder has no files of turns.
        DamagedRecord: a line is damaged, or in a format unknown to this version.
    """
    files = sorted(directory.glob(FILES))
    if not files:
        raise ConfigurationError(f"{directory} has no turns of a model: mcpenv model-proxy --out writes {FILES}")
    found: defaultdict[str, list[ModelTurn]] = defaultdict(list)
    for file in files:
        first = {episode_id: len(turns) for episode_id, turns in found.items()}
        for line in _lines(file):
            repeated, before = line.turn.repeated, first.get(line.episode_id, 0)
            if repeated is not None and before:  # its number counts within its file; the list has earlier files too
                line.turn.repeated = replace(repeated, turn=repeated.turn + before)
            found[line.episode_id].append(line.turn)
    return dict(found)


def _lines(file: Path) -> Iterator[TurnLine]:
    data = file.read_bytes()
    for number, text in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = _ADAPTER.validate_python(json.loads(text))
        except ValidationError as error:
            raise DamagedRecord(describe_faults(error), f"{file.name}:{number}") from error
        except ValueError as error:
            raise DamagedRecord(f"it is no JSON: {error}", f"{file.name}:{number}") from error
        if line.format != FORMAT:
            reads = f"it has format {line.format}; this version of mcpenv reads {FORMAT}"
            raise DamagedRecord(reads, f"{file.name}:{number}")
        yield line


def joined(episode: RecordedEpisode, turns: list[ModelTurn]) -> RecordedEpisode:
    """Return a recorded episode with the turns of its model, linked to its steps."""
    link_calls(turns, episode.trajectory)
    return replace(episode, model_turns=turns)
