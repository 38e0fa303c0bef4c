"""Combine rubrics: weighted sum, gate, sequence. Parts are scored one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from mcpenv_client.scores import reaches
from mcpenv_client.types.records import Reward, ToolCall, ToolOutcome, Trajectory, finite, summed

from .rubric import Rubric

Ask = Callable[[str], Awaitable[Reward | None]]
"""Scores the current moment with the part of the given name."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The step, or the finished episode, that a rubric scores.

    Attributes:
        call: the call of the step; at the end, the call of the last step, or None if there was no step.
        outcome: the outcome of the step; None at the end.
        trajectory: the finished episode; None for a step.
        step: the number of the step; at the end, the number of the last step.
    """

    call: ToolCall | None
    outcome: ToolOutcome | None
    trajectory: Trajectory | None
    step: int


class Composite(Rubric):
    """A rubric made of other rubrics. Its components are the components of its parts, under the names of the parts."""

    def __init__(self, parts: Mapping[str, Rubric] | Many[Rubric]) -> None:
        self.parts: dict[str, Rubric] = {}
        named = parts.items() if isinstance(parts, Mapping) else [(part.component, part) for part in parts]
        for name, part in named:
            if not isinstance(part, Rubric):
                raise TypeError(f"{type(self).__name__}: part {name!r} is a {type(part).__name__}, not a Rubric")
            if "/" in str(name):
                raise ValueError(
                    f"{type(self).__name__}: part {name!r} has a '/' in its name; '/' separates nested parts"
                )
            if name in self.parts:
                raise ValueError(f"{type(self).__name__}: two parts are named {name!r}. Rename one with called(...)")
            self.parts[name] = part
        if not self.parts:
            raise ValueError(f"{type(self).__name__} has no parts. Give at least one rubric")

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Return the combined value of the parts; None for "not scored"."""
        raise NotImplementedError

    def _parts(self) -> Mapping[str, Rubric]:
        return dict(self.parts)

    def _replace_part(self, name: str, part: Rubric) -> None:
        self.parts[name] = part


class WeightedSum(Composite):
    """Sum the parts, each times its weight. Parts that are not scored are left out; None if none was scored.

    Args:
        parts: rubrics by name, or a list of rubrics, which keep their own names.
        weights: one weight for each part, in the same form as ``parts``. The default is 1 each. They need not sum to 1.
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
                raise ValueError(
                    f"WeightedSum: {len(self.parts)} parts but {len(weights)} weights. Give one for each part"
                )
            weights = dict(zip(self.parts, weights, strict=True))
        if set(weights) != set(self.parts):
            odd = ", ".join(sorted(repr(name) for name in set(weights) ^ set(self.parts)))
            raise ValueError(f"WeightedSum: parts and weights must have the same names; only one of them has {odd}")
        self.weights = {name: finite(f"weight {name!r}", weight) for name, weight in weights.items()}

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Return the weighted sum over the parts that were scored."""
        rewards = {name: await ask(name) for name in self.parts}
        values = [self.weights[name] * reward.value for name, reward in rewards.items() if reward is not None]
        return summed(values) if values else None


class Gate(Composite):
    """Score only if a condition holds.

    The gate is not scored where its condition is not scored. At the end of an episode, both parts score the whole
    episode. Use `OverSteps` to turn a condition on steps into one on the episode.

    Args:
        condition: the rubric that must give ``threshold`` or more.
        then: scored only if the condition holds. Without it, the gate returns the condition's own value.
        threshold: the smallest value of the condition that opens the gate, but for rounding.
        otherwise: the value if the condition does not hold; None for "not scored".
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
        """Return the value of the second part if the condition holds."""
        condition, *then = self.parts
        reward = await ask(condition)
        if reward is None:
            return None
        if not reaches(reward.value, self.threshold):
            return self.otherwise
        if then:
            reward = await ask(then[0])
        return None if reward is None else reward.value


class Sequence(Composite):
    """Score the parts in order until one gives 0 or less. Put cheap checks first and expensive ones last.

    The last part that was scored gives the value. Parts that are not scored are skipped; None if none was scored.

    Args:
        parts: rubrics by name, or a list of rubrics.
    """

    def __init__(self, parts: Mapping[str, Rubric] | Many[Rubric]) -> None:
        super().__init__(parts)

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Return the first value that is 0 or less, or else the last value."""
        last: float | None = None
        for name in self.parts:
            reward = await ask(name)
            if reward is not None:
                last = reward.value
                if last <= 0:
                    break
        return last
