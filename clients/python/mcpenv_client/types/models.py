"""The base of this package's pydantic models."""

from __future__ import annotations

import threading
from typing import Any

from pydantic import VERSION, BaseModel, ConfigDict

BUILDS_SAFELY = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""True if pydantic builds a model only once when several threads need it first."""


class Model(BaseModel):
    """The base of this package's models. The validator is built on first use: all of them are half of its import time.

    Subclasses in other modules are built at their definition, like pydantic's own, so that their mistakes are found
    there.
    """

    model_config = ConfigDict(defer_build=BUILDS_SAFELY)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Build the model of a subclass, unless it is a model of this package."""
        super().__pydantic_init_subclass__(**kwargs)
        if not _is_ours(cls):
            cls.model_rebuild(raise_errors=False)


def build_models() -> None:
    """Build the models that are not built yet, before they are needed."""
    global _built
    with _BUILDING:
        if not _built:
            waiting: list[type[Model]] = [Model]
            while waiting:
                model = waiting.pop()
                if _is_ours(model):
                    model.model_rebuild()
                waiting.extend(model.__subclasses__())
            _built = True


def _is_ours(model: type[Model]) -> bool:
    return model.__module__.partition(".")[0] == __name__.partition(".")[0]


_BUILDING = threading.Lock()
_built = False
