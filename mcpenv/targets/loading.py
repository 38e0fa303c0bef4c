"""Load an environment by the name of its target, in Python."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcpenv.environment import MCPEnvironment

from .target import load_target


def load(target: str | Path, /, *, tasks: str | Path | None = None, **settings: Any) -> MCPEnvironment:
    """Return a new instance of the environment that ``mcpenv run TARGET`` would serve.

    Args:
        target: a folder with environment.py, a .py file, ``folder:Class``, ``module:Class``, ``module:factory``, or an
            installed name.
        tasks: a file or folder of tasks to use instead of the environment's own.
        settings: arguments of the environment's constructor.

    Raises:
        TargetError: the target is not found or does not load (``__cause__``), or its constructor raised.
        InvalidTasks: the tasks cannot be read.
    """
    loaded = load_target(str(target), (), tasks)
    if settings:
        loaded = replace(loaded, factory=functools.partial(loaded.factory, **settings))
    return loaded.make()


__all__ = ["load"]
