"""Run a verifier spec on the evidence of an episode."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcpenv.errors import InvalidVerifier, VerifierFailed
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import Reward
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.values import encode

from .diff import Changes
from .evidence import Evidence
from .limits import refuse_huge
from .sandbox.process import Sandbox
from .specs import ExpectOnly, PythonVerifier, Spec, parse

_AT_ONCE = threading.BoundedSemaphore(max(8, 2 * (os.cpu_count() or 1)))
"""Limits concurrent sandboxes, as many episodes may end together. More than processors, because some may be slow."""


def check(spec: Mapping[str, Any], *, has_world: bool = True, where: str = "verifier") -> None:
    """Raise if a verifier spec cannot be used here, before an episode needs it. Its code is parsed, but not run.

    Args:
        spec: the spec of the task.
        has_world: True if the environment sets a world.
        where: the name of the spec in an error.

    Raises:
        InvalidVerifier: with the name of the field.
    """
    parsed = parse(spec, where)
    if not isinstance(parsed, PythonVerifier):
        if not has_world:
            raise InvalidVerifier(where, "reads the world, but the environment has none. Set env.world")
        return
    if (missing := missing_here(spec)) is not None:
        raise InvalidVerifier(f"{where}.sandbox", missing)
    if parsed.sandbox == "monty" and parsed.limits.files_mb:
        raise InvalidVerifier(f"{where}.limits.files_mb", 'monty has no files. Set "sandbox": "process"')
    if parsed.sandbox == "process" and sys.platform != "linux":
        raise InvalidVerifier(f"{where}.sandbox", f'"process" needs Linux, and this is {sys.platform}. Set "monty"')


def missing_here(spec: Mapping[str, Any] | None) -> str | None:
    """Return the missing requirement of a task's verifier; None if none is missing, or if `check` refuses the spec."""
    try:
        parsed = None if spec is None else parse(spec, "verifier")
    except InvalidVerifier:
        return None
    in_monty = isinstance(parsed, PythonVerifier) and parsed.sandbox == "monty"
    if in_monty and importlib.util.find_spec("pydantic_monty") is None:
        return "needs pydantic-monty: pip install 'mcpenv[sandbox]'"
    return None


async def run(
    spec: Mapping[str, Any], evidence: Evidence, in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
) -> Reward | None:
    """Return the reward that a verifier spec gives for an episode. Cancelling it kills the sandbox process.

    A verdict gives the top or the bottom of the task's reward range. A number is the reward itself.

    Args:
        in_thread: runs a sync function off the event loop, as `asyncio.to_thread` does.

    Raises:
        InvalidVerifier: if the spec cannot be used.
        VerifierFailed: if there is no result, because of a limit, a crash or a value that is not a number. There is no
            score.
    """
    check(spec)
    parsed = parse(spec)
    reward: Reward | None
    if not isinstance(parsed, PythonVerifier):
        reward = await in_thread(_of_state, parsed, evidence)
    elif parsed.sandbox == "monty":
        reward = await in_thread(_in_monty, parsed, evidence)
    else:
        sandbox = Sandbox(parsed.limits)
        try:
            reward = await in_thread(_in_process, parsed, evidence, sandbox)
        except asyncio.CancelledError:
            sandbox.stop()
            raise
    return reward


def of_verdict(passed: bool, task: Task | None) -> Reward:
    """Return the top of the task's reward range if it passed, else the bottom. Without a task, return 1 or 0."""
    floor, full = (0.0, 1.0) if task is None else task.reward_range
    return Reward(full if passed else floor)


def _of_state(spec: Spec, evidence: Evidence) -> Reward:
    assert not isinstance(spec, PythonVerifier)
    changes = _changes(spec, evidence)
    if isinstance(spec, ExpectOnly):
        verdict = changes.expect_only(spec.changes, spec.require)
    else:
        verdict = changes.expect_exactly(spec.changes)
    evidence.said.extend(verdict.problems)
    return of_verdict(verdict.passed, evidence.task)


def _in_monty(spec: PythonVerifier, evidence: Evidence) -> Reward | None:
    from .sandbox import monty

    about = _about(spec, evidence)
    with _AT_ONCE:
        value = monty.run(spec.code, about, spec.limits)
    return _reward(value, evidence.task)


def _in_process(spec: PythonVerifier, evidence: Evidence, sandbox: Sandbox) -> Reward | None:
    payload = _encoded({"code": spec.code, "about": _about(spec, evidence)})
    with _AT_ONCE:
        value = sandbox.run(payload)
    return _reward(value, evidence.task)


def _about(spec: PythonVerifier, evidence: Evidence) -> dict[str, Any]:
    """Return the arguments of the code as plain data, without the task's solution and the code itself."""
    task, changes = evidence.task, _changes(spec, evidence, needed=False)
    return {
        "task": None if task is None else task.model_dump(mode="json", exclude={"oracle", "verifier"}),
        "before": evidence.before,
        "after": evidence.after,
        "changes": [change.to_plain() for change in changes],
    }


def _changes(spec: Spec, evidence: Evidence, *, needed: bool = True) -> Changes:
    if needed and (evidence.before is None or evidence.after is None):
        raise VerifierFailed("there is no world to verify. Set env.world in __init__ or reset")
    refuse_huge(evidence.before, evidence.after)
    try:
        return Changes(evidence.before, evidence.after, spec.ignore, named=evidence.named)
    except ValueError as error:
        raise VerifierFailed(str(error)) from error


def _encoded(about: dict[str, Any]) -> bytes:
    try:
        return encode(about, "evidence")
    except NotSerializable as error:
        raise VerifierFailed(f"the world cannot be passed to a verifier: {error}") from error


def _reward(value: Any, task: Task | None) -> Reward | None:
    """Convert the result of a Python verifier to a reward.

    Raises:
        VerifierFailed: if the result has another type.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return of_verdict(value, task)
    components: Any = {}
    if isinstance(value, dict) and "value" in value and value.keys() <= {"value", "components"}:
        value, components = value["value"], value.get("components", {})
    if isinstance(components, dict) and all(map(_is_number, (value, *components.values()))):
        try:
            reward = Reward(value, {str(name): part for name, part in components.items()})
        except ValueError as error:
            raise VerifierFailed(f"the verifier did not return a finite number: {error}") from error
        highest = 1.0 if task is None else max(task.reward_range)
        if reward.value > highest:
            raise VerifierFailed(
                f"the verifier returned {reward.value:g}, above the task's reward range, which ends at {highest:g}"
            )
        return reward
    what = "an object with fields other than value and components" if isinstance(value, dict) else type(value).__name__
    raise VerifierFailed(
        f"the verifier must return a number, bool, None or object with value and components, not {what}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
