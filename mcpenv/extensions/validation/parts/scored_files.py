"""Find files that decide the score and that the agent can write, by overwriting them in an otherwise idle episode."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.files_world import FilesWorld
from mcpenv.extensions.validation.tasks.play import Calls, oracle, play
from mcpenv_client.scores import reaches
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tasks import Task

from .candidate import Candidate
from .judged import Judged, some_of
from .parameters import Kind, of_kind

CONTENTS = ("x", "", "{}", "true")
"""Texts that make two files equal, an expectation empty, or a test absent."""
MAX_TASKS = 3
MAX_FILES = 20

_REMEDY = (
    "Keep what is expected out of the agent's folder: in the task's metadata or verifier, or in the environment's code"
)

_REMEDY_OF_BROKEN = "Let verify score 0 for what it cannot read, so that an agent cannot escape from it"


class _OracleFailed(Exception):
    """Raised if the oracle of a task cannot be played, with the error."""


def judge_scored_files(candidate: Candidate, into: Judged) -> None:
    """Overwrite the files of the agent's folder that scoring reads, in an otherwise idle episode.

    The episode must not get the full score.
    """
    check = "scored files"
    if not candidate.tasks:
        into.not_applicable(check, "it has no tasks, so that no end is scored")
        return
    with candidate.episode() as env:
        folders = _folders(env)
        writers = list(_writers(env))
    if not folders or not writers:
        into.not_applicable(check, "no folder is its world, or no tool writes a file")
        return
    found: list[str] = []
    for task in candidate.tasks[:MAX_TASKS]:
        try:
            files = _files_at_reset(candidate, task)
        except _OracleFailed as failed:
            into.skipped(check, f"not run: the oracle of {task.id} cannot be played: {failed}")
            return
        found += files
        for content in CONTENTS if files else ():
            with candidate.instance() as env:
                played = play(env, task, _overwriting(task, files, content))
            done = f"writing {content!r} to {some_of(files)}"
            if played.error is not None:
                into.failed(check, f"{done} breaks the episode's end: {played.error}", _REMEDY_OF_BROKEN, task.id)
                return
            if played.score is not None and reaches(played.score, task.reward_range[1]):
                into.failed(check, f"{done} scores {played.score:g}, and nothing else was done", _REMEDY, task.id)
                return
    if found:
        into.ok(check)
    else:
        into.not_applicable(check, "the folder has no file at the reset of the first tasks")


def _folders(env: MCPEnvironment) -> list[Path]:
    worlds = env.world.values() if isinstance(env.world, Mapping) else [env.world]
    return [world.folder.resolve() for world in worlds if isinstance(world, FilesWorld)]


def _files_at_reset(candidate: Candidate, task: Task) -> list[str]:
    """Return the files that exist after the reset and that the author's code opens while scoring.

    If it opens none, the code that it starts may open any: return all existing files.

    Raises:
        _OracleFailed: the oracle of the task cannot be played.
    """
    with candidate.instance() as env:
        env.reset(task=task)
        there = [
            file.relative_to(folder).as_posix()
            for folder in _folders(env)
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        ]
        folders = _folders(env)
    with candidate.instance() as env, _Opened() as opened:
        played = play(env, task, oracle(task))
        folders += _folders(env)
    if played.error is not None:
        raise _OracleFailed(played.error)
    read = {
        path.relative_to(folder).as_posix()
        for path in opened.paths
        for folder in folders
        if path.is_relative_to(folder)
    }
    return [name for name in there if name in read or not read][:MAX_FILES]


def _writers(env: MCPEnvironment) -> Iterator[tuple[str, str, str]]:
    """Yield tool, parameter of the path and parameter of the text, for each tool that writes files."""
    for tool in env.list_tools():
        paths, texts = list(of_kind(tool, Kind.PATH)), list(of_kind(tool, Kind.TEXT))
        required = set(tool.input_schema.get("required", ()))
        if len(paths) == 1 and len(texts) == 1 and required <= {*paths, *texts}:
            yield tool.name, paths[0], texts[0]


def _overwriting(task: Task, files: list[str], content: str) -> Any:
    """Return a player that writes a text to all files, by every tool that can."""

    def calls(env: MCPEnvironment, observation: Observation) -> Calls:
        for tool, path, text in _writers(env):
            for file in files:
                yield tool, {path: file, text: content}

    return calls


class _Opened:
    """Records the files that the author's code opens while scoring, as long as the block runs."""

    _SCORING = ("verify", "score", "forward")

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self._opens = builtins.open

    def __enter__(self) -> _Opened:
        builtins.open = io.open = self._open
        return self

    def __exit__(self, *exc: object) -> None:
        builtins.open = io.open = self._opens

    def _open(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name not in self._SCORING:
            frame = frame.f_back
        if frame is not None and isinstance(file, str | os.PathLike):
            self.paths.add(Path(os.fspath(file)).resolve())
        return self._opens(file, *args, **kwargs)
