"""Model: the base of this package's pydantic models."""

from __future__ import annotations

import threading
from typing import Any

from pydantic import VERSION, BaseModel, ConfigDict

BUILDS_SAFELY = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether pydantic builds a model once, if several threads are the first to need it."""


class Model(BaseModel):
    """A model of this package, whose validator is built when it is first needed: all of them are half of its import.

    Those that other modules derive from it are built where they are defined, as pydantic's are, so that a mistake in
    one is found there.
    """

    model_config = ConfigDict(defer_build=BUILDS_SAFELY)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A class was derived from it."""
        super().__pydantic_init_subclass__(**kwargs)
        if not _is_ours(cls):
            cls.model_rebuild(raise_errors=False)


def build_models() -> None:
    """Build what was not built yet, before it is needed."""
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
