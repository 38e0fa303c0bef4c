"""The methods that the author of an environment class wrote, `AuthorHooks`, and the framework's methods around them."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpenv.rewards.rubrics import Rubric
from mcpenv.tasks.reset_options import ResetOptions
from mcpenv_client.types.state import State

from .current_step import current

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment


class _Nothing:
    """The return value of the base methods: nothing, awaited or not, so that ``await super().reset()`` is harmless."""

    def __await__(self) -> Any:
        return
        yield


NOTHING = _Nothing()
"""The only instance."""


@dataclass(frozen=True, slots=True)
class AuthorHooks:
    """The methods of one environment class as its author wrote them, found once when the class is made.

    Attributes:
        reset: the function; None if the class does not override it.
        options: the options of ``reset``.
        close: the function; None if the class does not override it.
        score_is_async: ``score`` is a coroutine function.
        verifies: the class overrides ``verify``.
        verify_is_async: ``verify`` is a coroutine function.
        verifies_tasks: ``verify`` replaces the verifiers of tasks.
        saves_state: the class overrides ``save_state``.
    """

    reset: Callable[..., Any] | None
    options: ResetOptions
    close: Callable[..., Any] | None
    score_is_async: bool
    verifies: bool
    verify_is_async: bool
    verifies_tasks: bool
    saves_state: bool

    @classmethod
    def of(cls, environment: type[MCPEnvironment], base: type[MCPEnvironment]) -> AuthorHooks:
        """Return the hooks of a class.

        Args:
            base: the class `MCPEnvironment`.
        """
        line = [each for each in environment.__mro__ if issubclass(each, base)]
        above = [each.author_hooks for each in line[1:]]
        # In each class, `around_reset` and `around_close` have replaced the author's functions.
        reset, close = (next(vars(each)[name] for each in line if name in vars(each)) for name in ("reset", "close"))
        body = None if reset is vars(base)["reset"] else reset.__wrapped__
        known = next((hooks for hooks in above if hooks.reset is body), None)
        return cls(
            body,
            ResetOptions(_no_options if body is None else body) if known is None else known.options,
            None if close is vars(base)["close"] else close.__wrapped__,
            inspect.iscoroutinefunction(environment.score),
            environment.verify is not base.verify,
            inspect.iscoroutinefunction(environment.verify),
            any(hooks.verifies_tasks for hooks in above),
            environment.save_state is not base.save_state,
        )


def _no_options(self: object, seed: int | None = None, episode_id: str | None = None) -> None:
    """Begin an episode, for an environment that does not override ``reset``."""


def around_reset(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the framework's ``reset``, which opens an episode and runs ``body``. Inside a reset it is ``body``."""

    @functools.wraps(body)
    def reset(
        self: MCPEnvironment, seed: int | None = None, episode_id: str | None = None, *args: Any, **options: Any
    ) -> Any:
        execution = self._execution
        # `super().reset()` in a subclass: run this body without beginning another episode.
        if current.get() is execution:
            parameters = inspect.signature(body).parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            named = {"seed": seed, "episode_id": episode_id}
            given = {n: v for n, v in named.items() if n in parameters or (takes_any and v is not None)}
            return body(self, *args, **given, **options)
        if args:
            raise TypeError("reset takes its options by name")
        return execution.blocking.run(execution.reset(seed, episode_id, options))

    return reset


def around_close(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the framework's ``close``, which runs ``body`` once. Inside a close it is ``body``."""

    @functools.wraps(body)
    def close(self: MCPEnvironment) -> Any:
        execution = self._execution
        if current.get() is execution:
            return body(self)
        execution.blocking.run(execution.close())
        execution.blocking.release()
        return None

    return close


def around_state(body: property) -> property:
    """Return the property ``body`` with the episode's id, step count and end filled in if it leaves them out."""
    getter = body.fget
    assert getter is not None

    @functools.wraps(getter)
    def state(self: MCPEnvironment) -> Any:
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

    return OwnProperty(state) if body.fset is None else property(state, body.fset, body.fdel)


OWN = ("state", "mode", "step_count", "shared", "episode_id", "trajectory", "mcp")
"""The properties of environments that mcpenv sets."""


class OwnProperty(property):
    """A property of environments that authors cannot set. The error says so at their line."""

    def __set__(self, instance: Any, value: Any) -> None:
        """Refuse the assignment."""
        name, cls = getattr(self.fget, "__name__", "it"), type(instance).__name__
        advice = "Override it as a property, with state_type" if name == "state" else "Use another name"
        raise AttributeError(f"{cls}.{name} is a property of MCPEnvironment and cannot be set. {advice}")


def check_setting(owner: str, name: str, value: Any) -> None:
    """Check the value of `max_steps` or `rubric`.

    Raises:
        TypeError, ValueError: naming the attribute.
    """
    if name == "max_steps" and value is not None and not hasattr(value, "__get__"):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{owner}.max_steps is {value!r}. Make it an int, or None for no limit")
        if value < 1:
            raise ValueError(f"{owner}.max_steps is {value}. An episode has at least 1 step; None is no limit")
    if name == "rubric" and isinstance(value, type) and issubclass(value, Rubric):
        raise TypeError(f"{owner}.rubric is the class {value.__name__}. Make it an instance: {value.__name__}()")


SETTINGS = (
    "SUPPORTS_CONCURRENT_SESSIONS",
    "THREAD_AFFINE",
    "CONCURRENT_CALLS",
    "SURVIVES_TIMEOUT",
    "RESET_TIMEOUT_S",
    "DYNAMIC_TOOLS",
    "EXPOSED_NAME",
    "action_types",
    "observation_type",
    "state_type",
    "max_steps",
    "max_kept_steps",
    "max_kept_bytes",
    "save_state",
    "load_state",
    "task_source",
)
"""The class attributes of environments that have distinctive names."""

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
