"""OpenEnv's Task API, as the task routes ask for it."""

from __future__ import annotations

from typing import Any

from ..task_routes import TaskRefusal
from .adapter import OpenEnvEnvironment
from .process import OpenEnvRefusal

_STATUS = {"unsupported": 501, "index": 400}


class OpenEnvTasks:
    """Answers of an environment of OpenEnv's, each from an instance made for it."""

    def __init__(self, environment_class: type[OpenEnvEnvironment]) -> None:
        self._cls = environment_class
        self.name = environment_class.exposed_name()

    async def answer(self, method: str, *arguments: Any) -> Any:
        """As `TaskSource.answer`."""
        if method not in self._cls.described["tasks"]:
            raise TaskRefusal(501, f"{method} is not supported for this environment")
        try:
            return await self._cls.ask_tasks(method, *arguments)
        except OpenEnvRefusal as refusal:
            raise TaskRefusal(_STATUS.get(refusal.kind, 500), refusal.message) from refusal
