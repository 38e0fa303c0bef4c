"""Model: the base of this package's pydantic models."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from pydantic import VERSION, BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)

BUILDS_SAFELY = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether pydantic builds a model once, if several threads are the first to need it."""

_set_dict, _set_fields_set, _set_extra, _set_private = (
    vars(BaseModel)[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


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


def filled(cls: type[M], fields: dict[str, Any], names: set[str]) -> M:
    """An instance with these fields, unchecked: `model_construct` without its search for defaults and aliases.

    Args:
        fields: a value for each field of the class, in their order; kept.
        names: those of the fields; may be the same set for all instances.
    """
    instance = cls.__new__(cls)
    _set_dict(instance, fields)
    _set_fields_set(instance, names)
    _set_extra(instance, None)
    _set_private(instance, None)
    return instance


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
    return model.__module__.partition(".")[0] == __package__


_BUILDING = threading.Lock()
_built = False
