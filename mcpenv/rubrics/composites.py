"""Composites: rubrics that are made of rubrics, and ask them one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from mcpenv_client.records import Reward, ToolCall, ToolOutcome, Trajectory, finite

from .rubric import Rubric

Ask = Callable[[str], Awaitable[Reward | None]]
"""Asks the part of that name about the moment."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rubric is asked about: a step, or an episode that is over.

    Attributes:
        call: the step's; at the end that of the last step, None if there was none.
        outcome: the step's; None at the end.
        trajectory: the episode that is over; None for a step.
        step: the number of the step, at the end that of the last one.
    """

    call: ToolCall | None
    outcome: ToolOutcome | None
    trajectory: Trajectory | None
    step: int


class Composite(Rubric):
    """A rubric that is made of others. Its parts' values become components beside each other, by their names."""

    def __init__(self, parts: Mapping[str, Rubric] | Many[Rubric]) -> None:
        self.parts: dict[str, Rubric] = {}
        named = parts.items() if isinstance(parts, Mapping) else [(part.component, part) for part in parts]
        for name, part in named:
            if not isinstance(part, Rubric):
                raise TypeError(f"{type(self).__name__}: {name!r} is a {type(part).__name__}, not a Rubric")
            if "/" in str(name):
                raise ValueError(f"{type(self).__name__}: {name!r} has a '/', which stands between a part and its own")
            if name in self.parts:
                raise ValueError(f"{type(self).__name__}: two parts are called {name!r}; name one by called(...)")
            self.parts[name] = part
        if not self.parts:
            raise ValueError(f"{type(self).__name__} has no parts")

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """The value that the parts give together; None if that is not scored."""
        raise NotImplementedError

    def _parts(self) -> Mapping[str, Rubric]:
        return dict(self.parts)

    def _replace_part(self, name: str, part: Rubric) -> None:
        self.parts[name] = part


class WeightedSum(Composite):
    """The sum of its parts, each times its weight. Parts that do not score are left out; None if none scored.

    Args:
        parts: rubrics by name, or a list of them, which are then called by their own names.
        weights: one for each part, in the same form; 1 each if left out. They need not sum to 1.
    """

    def __init__(
        self,
        parts: Mapping[str, Rubric] | Many[Rubric],
        weights: Mapping[str, float] | Many[float] | None = None,
    ) -> None:
        super().__init__(parts)
        if weights is None:
            weights = dict.fromkeys(self.parts, 1.0)
        elif not isinstance(weights, Mapping):
            if len(weights) != len(self.parts):
                raise ValueError(f"WeightedSum: {len(self.parts)} parts and {len(weights)} weights")
            weights = dict(zip(self.parts, weights, strict=True))
        if set(weights) != set(self.parts):
            odd = ", ".join(sorted(repr(name) for name in set(weights) ^ set(self.parts)))
            raise ValueError(f"WeightedSum: parts and weights are called alike; {odd} is only in one of them")
        self.weights = {name: finite(f"weight {name!r}", weight) for name, weight in weights.items()}

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """The sum over those that scored."""
        total: float | None = None
        for name in self.parts:
            reward = await ask(name)
            if reward is not None:
                total = (total or 0.0) + self.weights[name] * reward.value
        return total


class Gate(Composite):
    """Scores only if a condition holds.

    Where the condition does not score, the gate does not either. At the end of an episode both are asked about the
    whole episode: `OverSteps` makes a condition on steps one on the episode.

    Args:
        condition: holds if it gives ``threshold`` or more.
        then: asked only if it holds; if left out, the condition's own value passes the gate.
        threshold: what the condition must reach.
        otherwise: the value if it does not hold; None for "not scored".
    """

    def __init__(
        self,
        condition: Rubric,
        then: Rubric | None = None,
        threshold: float = 1.0,
        otherwise: float | None = 0.0,
    ) -> None:
        super().__init__([condition] if then is None else [condition, then])
        self.threshold = finite("threshold", threshold)
        self.otherwise = None if otherwise is None else finite("otherwise", otherwise)

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """The second part's value if the first one's is enough."""
        condition, *then = self.parts
        reward = await ask(condition)
        if reward is None:
            return None
        if reward.value < self.threshold:
            return self.otherwise
        if then:
            reward = await ask(then[0])
        return None if reward is None else reward.value


class Sequence(Composite):
    """Asks its parts in order, until one gives 0 or less: cheap checks first, and what costs only if they hold.

    The value is that of the last part that scored. Parts that do not score are passed over; None if none scored.

    Args:
        parts: rubrics by name, or a list of them.
    """

    def __init__(self, parts: Mapping[str, Rubric] | Many[Rubric]) -> None:
        super().__init__(parts)

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """The first value that is not above 0, or the last one."""
        last: float | None = None
        for name in self.parts:
            reward = await ask(name)
            if reward is not None:
                last = reward.value
                if last <= 0:
                    break
        return last
