"""The source of a server's answers about tasks, and its refusal."""

from __future__ import annotations

from typing import Any, Protocol

from mcpenv_client.errors import McpenvError


class TaskRefusal(McpenvError):
    """The refusal of a question about tasks; ``status`` is an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


class TaskSource(Protocol):
    """The source of a server's answers about tasks: a `TaskSet`, or an environment of another framework."""

    @property
    def name(self) -> str:
        """The environment's name, which is part of the paths."""
        ...

    async def answer(self, method: str, *arguments: Any) -> Any:
        """Answer OpenEnv's ``list_splits``, ``list_tasks``, ``num_tasks``, ``get_task`` or ``get_task_range``.

        Raises:
            TaskRefusal: there is no such method, or no such task.
        """
        ...
