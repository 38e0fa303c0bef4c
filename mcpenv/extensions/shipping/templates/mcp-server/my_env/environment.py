"""Make an MCP server an environment: mcp.json starts it, and the class below verifies the agents' work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mcpenv import Evidence, TaskSet
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.worlds import FilesWorld

HERE = Path(__file__).parent


def servers() -> dict[str, Any]:
    """Return mcp.json for any working directory: with this Python, and absolute paths of files in this folder."""
    config: dict[str, Any] = json.loads((HERE / "mcp.json").read_text(encoding="utf-8"))
    for server in config["mcpServers"].values():
        if server["command"] == "python":
            server["command"] = sys.executable
        server["args"] = [str(HERE / word) if (HERE / word).is_file() else word for word in server["args"]]
    return config


class Shopping(ProxyEnvironment):
    """Keep a shopping list on an MCP server.

    Description:
        The agent writes a shopping list with the tools of the server in server.py. The prompt names the items that
        belong on it.

    Tools:
        list_items(), add_item(name, quantity?), remove_item(name): the server's own.

    Observation:
        Of a reset: ``metadata.prompt``, the task; ``metadata.servers``, the server's version. Of a step: the tool's.

    Reward:
        At the end: 1.0 if the list is exactly what the task wants, else 0.0. Steps are not scored.

    Start:
        An empty list: each episode has a folder of its own. The seed has no effect.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after 20 steps, or if the server is lost.

    Version:
        0.1.0
    """

    VERSION = "0.1.0"
    tasks = TaskSet.from_jsonl("tasks.jsonl")

    def __init__(self) -> None:
        super().__init__()
        assert self.workspace is not None  # mcp.json names {workspace}
        # `verify` sees the files of the episode's folder.
        self.world = FilesWorld(self.workspace.path)

    def verify(self, evidence: Evidence) -> float | None:
        """Return 1.0 if the list is exactly what the task wants; None without a task."""
        if self.task is None:
            return None
        written = (evidence.after or {}).get("items.json")
        items = {} if written is None else json.loads(written["text"])
        return float(items == self.task.metadata["wanted"])


# Starts the server once, to learn its tools.
MyEnv = Shopping.from_config(servers())
