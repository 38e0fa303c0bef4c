"""Define `Rubric`, which authors subclass to score steps and episodes. Each episode works with a copy.

The object that the author makes is the template. The constructor makes the copies, from the same arguments. The
arguments are the configuration, which is shared and can be saved. Any other attribute is state of one episode. Each
reset begins with a fresh copy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpenv.errors import Misuse
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import Reward, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.values import to_plain

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Scored:
    """The event that a hook receives after one call of a rubric.

    Attributes:
        name: the path of the rubric, "/" between composites and their parts; "" for a composite at the top.
        call: the step, or the last step if ``trajectory`` is set; None if the trajectory has no steps.
        trajectory: the episode, if the rubric was called at its end; None for a step.
        reward: the reward that it gave; None if it did not score, or failed.
        error: the exception that it raised, or None.
        duration_s: seconds that it took, its parts included.
    """

    name: str
    call: ToolCall | None
    trajectory: Trajectory | None
    reward: Reward | None
    error: Exception | None
    duration_s: float


Hook = Callable[[Scored], Any]
"""A function that receives `Scored` events; sync or async."""


_OF_THE_FRAMEWORK = frozenset({"_arguments", "_hooks", "_own_hooks", "_called", "_env", "_template"})


class _Template(type):
    """Mark the rubrics that a program made itself, to tell them from the copies of episodes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.__dict__.update(_template=True, _own_hooks=len(made._hooks))
        return made


class Rubric(metaclass=_Template):
    """Score a step, a whole episode, or both. Override `score`, `score_trajectory` or both.

    Either may be sync or async. It returns a number, a `Reward` with named components, or None for "not scored". On a
    server, sync code runs in a worker thread, never on the event loop. An exception, NaN or infinity is an error of the
    environment: the step fails, and is never given reward 0.

    Attributes:
        name: the name of this rubric's component; None for the name of the class.
    """

    name: str | None = None

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _hooks: list[Hook]
    _own_hooks: int
    _called: str | None
    _env: Any
    _template: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Store the arguments, so that ``super().__init__()`` is optional."""
        self = object.__new__(cls)
        self.__dict__.update(_arguments=(args, kwargs), _hooks=[], _called=None, _env=None, _template=False)
        return self

    def __init__(self) -> None:
        """Accept no arguments, so that unknown arguments are refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if self._template:
            raise Misuse(
                f"{type(self).__name__}.{name} is set outside an episode, so it would be lost or shared by sessions. "
                "Give it to the constructor, or call `fresh()` for a copy with a state of its own"
            )
        object.__setattr__(self, name, value)

    # -- methods to override

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
        """Return the reward of a step, or None if it is not scored."""
        return None

    def score_trajectory(self, trajectory: Trajectory) -> Any:
        """Return the reward of a finished episode, or None. It is added to the reward of the last step.

        Args:
            trajectory: the episode, its last step included. It is a copy: changing it does not change the record.
        """
        return None

    def save_state(self) -> Any:
        """Return the state of an episode's copy for a snapshot: its attributes. It must be picklable."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THE_FRAMEWORK}

    def load_state(self, state: Any) -> None:
        """Restore the state that `save_state` returned."""
        for name in self.save_state().keys() - state.keys():
            delattr(self, name)
        self.__dict__.update(state)

    # -- methods to call

    @property
    def env(self) -> Any:
        """The environment of the episode.

        Raises:
            Misuse: if there is no environment, as when an old record is scored.
        """
        if self._env is None:
            raise Misuse("a rubric has an environment only in an episode. Read it in score or score_trajectory")
        return self._env

    @property
    def component(self) -> str:
        """The name of this rubric's component."""
        return self._called or self.name or type(self).__name__

    def called(self, name: str) -> Self:
        """Return a copy of this rubric under another name."""
        made = self.fresh()
        made.__dict__.update(_called=name, _template=True)
        return made

    def add_hook(self, hook: Hook) -> None:
        """Register ``hook``, to be called after each call of this rubric in episodes that start later.

        It may be sync or async, and runs where the rubric ran. An exception in it fails the step.
        """
        self._hooks.append(hook)

    def fresh(self) -> Self:
        """Return a copy from the constructor, with the same hooks, as an episode uses it."""
        return self._fresh({})

    def to_config(self) -> dict[str, Any]:
        """Return plain data from which `rubric_from_config` makes this rubric again.

        ``{"rubric": CLASS, "arguments": {...}}``, with ``"name"`` if `called` gave it one. A function among the
        arguments is ``{"function": NAME}``. Arguments that were left out are left out here too.

        Raises:
            NotSerializable: if an argument has no such form.
        """
        cls = type(self)
        args, kwargs = self._arguments
        bound = signature_of(cls).bind(*args, **kwargs)
        arguments: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update({key: _plain(item, f"{cls.__name__}.{key}") for key, item in value.items()})
            else:
                arguments[name] = _plain(value, f"{cls.__name__}.{name}")
        config: dict[str, Any] = {"rubric": cls.__name__, "arguments": arguments}
        if self._called is not None:
            config["name"] = self._called
        return config

    # -- for the scoring

    def _parts(self) -> Mapping[str, Rubric]:
        """Return the rubrics that this one is made of."""
        return {}

    def _replace_part(self, name: str, part: Rubric) -> None:
        raise NotImplementedError

    def _all(self) -> Iterator[Rubric]:
        """Yield this rubric and all of its parts, recursively."""
        yield self
        for part in self._parts().values():
            yield from part._all()

    def _fresh(self, made_of: dict[int, Any]) -> Self:
        """Return a copy. ``made_of`` maps the id of an original to its copy."""
        if id(self) in made_of:
            copy: Self = made_of[id(self)]
            return copy
        args, kwargs = self._arguments
        cls: Any = type(self)
        made: Self = cls(
            *(_fresh(value, made_of) for value in args), **{name: _fresh(v, made_of) for name, v in kwargs.items()}
        )
        hooks = [*made._hooks, *self._hooks[self._own_hooks :]]  # the constructor adds its own hooks to each copy
        made.__dict__.update(_arguments=self._arguments, _hooks=hooks, _called=self._called, _template=False)
        made_of[id(self)] = made
        for name, part in made._parts().items():
            if part._template:  # the author's constructor made it or found it
                made._replace_part(name, part._fresh(made_of))
        return made


def _fresh(value: Any, made_of: dict[int, Any]) -> Any:
    """Copy rubrics and plain containers in an argument; return any other value as it is."""
    if isinstance(value, Rubric):
        return value._fresh(made_of)
    if type(value) in (list, tuple, set):
        return type(value)(_fresh(item, made_of) for item in value)
    if type(value) is dict:
        return {name: _fresh(item, made_of) for name, item in value.items()}
    return value


def signature_of(cls: type[Rubric]) -> inspect.Signature:
    """Return the signature of the constructor of ``cls``. (`inspect.signature` of the class gives the metaclass's.)"""
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    return inspect.Signature(parameters)


def _plain(value: Any, path: str) -> Any:
    """Return an argument as plain data."""
    if isinstance(value, Rubric):
        return value.to_config()
    if isinstance(value, Mapping):
        if not value.keys().isdisjoint({"rubric", "function"}):
            raise NotSerializable(path, "it has a key 'rubric' or 'function', and would be read as one. Rename the key")
        return {str(name): _plain(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if callable(value):
        name = getattr(value, "__name__", "<lambda>")
        if name == "<lambda>":
            raise NotSerializable(path, "it is a function without a name. Use a named function instead of a lambda")
        return {"function": name}
    return to_plain(value, path)


class FunctionRubric(Rubric):
    """Score with functions: ``FunctionRubric(lambda call, outcome: ...)``.

    Args:
        score: used as `Rubric.score`.
        score_trajectory: used as `Rubric.score_trajectory`.
        name: the name of the component; the default is the name of the function.
    """

    def __init__(
        self,
        score: Callable[[ToolCall, ToolOutcome], Any] | None = None,
        score_trajectory: Callable[[Trajectory], Any] | None = None,
        name: str | None = None,
    ) -> None:
        given = score or score_trajectory
        if given is None:
            raise TypeError("FunctionRubric needs a function: score, score_trajectory or both")
        self.name = name or getattr(given, "__name__", type(given).__name__)
        if score is not None:
            self.score = score  # type: ignore[assignment, method-assign]
        if score_trajectory is not None:
            self.score_trajectory = score_trajectory  # type: ignore[assignment, method-assign]


def is_async(fn: Callable[..., Any]) -> bool:
    """Return True if ``fn`` is a coroutine function, or an object with an async ``__call__``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def overrides(rubric: Rubric, method: str) -> bool:
    """Return True if ``rubric`` has its own `score` or `score_trajectory`."""
    return method in rubric.__dict__ or getattr(type(rubric), method) is not getattr(Rubric, method)
