"""The route by which the console writes a task of an author's own calls into the folder of the environment."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request

from mcpenv.cli.instance import own_instances
from mcpenv.errors import InvalidTasks
from mcpenv.extensions.validation.tasks.proposal import Proposal, propose
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.extension import Access, Extension, ServerRoute
from mcpenv.targets.target import Target
from mcpenv.tasks import NoSuchTask, TaskSet
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.tasks import Task

TASKS, BUGS = "tasks.jsonl", "bugs.jsonl"
KINDS = {"task": TASKS, "test": TASKS, "bug": BUGS}
"""The files by the kinds of what is saved."""


class SavedTasks(Extension):
    """The handlers. Only files of the environment's own folder are written, and only lines are added.

    Args:
        target: the environment. Its instances that validate a task are made and closed here.
    """

    def __init__(self, target: Target, server: EnvServer) -> None:
        self._target = target
        self._server = server
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> list[ServerRoute]:
        """Return the routes."""
        if not self._server.config.has_control:
            return []
        return [
            ServerRoute("/console/dev/tasks", self.tasks, Access.CONTROLLED, ("GET", "POST")),
        ]

    @answered
    async def tasks(self, request: Request) -> dict[str, Any]:
        """Answer the files that are written. POST: validate a task and add it, unless it has problems."""
        if request.method == "GET":
            return {"files": {kind: self._file(name).name for kind, name in KINDS.items()}}
        body = await self._server.control.body(request)
        kind, given, anyway = body.get("kind"), body.get("task"), body.get("anyway", False)
        if kind not in KINDS or not isinstance(given, dict) or set(body) - {"kind", "task", "anyway"}:
            raise InvalidMessage(
                'the body is {"kind": "task", "test" or "bug", "task": {...}, "anyway": true or false}'
            )
        try:
            task = Task.model_validate(given)
        except ValidationError as error:
            raise InvalidMessage(f"this is no task: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._saved, kind, task, anyway is True)

    def _saved(self, kind: str, task: Task, anyway: bool) -> dict[str, Any]:
        file = self._file(KINDS[kind])
        self._refuse_known(task.id, file)
        with own_instances():
            found = propose(self._target.make, task, judged=kind != "bug")
        notes, cls = list(found.notes), self._target.environment_class
        if cls is not None and not cls.SUPPORTS_CONCURRENT_SESSIONS:
            notes.append(
                "It was played in instances beside yours. SUPPORTS_CONCURRENT_SESSIONS is False, so that your episode "
                "may have seen their changes."
            )
        if kind == "bug":
            notes.append(
                "The calls give the same results again." if found.repeats else "Two plays of the calls differ."
            )
        row = json.dumps(_row(found), ensure_ascii=False)
        written = anyway or not found.problems
        if written:
            _append(file, row, checked=kind != "bug")
            if kind != "bug" and not self._is_read(file):
                notes.append(
                    f'The environment does not read {file.name} yet: tasks = TaskSet.from_jsonl("{file.name}").'
                )
        problems = [{"problem": problem, "remedy": remedy} for problem, remedy in found.problems]
        return {"written": written, "file": file.name, "row": row, "problems": problems, "notes": notes}

    def _file(self, name: str) -> Path:
        """Return the file of a name in the environment's folder; for tasks the one that the environment reads.

        Raises:
            InvalidMessage: there is no such folder, or the file is outside of it.
        """
        if self._target.folder is None:
            raise InvalidMessage("this environment has no folder of its own")
        folder = self._target.folder.resolve()
        source = Path(self._source)
        own = name == TASKS and source.is_absolute() and source.suffix == ".jsonl" and source.parent.resolve() == folder
        file = source if own else folder / name
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise InvalidMessage(f"{file.name} is no plain file of the environment's folder; it is not written")
        return file

    @property
    def _source(self) -> str:
        cls = self._target.environment_class
        return "" if cls is None or cls.tasks is None else cls.tasks.source

    def _is_read(self, file: Path) -> bool:
        return self._source == str(file)

    def _refuse_known(self, task_id: str, file: Path) -> None:
        """Raise if there is a task of that id. Nothing is ever overwritten.

        Raises:
            _Known: the environment or the file has it.
            InvalidMessage: the file cannot be added to.
        """
        cls = self._target.environment_class
        with contextlib.suppress(InvalidTasks, NoSuchTask):
            if cls is not None and cls.tasks is not None and cls.tasks.find(task_id):
                raise _Known(f"the environment has a task {task_id!r} already; give this one another id")
        lines = file.read_bytes().removeprefix(codecs.BOM_UTF8) if file.exists() else b""
        if lines.lstrip()[:1] == b"[":
            raise InvalidMessage(
                f"{file.name} is one array of tasks; lines are added to files of one object a line only"
            )
        for line in filter(bytes.strip, lines.split(b"\n")):
            with contextlib.suppress(ValueError):
                known = json.loads(line)
                if isinstance(known, dict) and known.get("id") == task_id:
                    raise _Known(f"{file.name} has a line with the id {task_id!r} already; give this one another id")


class _Known(InvalidMessage):
    """The error for an id that is in use."""

    http_status = 409


def _row(found: Proposal) -> dict[str, Any]:
    return found.task.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def _append(file: Path, row: str, *, checked: bool) -> None:
    """Add a line, so that a reader sees the file before or after it, never a part of it.

    Args:
        checked: True for a file of tasks. It is written only if all of its lines can be read as tasks.

    Raises:
        InvalidMessage: one of them cannot.
    """
    before = file.read_bytes() if file.exists() else b""
    if before and not before.endswith(b"\n"):
        before += b"\n"
    descriptor, name = tempfile.mkstemp(prefix=f".{file.stem}.", suffix=".jsonl", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(before + row.encode() + b"\n")
            new.flush()
            os.fsync(new.fileno())
        if checked:
            _read(Path(name), file)
        Path(name).chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(new: Path, file: Path) -> None:
    """Read a file of tasks to its end.

    Raises:
        InvalidMessage: it holds something else, or names its columns in a way of its own.
    """
    try:
        for _ in TaskSet.from_jsonl(new):
            pass
    except InvalidTasks as error:
        why = str(error).replace(str(new), file.name)
        raise InvalidMessage(
            f"not written, because {file.name} could not be read any more: {why}. Correct the task, or add the line to "
            "the file in its own form"
        ) from error
