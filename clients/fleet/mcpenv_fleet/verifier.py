"""Verifiers: find the function in a verifier's source, pack the source for the platform, and read its answer.

The source is parsed, never run. The function is the named one, or else the one with the decorator ``@verifier``.
Otherwise it is the only function with the first parameter ``env`` that no other function of the module calls.
"""

from __future__ import annotations

import ast
import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import VerificationFailed
from .task import FleetTask

ANSWER = "final_answer"
"""The parameter in which verifiers receive the agent's answer."""

TIMEOUT_S = 50
"""Seconds that the platform allows a verifier: less than its request may take."""

_PACKED_AT = (1980, 1, 1, 0, 0, 0)
"""The time of packed files. The platform stores bundles by hash, so equal sources must give equal bytes."""


@dataclass(frozen=True)
class Verifier:
    """The verifier of one task.

    Attributes:
        task_key: the task.
        code: the source, with its helpers.
        function: the name of the function to run.
        takes_answer: True if the function has the parameter ``final_answer``, or takes any.
        runtime_version: the version of the platform's runtime; None: its default.
    """

    task_key: str
    code: str
    function: str
    takes_answer: bool
    runtime_version: str | None = None

    @classmethod
    def of(cls, task: FleetTask, code: str | None = None) -> Verifier:
        """Return the verifier of a task.

        Args:
            task: the task.
            code: the source, if the platform keeps it; None: the task's own.

        Raises:
            VerificationFailed: there is no source, it is not Python, or the function cannot be determined.
        """
        source = task.verifier_code if code is None else code
        if source is None:
            raise VerificationFailed(task.key, "it has no verifier_code (or verifier_func) and no verifier_id")
        try:
            module = ast.parse(source)
        except SyntaxError as error:
            raise VerificationFailed(
                task.key, f"the verifier's code has a syntax error in line {error.lineno}: {error.msg}"
            ) from error
        except ValueError as error:  # null bytes
            raise VerificationFailed(task.key, f"the verifier's code is not Python: {error}") from error
        function = _function_in(module, task)
        names = {arg.arg for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        takes_answer = ANSWER in names or function.args.kwarg is not None
        return cls(task.key, source, function.name, takes_answer, task.verifier_runtime_version)

    def bundle(self) -> bytes:
        """Return the archive that the platform runs: the source and its requirements."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in (("requirements.txt", "fleet-python"), ("verifier.py", self.code)):
                archive.writestr(zipfile.ZipInfo(name, _PACKED_AT), text, zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    def run(self, env: Any, final_answer: str | None = None) -> float:
        """Let the platform run the verifier on an instance, and return its score. Blocks.

        Args:
            env: the SDK's ``SyncEnv``.
            final_answer: the agent's answer, for verifiers that take one.

        Raises:
            VerificationFailed: the platform did not run it, it raised, or it gave no number.
            Exception: from the SDK's requests.
        """
        bundle = self.bundle()
        sha256 = hashlib.sha256(bundle).hexdigest()
        known = env.check_bundle_exists(sha256)
        place = {"env": env.instance_id}
        answer = env.execute_verifier_remote(
            bundle_data=b"" if known.success else bundle,
            bundle_sha=sha256,
            key=self.task_key,
            function_name=self.function,
            args=(place,),
            args_array=[place],
            kwargs={ANSWER: final_answer} if self.takes_answer and final_answer is not None else {},
            timeout=TIMEOUT_S,
            needs_upload=not known.success,
            verifier_runtime_version=self.runtime_version,
        )
        if not answer.success:
            raise VerificationFailed(self.task_key, f"the verifier failed: {_reason(answer.error)}")
        return self.score_of(answer.result)

    def score_of(self, result: Any) -> float:
        """Return the number in the result of a verifier: itself, or its ``score``.

        Raises:
            VerificationFailed: there is no finite number.
        """
        score = result.get("score") if isinstance(result, Mapping) else result
        if score is None:
            raise VerificationFailed(self.task_key, "the verifier ended without a result")
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise VerificationFailed(self.task_key, f"the verifier's result is not a number: {score!r:.200}")
        return float(score)


def _function_in(module: ast.Module, task: FleetTask) -> ast.FunctionDef | ast.AsyncFunctionDef:
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if task.verifier_function is not None:
        if task.verifier_function not in functions:
            raise VerificationFailed(
                task.key, f"the verifier's code has no function {task.verifier_function!r}; it has: {_list(functions)}"
            )
        return functions[task.verifier_function]
    decorated = [node for node in functions.values() if any(map(_is_verifier, node.decorator_list))]
    if len(decorated) == 1:
        return decorated[0]
    if len(functions) == 1:
        return next(iter(functions.values()))
    called = {
        call.func.id for call in ast.walk(module) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    entries = [
        node
        for node in functions.values()
        if node.name not in called
        and (parameters := [*node.args.posonlyargs, *node.args.args])
        and parameters[0].arg == "env"
    ]
    if len(entries) != 1:
        raise VerificationFailed(
            task.key,
            f"it is not clear which function of the verifier's code to run ({_list(functions)}); "
            "name it by verifier_function",
        )
    return entries[0]


def _is_verifier(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name == "verifier"


def _list(functions: Mapping[str, Any]) -> str:
    return ", ".join(functions) or "none"


def _reason(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error or "the platform gives no reason")
    kind, message = error.get("type"), error.get("message")
    return ": ".join(str(part) for part in (kind, message) if part) or "the platform gives no reason"


__all__ = ["ANSWER", "Verifier"]
