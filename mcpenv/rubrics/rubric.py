"""Rubric: what an author subclasses to say what is good. One object is the template, each episode has a copy.

The copy is made by the constructor, from the same arguments: what a rubric was given is its configuration, which is
shared and can be saved; whatever else it keeps is the state of an episode, which begins anew with each reset.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpenv_client.errors import NotSerializable
from mcpenv_client.records import Reward, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.values import to_plain

from ..errors import Misuse

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Scored:
    """What a hook is told: one rubric was asked once.

    Attributes:
        name: where the rubric stands, "/" between composites and their parts; "" for a composite at the top.
        call: the step, or the last one where ``trajectory`` is there; None if that has no steps.
        trajectory: the episode, if the rubric was asked at its end; None for a step.
        reward: what it gave; None if it did not score, or failed to.
        error: what it raised; None if it did not.
        duration_s: seconds that it took, its parts included.
    """

    name: str
    call: ToolCall | None
    trajectory: Trajectory | None
    reward: Reward | None
    error: Exception | None
    duration_s: float


Hook = Callable[[Scored], Any]
"""A function that is told; sync or async."""


_OF_THE_FRAMEWORK = frozenset({"_arguments", "_hooks", "_own_hooks", "_called", "_env", "_template"})


class _Template(type):
    """Marks what a program made itself, apart from the copies that episodes work with."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.__dict__.update(_template=True, _own_hooks=len(made._hooks))
        return made


class Rubric(metaclass=_Template):
    """What is good, over a step, over the whole episode, or both. Override `score`, `score_trajectory` or both.

    Either may be sync or async, and gives a number, a `Reward` with named components, or None for "not scored". Sync
    code runs in a worker thread on a server, never on its event loop. An exception, and NaN or infinity, is an error of
    the environment: the step fails, it is never reward 0.

    Attributes:
        name: names this rubric's component; the class's name if it is None.
    """

    name: str | None = None

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _hooks: list[Hook]
    _own_hooks: int
    _called: str | None
    _env: Any
    _template: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep the arguments, so that ``super().__init__()`` is optional."""
        self = object.__new__(cls)
        self.__dict__.update(_arguments=(args, kwargs), _hooks=[], _called=None, _env=None, _template=False)
        return self

    def __init__(self) -> None:
        """Takes nothing, so that arguments which no constructor takes are refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if self._template:
            raise Misuse(
                f"{type(self).__name__}.{name} is set outside an episode, and would be lost or shared by sessions: "
                "give it to the constructor; `fresh()` makes a copy with a state of its own"
            )
        object.__setattr__(self, name, value)

    # -- what an author overrides

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
        """The reward of a step, or None if it is not scored."""
        return None

    def score_trajectory(self, trajectory: Trajectory) -> Any:
        """The reward of an episode that is over, or None; it is added to that of the last step.

        Args:
            trajectory: the episode, its last step included. A copy: nothing changes the record.
        """
        return None

    def save_state(self) -> Any:
        """What a snapshot holds of an episode's copy: what it keeps in attributes. It has to pickle."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THE_FRAMEWORK}

    def load_state(self, state: Any) -> None:
        """Be as this rubric was when `save_state` gave ``state``."""
        for name in self.save_state().keys() - state.keys():
            delattr(self, name)
        self.__dict__.update(state)

    # -- what an author calls

    @property
    def env(self) -> Any:
        """The environment whose episode this is.

        Raises:
            Misuse: there is none, as when an old record is scored.
        """
        if self._env is None:
            raise Misuse("a rubric has an environment only in an episode")
        return self._env

    @property
    def component(self) -> str:
        """The name of this rubric's component."""
        return self._called or self.name or type(self).__name__

    def called(self, name: str) -> Self:
        """The same rubric under another name."""
        made = self.fresh()
        made.__dict__.update(_called=name, _template=True)
        return made

    def add_hook(self, hook: Hook) -> None:
        """Have ``hook`` called whenever this rubric was asked, in episodes that begin from now on.

        Sync or async; it runs where the rubric did. An exception in it fails the step.
        """
        self._hooks.append(hook)

    def fresh(self) -> Self:
        """A copy as the constructor makes it, with the same hooks: what an episode works with."""
        return self._fresh({})

    def to_config(self) -> dict[str, Any]:
        """Plain data from which `rubric_from_config` makes this rubric again.

        ``{"rubric": CLASS, "arguments": {...}}``, with ``"name"`` where it was given one by `called`; a function among
        the arguments is ``{"function": NAME}``. Arguments that were left out are left out here too.

        Raises:
            NotSerializable: an argument has no such form.
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
        """The rubrics that this one is made of."""
        return {}

    def _replace_part(self, name: str, part: Rubric) -> None:
        raise NotImplementedError

    def _all(self) -> Iterator[Rubric]:
        """This rubric and all that it is made of."""
        yield self
        for part in self._parts().values():
            yield from part._all()

    def _fresh(self, made_of: dict[int, Any]) -> Self:
        """``made_of``: copies made already, by the identity of what they are copies of."""
        if id(self) in made_of:
            copy: Self = made_of[id(self)]
            return copy
        args, kwargs = self._arguments
        cls: Any = type(self)
        made: Self = cls(
            *(_fresh(value, made_of) for value in args), **{name: _fresh(v, made_of) for name, v in kwargs.items()}
        )
        hooks = [*made._hooks, *self._hooks[self._own_hooks :]]  # those of the constructor are the copy's own
        made.__dict__.update(_arguments=self._arguments, _hooks=hooks, _called=self._called, _template=False)
        made_of[id(self)] = made
        for name, part in made._parts().items():
            if part._template:  # made, or found, in the author's constructor
                made._replace_part(name, part._fresh(made_of))
        return made


def _fresh(value: Any, made_of: dict[int, Any]) -> Any:
    """An argument for a copy: rubrics and plain containers anew, whatever else as it is."""
    if isinstance(value, Rubric):
        return value._fresh(made_of)
    if type(value) in (list, tuple, set):
        return type(value)(_fresh(item, made_of) for item in value)
    if type(value) is dict:
        return {name: _fresh(item, made_of) for name, item in value.items()}
    return value


def signature_of(cls: type[Rubric]) -> inspect.Signature:
    """What the constructor of ``cls`` takes. (`inspect.signature` of the class gives that of the metaclass.)"""
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    return inspect.Signature(parameters)


def _plain(value: Any, path: str) -> Any:
    """An argument as plain data."""
    if isinstance(value, Rubric):
        return value.to_config()
    if isinstance(value, Mapping):
        if not value.keys().isdisjoint({"rubric", "function"}):
            raise NotSerializable(path, "an object with a key 'rubric' or 'function' would be read as one")
        return {str(name): _plain(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if callable(value):
        name = getattr(value, "__name__", "<lambda>")
        if name == "<lambda>":
            raise NotSerializable(path, "it is a function without a name")
        return {"function": name}
    return to_plain(value, path)


class FunctionRubric(Rubric):
    """A rubric of functions: ``FunctionRubric(lambda call, outcome: ...)``.

    Args:
        score: what `Rubric.score` does.
        score_trajectory: what `Rubric.score_trajectory` does.
        name: of the component; a function's name if it is left out.
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
    """Whether ``fn`` is a coroutine function, or an object that is called as one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def overrides(rubric: Rubric, method: str) -> bool:
    """Whether ``rubric`` has a `score` or `score_trajectory` of its own."""
    return method in rubric.__dict__ or getattr(type(rubric), method) is not getattr(Rubric, method)
