"""Make a task of calls that somebody has played: its verifier is proposed from what they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.rewards.verifiers import ANY, REMOVED, Changes
from mcpenv_client.scores import reaches
from mcpenv_client.types.tasks import Task

from .play import Play, oracle, play
from .validate import validate


@dataclass(slots=True)
class Proposal:
    """A proposed task.

    Attributes:
        task: the task, with a verifier if one can be proposed and none is needed of the environment's own.
        notes: the reasons for the verifier or for none, one sentence each.
        problems: what `validate` finds, one sentence each, with its remedy.
        repeats: True if the calls gave the same results twice.
    """

    task: Task
    notes: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    repeats: bool = False


def propose(make: Callable[[], MCPEnvironment], task: Task, *, judged: bool = True) -> Proposal:
    """Play the oracle of a task twice, propose a verifier if it has none, and validate the task.

    Args:
        make: returns an instance of the environment. It blocks, as its code does.
        task: the task, whose oracle are the calls.
        judged: False for calls of which only is asked whether they give the same results twice.
    """
    one, other = _played(make, task), _played(make, task)
    found = Proposal(task, repeats=one.error is None and one.digest == other.digest)
    if one.error is not None:
        found.problems.append((f"the calls cannot be played: {one.error}", "Correct the environment, or the calls"))
        return found
    if not judged:
        return found
    named = one.world is not None and _names_worlds(make)
    _propose_verifier(found, one, other, named)
    (report,) = validate(make, [found.task]).tasks
    found.problems += zip(report.problems, report.remedies, strict=True)
    return found


def _played(make: Callable[[], MCPEnvironment], task: Task) -> Play:
    env = make()
    try:
        return play(env, task, oracle(task))
    finally:
        env.close()


def _names_worlds(make: Callable[[], MCPEnvironment]) -> bool:
    env = make()
    try:
        return isinstance(env.world, Mapping)
    finally:
        env.close()


def _propose_verifier(found: Proposal, one: Play, other: Play, named: bool) -> None:
    task = found.task
    if task.verifier is not None:
        return
    if one.score is not None and reaches(one.score, task.reward_range[1]):
        found.notes.append("The environment's own verification pays these calls in full: no verifier is needed.")
        return
    if one.world is None or one.left is None:
        found.notes.append(
            "No verifier can be proposed: the environment sets no world, of which changes could be seen."
        )
        return
    changes = Changes(one.world, one.left, named=named)
    again = {change.path: change for change in Changes(other.world, other.left, named=named)}
    if not changes:
        found.notes.append("No verifier can be proposed: the calls change nothing in the world.")
        return
    odd = next((change for change in changes if any("*" in part for part in change.path)), None)
    if odd is not None:
        found.notes.append(f"No verifier can be proposed: a pattern cannot name {odd.where} alone, because of its *.")
        return
    expected: dict[str, Any] = {}
    for change in changes:
        twin = again.get(change.path, change)
        expected[change.where] = REMOVED.plain if change.kind == "removed" else _common(change.after, twin.after)
    verifier = {"kind": "expect_exactly", "changes": expected}
    found.task = Task.model_validate({**task.model_dump(mode="json", exclude_unset=True), "verifier": verifier})
    found.notes.append(f"The verifier expects exactly the changes of these calls, {len(expected)} in number.")


def _common(one: Any, other: Any) -> Any:
    """Return what two plays have in common; where they differ any value is expected."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: _common(own, other[key]) for key, own in one.items()}
    return one if one == other else ANY.plain
