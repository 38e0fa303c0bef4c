"""Load the public names of packages when the first of them is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, *others: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that offers the names of its module ``api``.

    Importing a module of the package, from any number of threads, then loads none of the others.

    Args:
        package: its name.
        others: further names of its ``__all__``.
    """
    here = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name != "__all__":
            if name.startswith("__") or not name.isidentifier():
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            if find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
        public = import_module(f"{package}.api")
        offered = [each for each in public.__all__ if hasattr(public, each)]  # it may lack an extension's
        for each in offered:
            here.setdefault(each, getattr(public, each))  # a program may have replaced it
        here["__all__"] = [*offered, *others]
        try:
            return here[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    def names() -> list[str]:
        return sorted({*here, *import_module(f"{package}.api").__all__})

    return get, names
