"""Tasks over HTTP, in OpenEnv's shape. Control plane: tasks may hold answers.

    GET  /list_environments
    GET  /{name}/splits
    POST /{name}/tasks, /{name}/num_tasks     split
    POST /{name}/task                         split, index
    POST /{name}/task_range                   split, start?, stop?

A refusal is ``{"detail": ...}``, as OpenEnv's clients expect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from mcpenv.execution.concurrency.threads import THREADS
from mcpenv.failures import wire_error
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.tasks import TaskSet
from mcpenv.tasks.source import TaskRefusal, TaskSource
from mcpenv_client.types.values import encode
from mcpenv_client.wire.faults import describe_faults

from .http import ControlRoutes

MAX_LISTED = 10_000
"""Maximum tasks in one answer. Clients get more of them range by range."""

_PLACE: dict[str, JsonValue] = {"minimum": 0}
_SPLIT_TYPES = ("train", "validation", "test")


class SplitBody(BaseModel):
    """A body that names a split."""

    model_config = ConfigDict(extra="forbid", strict=True)

    split: str


class TaskBody(SplitBody):
    """A body that names a task. The task set refuses negative numbers, with status 400."""

    index: int = Field(json_schema_extra=_PLACE)


class RangeBody(SplitBody):
    """A body that names a range of tasks."""

    start: int | None = Field(default=None, json_schema_extra=_PLACE)
    stop: int | None = Field(default=None, json_schema_extra=_PLACE)


class TaskRoutes:
    """The handlers of the routes."""

    def __init__(self, tasks: TaskSource, control: ControlRoutes) -> None:
        self._tasks = tasks
        self._control = control

    async def environments(self, request: Request) -> Response:
        """Answer the one environment that is served."""
        return await _json([self._tasks.name])

    async def splits(self, request: Request) -> Response:
        """Answer the splits, each with a name and a type."""
        return await self._ask(request, "list_splits", None, lambda splits: [_split(split) for split in splits])

    async def tasks(self, request: Request) -> Response:
        """Answer all tasks of a split."""
        return await self._ask(request, "list_tasks", SplitBody, self._named("tasks"))

    async def num_tasks(self, request: Request) -> Response:
        """Answer the number of tasks in a split."""
        return await self._ask(request, "num_tasks", SplitBody, lambda number: {"num_tasks": number})

    async def task(self, request: Request) -> Response:
        """Answer one task."""
        return await self._ask(request, "get_task", TaskBody, self._named("task"))

    async def task_range(self, request: Request) -> Response:
        """Answer a slice of a split's tasks."""
        return await self._ask(request, "get_task_range", RangeBody, self._named("tasks"))

    def _named(self, key: str) -> Callable[[Any], Any]:
        return lambda answer: {key: answer, "env_name": self._tasks.name}

    async def _ask(
        self, request: Request, method: str, body: type[BaseModel] | None, shown: Callable[[Any], Any]
    ) -> Response:
        """Return the response with what the tasks answer, or with their refusal.

        Args:
            shown: gives the answer the form of the response's body.
        """
        name = request.path_params.get("name", self._tasks.name)  # clients of ORS may leave it out
        try:
            if name.lower() != self._tasks.name.lower():
                raise TaskRefusal(404, f"unknown environment {name!r}")
            values = [] if body is None else vars(body.model_validate(await self._control.body(request))).values()
            return await _json(shown(await self._tasks.answer(method, *values)))
        except ValidationError as error:
            status, detail = 422, describe_faults(error)
        except TaskRefusal as refused:
            status, detail = refused.status, refused.message
        except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
            failed = wire_error(error, request.url.path)
            status, detail = failed.http_status, failed.message
        return await _json({"detail": detail}, status)


def task_source_of(source: EnvironmentFactory) -> TaskSource:
    """Return the tasks of an environment: its class's own source, or its task set."""
    cls = source.environment_class
    own = None if cls is None or cls.tasks is not None else cls.task_source()
    return ServedTasks(source) if own is None else own


class ServedTasks:
    """The answers from a task set. They run in threads, because they may read files or run the author's generator.

    Args:
        source: the source of the environments that have the tasks.
    """

    def __init__(self, source: EnvironmentFactory) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._source.name

    async def answer(self, method: str, *arguments: Any) -> Any:
        """Return the answer to a request. The same as `TaskSource.answer`."""
        tasks = self._source.tasks
        if tasks is None:
            raise TaskRefusal(501, "this environment has no tasks")
        return await THREADS.run(_ANSWERS[method], tasks, *arguments)


def _listed(tasks: TaskSet, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
    size = tasks.size(split)
    begin, end = start or 0, size if stop is None else min(stop, size)
    if begin < 0 or end < 0:
        raise TaskRefusal(400, "start and stop count from 0; there are no negative ones")
    if end - begin > MAX_LISTED:
        raise TaskRefusal(
            400, f"{split!r} has {size} tasks; ask for at most {MAX_LISTED} at a time, by start and stop of task_range"
        )
    return [_plain_task(tasks, split, index) for index in range(begin, end)]


def _plain_task(tasks: TaskSet, split: str, index: int) -> dict[str, Any]:
    return tasks.get(split, index).model_dump(mode="json")


_ANSWERS: dict[str, Callable[..., Any]] = {
    "list_splits": TaskSet.splits,
    "list_tasks": _listed,
    "num_tasks": TaskSet.size,
    "get_task": _plain_task,
    "get_task_range": _listed,
}


def _split(split: Any) -> dict[str, Any]:
    """Return a split's descriptor from any form that the author may have used."""
    if isinstance(split, dict):
        return split
    return {"name": str(split), "type": split if split in _SPLIT_TYPES else "validation"}


async def _json(data: Any, status: int = 200) -> Response:
    """Return a JSON response. It is encoded in a thread, because a listing may be large."""
    return Response(await THREADS.run(encode, data, "reply"), status, media_type="application/json")
