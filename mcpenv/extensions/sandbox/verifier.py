"""The verifier of kind ``python``: code of a task file, which runs in a sandbox."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.util
import os
import sys
import threading
from typing import Any, Literal

from pydantic import Field, field_validator

from mcpenv.errors import InvalidVerifier, VerifierFailed
from mcpenv.rewards.verifiers import Evidence, InThread, VerifierSpec, of_verdict
from mcpenv_client.errors import NotSerializable
from mcpenv_client.scores import reaches
from mcpenv_client.types.records import Reward
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.values import encode

from .process import Limits, Sandbox

MAX_CODE = 256 * 1024
"""Maximum characters of a Python verifier."""

_AT_ONCE = threading.BoundedSemaphore(max(8, 2 * (os.cpu_count() or 1)))
"""Limits concurrent sandboxes, as many episodes may end together. More than processors, because some may be slow."""

_READING = threading.RLock()
"""Serializes `ast.parse`. CPython 3.11 counts the depth of a syntax tree in a counter that all threads share, so that
concurrent parses may fail with SystemError (python/cpython#106905)."""


class PythonVerifier(VerifierSpec):
    """The spec of Python code, run in a sandbox. It defines ``verify(task, before, after, changes)``."""

    kind: Literal["python"]
    code: str = Field(min_length=1, max_length=MAX_CODE)
    sandbox: Literal["monty", "process"] = "monty"
    limits: Limits = Limits()

    @field_validator("code", mode="after")
    @classmethod
    def _readable(cls, code: str) -> str:
        """Parse the code, without running it, so that a mistake is reported when the task is read."""
        fault = _fault_in(code)
        if fault is not None:
            raise ValueError(fault)
        return code

    def check(self, where: str, *, has_world: bool) -> None:
        """Raise if the sandbox cannot run here."""
        if (missing := self.missing()) is not None:
            raise InvalidVerifier(f"{where}.sandbox", missing)
        if self.sandbox == "monty" and self.limits.files_mb:
            raise InvalidVerifier(f"{where}.limits.files_mb", 'monty has no files. Set "sandbox": "process"')
        if self.sandbox == "process" and sys.platform != "linux":
            raise InvalidVerifier(f"{where}.sandbox", f'"process" needs Linux, and this is {sys.platform}. Set "monty"')

    def missing(self) -> str | None:
        """Return the package that the sandbox needs, if it is not installed."""
        if self.sandbox == "monty" and importlib.util.find_spec("pydantic_monty") is None:
            return "needs pydantic-monty: pip install 'mcpenv[sandbox]'"
        return None

    async def reward(self, evidence: Evidence, in_thread: InThread) -> Reward | None:
        """Return the result of the code as a reward. Cancelling it kills the sandbox's process."""
        if self.sandbox == "monty":
            value = await in_thread(self._in_monty, evidence)
        else:
            process = Sandbox(self.limits)
            try:
                value = await in_thread(self._in_process, evidence, process)
            except asyncio.CancelledError:
                process.stop()
                raise
        return _reward(value, evidence.task)

    def _in_monty(self, evidence: Evidence) -> Any:
        from . import monty

        about = self._about(evidence)
        with _AT_ONCE:
            return monty.run(self.code, about, self.limits)

    def _in_process(self, evidence: Evidence, process: Sandbox) -> Any:
        try:
            payload = encode({"code": self.code, "about": self._about(evidence)}, "evidence")
        except NotSerializable as error:
            raise VerifierFailed(f"the world cannot be passed to a verifier: {error}") from error
        with _AT_ONCE:
            return process.run(payload)

    def _about(self, evidence: Evidence) -> dict[str, Any]:
        """Return the arguments of the code as plain data, without the task's solution and the code itself."""
        task = evidence.task
        return {
            "task": None if task is None else task.model_dump(mode="json", exclude={"oracle", "verifier"}),
            "before": evidence.before,
            "after": evidence.after,
            "changes": [change.to_plain() for change in self.changes(evidence)],
        }


@functools.lru_cache(maxsize=64)
def _fault_in(code: str) -> str | None:
    """Return the fault in the code of a verifier, or None. Cached, because each episode parses the same code."""
    try:
        with _READING:
            body = ast.parse(code).body
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return "it cannot be read as Python"
    if not any(_defines(each, "verify") for each in body):
        return "it defines no function verify(task, before, after, changes)"
    return None


def _defines(statement: ast.stmt, name: str) -> bool:
    """Return True if the statement binds ``name``, or may bind it."""
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        for node in ast.walk(statement)
    )


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
        if not reaches(highest, reward.value):
            raise VerifierFailed(
                f"the verifier returned {reward.value:g}, above the task's reward range, which ends at {highest:g}"
            )
        return Reward(min(reward.value, highest), reward.components)
    what = "an object with fields other than value and components" if isinstance(value, dict) else type(value).__name__
    raise VerifierFailed(
        f"the verifier must return a number, bool, None or object with value and components, not {what}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
