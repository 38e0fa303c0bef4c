"""Stock MCP clients, as separate programs against a real ``mcpenv run envs/echo_mcp``.

All tests here are marked ``world``: ``pytest -m world``. Where a client is missing its test fails; nothing is skipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from serving import ECHO_MCP, served  # noqa: E402


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.world)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The base URL of a server in simulation mode."""
    with served(ECHO_MCP) as url:
        yield url


@pytest.fixture(scope="session")
def production_server() -> Iterator[str]:
    """The base URL of a server in production mode."""
    with served(ECHO_MCP, "--mode", "production") as url:
        yield url


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder of the npm packages, with a node of version 22 or later among them."""
    named = os.environ.get("MCPENV_NODE_MODULES")
    assert named, "MCPENV_NODE_MODULES names no folder; .ci/run installs the npm packages and sets it"
    return Path(named).resolve()
