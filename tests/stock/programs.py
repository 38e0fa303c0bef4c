"""Running clients as programs, and what each of them must see of the echo environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SIMULATION_TOOLS = ("echo_message", "echo_with_length", "say_goodbye")
PRODUCTION_TOOLS = ("echo_message", "echo_with_length", "statistics")

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
"""The newest version of each protocol era."""

ERAS = (("legacy", HANDSHAKE), (STATELESS, STATELESS), ("auto", STATELESS))
"""The ``mcp`` client's word for how to negotiate, and what comes of it."""

TIMEOUT_S = 100

Ended = subprocess.CompletedProcess[str]


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Ended:
    """Run a program to its end, whatever its exit status; at most ``TIMEOUT_S``."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=False,
    )


def script(name: str) -> str:
    """A console script of the Python environment that runs these tests."""
    return str(Path(sys.executable).with_name(name))


def printed(ended: Ended) -> Any:
    """The JSON document that a program printed before it ended well."""
    assert ended.returncode == 0, f"{ended.args} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return json.loads(ended.stdout)


def mcp_client(mode: str, *target: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Any:
    """Return what the ``mcp`` package's own client saw of a URL, or of ``--`` and a command."""
    return printed(run(sys.executable, str(HERE / "mcp_client.py"), mode, *target, cwd=cwd, env=env))


def seen(protocol: str, tools: Sequence[str] = SIMULATION_TOOLS) -> dict[str, Any]:
    """Check what `mcp_client` must see, whatever it goes through."""
    return {
        "protocol": protocol,
        "tools": list(tools),
        "echoed": [{"type": "text", "text": "grüße"}],
        "measured": {"message": "hello", "length": 5},
        "refused": True,
        "unknown": -32602,
    }


def node_environment(node_modules: Path, home: Path) -> dict[str, str]:
    """Variables for programs from npm: their own node first, nothing fetched, the user's home left alone."""
    return {
        "PATH": os.pathsep.join([str(node_modules / ".bin"), os.environ["PATH"]]),
        "HOME": str(home),
        "npm_config_offline": "true",
        "npm_config_update_notifier": "false",
    }
