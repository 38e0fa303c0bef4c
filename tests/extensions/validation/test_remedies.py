"""The remedies of a validation are for who reads them: the author of a class, or the user of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpenv.extensions.contract.contract import CHECKS

SERVER = """\
import json, random, sys
for line in sys.stdin:  # without a library: a validation starts it dozens of times
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        info = {"name": "odd", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif asked.get("method") == "tools/list":
        answer = {"result": {"tools": [{"name": "roll", "inputSchema": {"type": "object", "properties": {}}}]}}
    elif asked.get("method") == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": str(random.randrange(10**9))}]}}
    else:
        answer = {"error": {"code": -32601, "message": "no such method"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
CLASS = """\
import random

from mcpenv import MCPEnvironment


class Odd(MCPEnvironment):
    \"\"\"Odd.\"\"\"

    def __init__(self) -> None:
        self.tool(self.roll)

    def roll(self) -> int:
        return random.randrange(10**9)
"""


def remedies(target: Path) -> dict[str, str]:
    """The remedies by check, of the contract and the schemas."""
    command = ["mcpenv", "validate", str(target), "--only", "contract", "--only", "schemas", "--json"]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    parts: list[dict[str, Any]] = json.loads(done.stdout)["parts"]
    found = [finding for part in parts for finding in part["findings"] if finding["verdict"] == "failed"]
    assert not any(finding["remedy"] in finding["reason"] for finding in found)
    return {finding["check"]: finding["remedy"] for finding in found}


@pytest.mark.process
def test_the_remedies_for_a_file_of_servers_are_settings_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"odd": {"command": sys.executable, "args": ["server.py"]}}}))
    found = remedies(file)
    assert set(found) == {"descriptions", "determinism"}
    assert '"tools": {"NAME": {"description": "..."}}' in found["descriptions"]
    assert '"state"' in found["determinism"] and "--live" in found["determinism"]


@pytest.mark.process
def test_the_remedies_for_a_class_are_changes_of_its_code(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(CLASS)
    found = remedies(file)
    assert found["descriptions"].startswith("Add a docstring")
    assert found["determinism"].startswith("Draw from a random.Random(seed)") and "--live" in found["determinism"]


def test_a_remedy_is_for_a_check_that_exists() -> None:
    from mcpenv.extensions.harbor.environment import HarborEnvironment
    from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
    from mcpenv.extensions.openapi.environment import _REMEDIES
    from mcpenv.extensions.openenv.adapter import OpenEnvEnvironment

    of_parts = {
        "parameters",
        "listing",
        "isolation",
        "crashes",
        "reach",
        "annotations",
        "scoring tools",
        "hidden names",
    }
    for remedies_of in (
        HarborEnvironment.REMEDIES,
        ProxyEnvironment.REMEDIES,
        _REMEDIES,
        OpenEnvEnvironment.REMEDIES,
    ):
        assert set(remedies_of) <= of_parts | set(CHECKS)
