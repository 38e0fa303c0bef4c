"""The Inspector's command line: it runs once for each listing and each call."""

import json
import subprocess
from typing import Any

from contract import Job, Seen, job

TOOL_FAILED = 5
"""Its exit status when a tool's result says ``isError``."""


def inspect(told: Job, *arguments: str) -> Any:
    server = [] if told.command is None else ["--", *told.command]
    command = [*told.client, *arguments, "--format", "json", *server]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode in (0, TOOL_FAILED), ended
    result = json.loads(ended.stdout)["result"]
    assert ended.returncode == (TOOL_FAILED if result.get("isError") else 0), ended
    return result


def main(told: Job) -> Seen:
    listed = inspect(told, "--method", "tools/list", "--strict")
    seen = Seen([tool["name"] for tool in listed["tools"]])
    for name, arguments in told.calls:
        call = ["--method", "tools/call", "--tool-name", name, "--tool-args-json", json.dumps(arguments)]
        result = inspect(told, *call)
        seen.add("".join(block["text"] for block in result["content"]), failed=result.get("isError", False))
    return seen


main(job()).show()
