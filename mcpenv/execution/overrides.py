"""The framework's reset, close and state, which run those that an environment's author wrote."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from mcpenv_client.types.observations import Observation
from mcpenv_client.types.state import State

from .execution import Execution
from .step import current


class Environment(Protocol):
    """The environment whose methods are overridden."""

    _execution: Execution

    @property
    def episode_id(self) -> str | None:
        """The running episode's id."""
        ...

    @property
    def step_count(self) -> int:
        """The number of steps of this episode."""
        ...

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode."""
        ...

    async def close_async(self) -> None:
        """Close the instance."""
        ...


class _Nothing:
    """The return value of the base methods: nothing, awaited or not, so that ``await super().reset()`` is harmless."""

    def __await__(self) -> Any:
        return
        yield


NOTHING = _Nothing()
"""The one instance."""


def around_reset(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the framework's ``reset``, which opens an episode and runs ``body``. Inside a reset it is ``body``."""

    @functools.wraps(body)
    def reset(
        self: Environment, seed: int | None = None, episode_id: str | None = None, *args: Any, **options: Any
    ) -> Any:
        if current.get() is self._execution:
            return _call_body(body, self, seed, episode_id, args, options)
        if args:
            raise TypeError("reset takes its options by name")
        return self._execution.home.drive(self.reset_async(seed, episode_id, **options))

    return reset


def _call_body(
    body: Callable[..., Any],
    env: Environment,
    seed: int | None,
    episode_id: str | None,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    parameters = inspect.signature(body).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {"seed": seed, "episode_id": episode_id}
    given = {name: value for name, value in named.items() if name in parameters or (takes_any and value is not None)}
    return body(env, *args, **given, **options)


def no_options(self: Environment, seed: int | None = None, episode_id: str | None = None) -> None:
    """Begin an episode, for an environment that does not override ``reset``."""


def around_close(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the framework's ``close``, which runs ``body`` once. Inside a close it is ``body``."""

    @functools.wraps(body)
    def close(self: Environment) -> Any:
        if current.get() is self._execution:
            return body(self)
        self._execution.home.drive(self.close_async())
        self._execution.home.leave()
        return None

    return close


def around_state(body: property) -> property:
    """Return the property ``body`` with the episode's id, step count and end filled in where it leaves them out."""
    getter = body.fget
    assert getter is not None

    @functools.wraps(getter)
    def state(self: Environment) -> Any:
        value = getter(self)
        if not isinstance(value, State):
            raise TypeError(f"state is a {type(value).__name__}; return a State")
        missing: dict[str, Any] = {}
        if value.episode_id is None:
            missing["episode_id"] = self.episode_id
        if "step_count" not in value.model_fields_set:
            missing["step_count"] = self.step_count
        if value.done is None:
            missing["done"] = self._execution.episode.done
        return value.model_copy(update=missing) if missing else value

    return property(state, body.fset, body.fdel)


SETTINGS = (
    "SUPPORTS_CONCURRENT_SESSIONS",
    "THREAD_AFFINE",
    "CONCURRENT_CALLS",
    "SURVIVES_TIMEOUT",
    "DYNAMIC_TOOLS",
    "EXPOSED_NAME",
    "action_types",
    "observation_type",
    "state_type",
    "max_steps",
    "max_kept_steps",
    "save_state",
    "load_state",
    "task_source",
)
"""The class attributes of environments with names that nobody uses by chance."""

SIMILAR = 0.85
"""The least ratio of `difflib` at which a name counts as a misspelt setting."""


def warn_of_near_misses(cls: type) -> None:
    """Warn about attributes of an environment's class that look like misspelt settings."""
    by_lower = {name.lower(): name for name in SETTINGS}
    for name in vars(cls):
        close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILAR)
        if close and name != by_lower[close[0]]:
            meant = by_lower[close[0]]
            warnings.warn(f"mcpenv does not read {cls.__name__}.{name}. Did you mean {meant!r}?", stacklevel=3)
