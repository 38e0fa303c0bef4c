"""Run a Python verifier in a child process: isolate the process, read the input, run the code and answer.

`process` starts this file as a script of a bare interpreter, so it uses the standard library only. Answers are lines of
JSON: one when the isolation is set up, one with the result. Output of the code is discarded.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import sysconfig
from typing import Any

import isolation  # type: ignore[import-not-found]  # a script finds modules in its own folder

_MAX_TEXT = 500
_OUT_OF_MEMORY = b'{"failed": "exceeded its memory limit"}\n'


def main(arguments: dict[str, Any]) -> None:
    """Run one verifier."""
    del sys.path[0]
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        standing = isolation.put_up(arguments["folder"], _readable(), **arguments["limits"])
    except isolation.NoIsolation as error:
        _answer(answers, {"refused": str(error)})
        return
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    _answer(answers, {"ready": standing})
    try:
        answer = _verified()
    except MemoryError:
        os.write(answers, _OUT_OF_MEMORY)
        return
    _answer(answers, answer)


def _readable() -> list[str]:
    """Return the standard library without site-packages, and the shared libraries that its modules load."""
    paths = sysconfig.get_paths()
    files: list[str] = []
    for folder in {paths["stdlib"], paths["platstdlib"]}:
        files += [entry.path for entry in os.scandir(folder) if entry.name not in ("site-packages", "dist-packages")]
    shared = glob.glob(os.path.join(glob.escape(sys.base_prefix), "lib", "*.so*"))
    return [*files, *shared, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]


def _verified() -> dict[str, Any]:
    given = json.loads(sys.stdin.buffer.read())
    code, about = given["code"], given["about"]
    namespace: dict[str, Any] = {"__name__": "verifier"}
    try:
        exec(compile(code, "verifier", "exec"), namespace)
        verify = namespace.get("verify")
        if not callable(verify):
            return {"failed": "defines no function verify(task, before, after, changes)"}
        value = verify(about["task"], about["before"], about["after"], about["changes"])
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        return {"failed": f"raised {_message_of(error)}"}
    try:
        return {"value": json.loads(json.dumps(value, allow_nan=False))}
    except (TypeError, ValueError, RecursionError):
        return {"failed": f"returned {type(value).__name__[:_MAX_TEXT]}, or a number that is not finite"}


def _message_of(error: BaseException) -> str:
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - its own __str__
        text = f"something that cannot be shown ({type(broken).__name__})"
    return f"{type(error).__name__}: {text}"[:_MAX_TEXT] + line


def _answer(to: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(to, data) :]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
