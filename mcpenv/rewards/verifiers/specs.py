"""Read and run verifiers, which task files contain as plain data.

Each ``kind`` is a class of `VerifierSpec`. Two kinds compare the state of the world. Extensions add kinds by the
entry-point group ``mcpenv.verifiers``: the name of an entry is the kind, the entry its class.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError, InvalidVerifier, VerifierFailed
from mcpenv_client.types.records import Reward
from mcpenv_client.types.tasks import Task
from mcpenv_client.wire.faults import faults, place_of

from .diff import Changes, Verdict
from .evidence import Evidence
from .paths import Pattern
from .patterns import from_plain

ENTRY_POINTS = "mcpenv.verifiers"

MAX_WORLD = 64 << 20
"""Maximum bytes, roughly, of the world before and after together. An agent can make a world arbitrarily large."""
MAX_DEPTH = 150
"""Maximum depth of nested objects and lists. JSON readers stop at 200, and the evidence adds some levels."""

_EACH = 16

InThread = Callable[..., Awaitable[Any]]
"""Runs a sync function off the event loop, as `asyncio.to_thread` does."""


def _a_pattern(text: str) -> str:
    Pattern(text)
    return text


def _as_pairs(given: Any) -> Any:
    return list(given.items()) if isinstance(given, Mapping) else given


def _an_entry(pair: tuple[str, Any]) -> tuple[str, Any]:
    return pair[0], from_plain(pair[1])


PatternText = Annotated[str, AfterValidator(_a_pattern)]
EntryPair = Annotated[tuple[PatternText, Any], AfterValidator(_an_entry)]
EntryPairs = Annotated[list[EntryPair], BeforeValidator(_as_pairs)]


class VerifierSpec(BaseModel):
    """The spec of a verifier. A subclass is a kind: it has the fields, and returns the reward.

    Attributes:
        kind: the name of the kind.
        ignore: patterns of places in the world that do not count.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    ignore: list[PatternText] = []

    def check(self, where: str, *, has_world: bool) -> None:
        """Raise if the verifier cannot be used here.

        Args:
            where: the name of the spec in an error.
            has_world: True if the environment sets a world.

        Raises:
            InvalidVerifier: with the name of the field.
        """

    def missing(self) -> str | None:
        """Return what this machine lacks to run the verifier, as "needs X: how to install it"; None if nothing."""
        return None

    async def reward(self, evidence: Evidence, in_thread: InThread) -> Reward | None:
        """Return the reward for the end of an episode; None if there is none. Cancelling it stops the verifier.

        Raises:
            VerifierFailed: there is no result.
        """
        raise NotImplementedError

    def changes(self, evidence: Evidence) -> Changes:
        """Return the changes that count.

        Raises:
            VerifierFailed: a world is too large, or nested too deeply.
        """
        refuse_huge(evidence.before, evidence.after)
        try:
            if self.ignore or evidence.before is None or evidence.after is None:
                return Changes(evidence.before, evidence.after, self.ignore, named=evidence.named)
            return evidence.changes
        except ValueError as error:
            raise VerifierFailed(str(error)) from error


class _StateSpec(VerifierSpec):
    """A verifier of the changes. ``changes`` is an object, or a list of pairs."""

    def check(self, where: str, *, has_world: bool) -> None:
        """Raise if there is no world."""
        if not has_world:
            raise InvalidVerifier(where, "reads the world, but the environment has none. Set env.world")

    async def reward(self, evidence: Evidence, in_thread: InThread) -> Reward | None:
        """Return the top of the task's reward range if the changes are as expected, else the bottom."""
        if evidence.before is None or evidence.after is None:
            raise VerifierFailed("there is no world to verify. Set env.world in __init__ or reset")
        verdict: Verdict = await in_thread(lambda: self.verdict(self.changes(evidence)))
        evidence.take(verdict)
        return of_verdict(verdict.passed, evidence.task)

    def verdict(self, changes: Changes) -> Verdict:
        """Compare the changes with the expected ones."""
        raise NotImplementedError


class ExpectExactly(_StateSpec):
    """The spec of `Changes.expect_exactly`."""

    kind: Literal["expect_exactly"]
    expected: EntryPairs = Field(alias="changes")

    def verdict(self, changes: Changes) -> Verdict:
        """Compare the changes with the expected ones."""
        return changes.expect_exactly(self.expected)


class ExpectOnly(_StateSpec):
    """The spec of `Changes.expect_only`."""

    kind: Literal["expect_only"]
    allowed: EntryPairs = Field(alias="changes")
    require: EntryPairs = []

    def verdict(self, changes: Changes) -> Verdict:
        """Compare the changes with the allowed and the required ones."""
        return changes.expect_only(self.allowed, self.require)


KERNEL: dict[str, type[VerifierSpec]] = {"expect_exactly": ExpectExactly, "expect_only": ExpectOnly}
"""The kinds of the kernel. No entry point replaces one of them."""


@functools.cache
def installed() -> Mapping[str, EntryPoint]:
    """Return the entries of all installed distributions by kind, which are read once."""
    return entries_of(ENTRY_POINTS)


def parse(spec: Mapping[str, Any], where: str = "verifier") -> VerifierSpec:
    """Return a checked verifier spec.

    Args:
        spec: plain data.
        where: the name of the spec in an error.

    Raises:
        InvalidVerifier: with the name of the field.
    """
    if not isinstance(spec, Mapping):
        raise InvalidVerifier(where, f"is a {type(spec).__name__}; a verifier must be an object with a kind")
    kind, kinds = spec.get("kind"), [*KERNEL, *sorted(installed().keys() - KERNEL)]
    if kind not in kinds:
        raise InvalidVerifier(f"{where}.kind", f"is {kind!r}; it must be one of {', '.join(kinds)}")
    try:
        cls: type[VerifierSpec] = KERNEL.get(kind) or load_entry(installed()[kind], "the verifier")
        return cls.model_validate(dict(spec))
    except ConfigurationError as error:
        raise InvalidVerifier(f"{where}.kind", str(error)) from error
    except ValidationError as error:
        first = faults(error)[0]
        problem = first["msg"]
        raise InvalidVerifier(place_of([where, *first["loc"]]), problem[:1].lower() + problem[1:]) from error


def check(spec: Mapping[str, Any], *, has_world: bool = True, where: str = "verifier") -> None:
    """Raise if a verifier spec cannot be used here, before an episode needs it. Its code is parsed, but not run.

    Args:
        spec: the spec of the task.
        has_world: True if the environment sets a world.
        where: the name of the spec in an error.

    Raises:
        InvalidVerifier: with the name of the field.
    """
    parse(spec, where).check(where, has_world=has_world)


def missing_here(spec: Mapping[str, Any] | None) -> str | None:
    """Return the missing requirement of a task's verifier; None if none is missing, or if `check` refuses the spec."""
    try:
        return None if spec is None else parse(spec).missing()
    except InvalidVerifier:
        return None


async def run(spec: Mapping[str, Any], evidence: Evidence, in_thread: InThread = asyncio.to_thread) -> Reward | None:
    """Return the reward that a verifier spec gives for an episode. Cancelling it stops the verifier.

    A verdict gives the top or the bottom of the task's reward range. A number is the reward itself.

    Args:
        in_thread: runs a sync function off the event loop, as `asyncio.to_thread` does.

    Raises:
        InvalidVerifier: if the spec cannot be used.
        VerifierFailed: if there is no result, because of a limit, a crash or a value that is not a number. There is no
            score.
    """
    parsed = parse(spec)
    parsed.check("verifier", has_world=True)
    return await parsed.reward(evidence, in_thread)


def of_verdict(passed: bool, task: Task | None) -> Reward:
    """Return the top of the task's reward range if it passed, else the bottom. Without a task, return 1 or 0."""
    floor, full = (0.0, 1.0) if task is None else task.reward_range
    return Reward(full if passed else floor)


def refuse_huge(*trees: Any) -> None:
    """Raise if worlds are too large to be verified in reasonable time and memory.

    The walk is in Python, so that other threads can run. It stops as soon as a limit is exceeded.

    Raises:
        VerifierFailed: if a world is too large, or nested too deeply.
    """
    size = 0
    left = [(tree, 0) for tree in trees]
    while left:
        value, depth = left.pop()
        size += _EACH
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise VerifierFailed(f"the world is nested more than {MAX_DEPTH} levels deep")
            if isinstance(value, dict):
                size += sum(map(len, value))
                left += [(each, depth + 1) for each in value.values()]
            else:
                left += [(each, depth + 1) for each in value]
        if size + _EACH * len(left) > MAX_WORLD:
            raise VerifierFailed(f"the world is too large to be verified: more than {MAX_WORLD >> 20} MiB")
