"""The platform's side of a verification: run one function of a bundle, with the names that the platform provides."""

from __future__ import annotations

import base64
import io
import json
import sys
import traceback
import zipfile
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import cloudpickle


def main() -> None:
    """Read a request from stdin, and write the answer to stdout."""
    asked = json.load(sys.stdin)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(asked["bundle"]))) as archive:
        code = archive.read("verifier.py").decode()
    called = cloudpickle.loads(base64.b64decode(asked["args"]))
    names: dict[str, Any] = {
        "TASK_SUCCESSFUL_SCORE": 1.0,
        "TASK_FAILED_SCORE": 0.0,
        "verifier": lambda **_: lambda function: function,
    }
    try:
        with redirect_stdout(sys.stderr):
            exec(code, names)  # as the platform does, in this process
            result = names[asked["function_name"]](SimpleNamespace(tickets=asked["tickets"]), **called["kwargs"])
        answer = {"success": True, "result": result}
    except Exception as error:  # noqa: BLE001 - the verifier's own
        failure = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
        answer = {"success": False, "error": failure}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
