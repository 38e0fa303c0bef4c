"""Tools of the tests of proxied servers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcpenv import CallToolAction
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment

PLAIN = Path(__file__).parent / "mcp_servers" / "plain.py"


def plain(*arguments: str, **more: Any) -> dict[str, Any]:
    """Return the settings of the server that starts at once. It works in the workspace, unless arguments are given."""
    return {"command": sys.executable, "args": [str(PLAIN), *(arguments or ["{workspace}"])], **more}


def environment(template: Path | None = None, own: dict[str, Any] | None = None, **servers: dict[str, Any]) -> Any:
    """Return the class of an environment of servers."""
    settings = {**({} if template is None else {"workspace": str(template)}), **(own or {})}
    return ProxyEnvironment.from_config({"mcpServers": servers, "mcpenv": settings})


def call(env: Any, tool: str, **arguments: Any) -> Any:
    return env.step(CallToolAction(tool_name=tool, arguments=arguments))


def about(env: Any) -> dict[str, Any]:
    """Return what the server tells of its process."""
    told: dict[str, Any] = json.loads(call(env, "about").text)
    return told


def has_ended(process: int, within_s: float = 20.0) -> bool:
    """Return True once a process has ended; False if it runs after ``within_s`` seconds.

    A zombie counts once its last thread has ended: the files of the process are open until then.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            threads = len(os.listdir(f"/proc/{process}/task"))
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in ("Z", "X") and threads <= 1:
            return True
        if time.monotonic() >= until:
            return False
        os.sched_yield()


def descendants(process: int) -> set[int]:
    """Return the processes below a process."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == process:
            found |= {int(entry.name)} | descendants(int(entry.name))
    return found
