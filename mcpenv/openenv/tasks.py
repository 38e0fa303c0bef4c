"""OpenEnv's Task API over HTTP, for environments of OpenEnv's that have tasks. Control plane: tasks may hold answers.

    GET  /list_environments
    GET  /{name}/splits
    POST /{name}/tasks, /{name}/num_tasks     split
    POST /{name}/task                         split, index
    POST /{name}/task_range                   split, start?, stop?

A refusal is ``{"detail": ...}``, as OpenEnv's clients know it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from mcpenv_client.errors import WireError
from mcpenv_client.wire import describe_faults

from ..control_http import ControlRoutes, plain_json, wire_error
from .adapter import OpenEnvEnvironment
from .process import OpenEnvRefusal

_STATUS = {"unsupported": 501, "index": 400}
_SPLIT_TYPES = ("train", "validation", "test")


class _Split(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    split: str


class _Task(_Split):
    index: int


class _Range(_Split):
    start: int | None = None
    stop: int | None = None


class TaskRoutes:
    """The handlers."""

    def __init__(self, environment_class: type[OpenEnvEnvironment], control: ControlRoutes) -> None:
        self._cls = environment_class
        self._control = control

    async def environments(self, request: Request) -> Response:
        """The one environment that is served."""
        return plain_json([self._cls.exposed_name()])

    async def splits(self, request: Request) -> Response:
        """The splits, each with a name and a type."""
        status, splits = await self._ask(request, "list_splits")
        return plain_json([_split(split) for split in splits] if status == 200 else splits, status)

    async def tasks(self, request: Request) -> Response:
        """All tasks of a split."""
        status, tasks = await self._ask(request, "list_tasks", _Split)
        name = self._cls.exposed_name()
        return plain_json({"tasks": tasks, "env_name": name} if status == 200 else tasks, status)

    async def num_tasks(self, request: Request) -> Response:
        """How many tasks a split has."""
        status, number = await self._ask(request, "num_tasks", _Split)
        return plain_json({"num_tasks": number} if status == 200 else number, status)

    async def task(self, request: Request) -> Response:
        """One task."""
        status, task = await self._ask(request, "get_task", _Task)
        return plain_json({"task": task} if status == 200 else task, status)

    async def task_range(self, request: Request) -> Response:
        """Tasks as a slice of a split."""
        status, tasks = await self._ask(request, "get_task_range", _Range)
        return plain_json({"tasks": tasks} if status == 200 else tasks, status)

    async def _ask(self, request: Request, method: str, body: type[BaseModel] | None = None) -> tuple[int, Any]:
        """Status and answer, or status and refusal."""
        name = request.path_params["name"]
        if name.lower() != self._cls.exposed_name().lower():
            return 404, {"detail": f"unknown environment {name!r}"}
        if method not in self._cls.described["tasks"]:
            return 501, {"detail": f"{method} is not supported for this environment"}
        try:
            values = [] if body is None else vars(body.model_validate(await self._control.body(request))).values()
            return 200, await self._cls.ask_tasks(method, *values)
        except ValidationError as error:
            return 422, {"detail": describe_faults(error)}
        except OpenEnvRefusal as refusal:
            return _STATUS.get(refusal.kind, 500), {"detail": refusal.message}
        except WireError as refused:
            return refused.http_status, {"detail": refused.message}
        except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
            failed = wire_error(error, request)
            return failed.http_status, {"detail": failed.message}


def _split(split: Any) -> dict[str, Any]:
    """A split's descriptor, whichever of the forms the author gave."""
    if isinstance(split, dict):
        return split
    return {"name": str(split), "type": split if split in _SPLIT_TYPES else "validation"}
