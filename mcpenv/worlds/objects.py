"""ObjectWorld: a plain Python object."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from mcpenv_client.values import to_plain

from .world import Tree


class ObjectWorld:
    """An object that pickles and has a JSON form: dicts, lists, dataclasses, pydantic models.

    Args:
        get: gives the object as it is now.
        put: takes one that was loaded. Without it this world shows the state and does not bring it back, as where it is
            in attributes that are saved with the environment anyway.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None] | None = None) -> None:
        self._get = get
        self._put = put

    def capture(self) -> Tree:
        """Its JSON form.

        Raises:
            NotSerializable: it has none.
            TypeError: it is no object with names.
        """
        tree = to_plain(self._get(), "world")
        if not isinstance(tree, dict):
            raise TypeError(f"the object of an ObjectWorld is a {type(tree).__name__} in JSON, not an object")
        return tree

    def save(self) -> bytes:
        """The pickled object."""
        return pickle.dumps(None if self._put is None else self._get())

    def load(self, saved: bytes) -> None:
        """Give it to ``put``."""
        if self._put is not None:
            self._put(pickle.loads(saved))

    def held(self) -> tuple[object, ...]:
        """Nothing."""
        return ()
