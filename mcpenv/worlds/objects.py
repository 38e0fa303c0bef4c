"""Define `ObjectWorld`, a plain Python object."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from mcpenv.errors import WorldUnreadable
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.values import to_plain

from .world import Tree


class ObjectWorld:
    """An object that pickles and has a JSON form: dicts, lists, dataclasses, pydantic models.

    Args:
        get: returns the current object.
        put: receives a loaded object. Without it the world is captured but not restored, as for attributes that are
            saved with the environment anyway.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None] | None = None) -> None:
        self._get = get
        self._put = put

    def capture(self) -> Tree:
        """Return the JSON form of the object.

        Raises:
            WorldUnreadable: the object has no JSON form.
            TypeError: if the JSON form is not an object.
        """
        try:
            tree = to_plain(self._get(), "world")
        except NotSerializable as error:
            raise WorldUnreadable(str(error)) from error
        if not isinstance(tree, dict):
            raise TypeError(f"the object of an ObjectWorld is a {type(tree).__name__} in JSON, not an object")
        return tree

    def save(self) -> bytes:
        """Return the pickled object."""
        return pickle.dumps(None if self._put is None else self._get())

    def load(self, saved: bytes) -> None:
        """Pass the loaded object to ``put``."""
        if self._put is not None:
            self._put(pickle.loads(saved))

    def held(self) -> tuple[object, ...]:
        """Return nothing."""
        return ()
