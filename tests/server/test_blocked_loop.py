"""User code that blocks a server's event loop, and objects that were used in another thread than their own."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import pytest
from fastmcp import FastMCP

from mcpenv import MCPEnvironment
from mcpenv.execution import blocked_loop
from mcpenv.failures import AFFINITY, execution_failure, own_words
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.types.tools import Mode


class Blocking(MCPEnvironment):
    """One tool blocks the loop, before or after it has suspended; the other waits as it should."""

    def __init__(self) -> None:
        @self.tool(timeout_s=0.1)
        async def crunch(first: bool) -> str:
            """Compute."""
            if not first:
                await asyncio.sleep(0)
            time.sleep(0.6)  # noqa: ASYNC251 - the fault
            return "done"

        @self.tool
        async def wait() -> str:
            """Wait."""
            await asyncio.sleep(0.6)
            return "waited"


mounted = FastMCP("mounted")


@mounted.tool
async def crunch() -> str:
    """Compute."""
    time.sleep(0.6)  # noqa: ASYNC251 - the fault
    return "done"


class Mounted(MCPEnvironment):
    """The tool of a mounted server blocks the loop."""

    def __init__(self) -> None:
        super().__init__(mounted)


class Resetting(MCPEnvironment):
    """Its reset blocks the loop."""

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        time.sleep(0.6)  # noqa: ASYNC251 - the fault


class Table(MCPEnvironment):
    """A table in memory, which belongs to the thread that made it."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

        @self.tool
        async def count() -> int:
            """Count."""
            return int(self.connection.execute("SELECT 1").fetchone()[0])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_loop, "BLOCKED_S", 0.1)
    monkeypatch.setattr(blocked_loop, "PAUSE_S", 0.01)


def blocks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]


@pytest.mark.parametrize("first", [True, False])
def test_a_tool_that_blocks_the_loop_is_logged_by_its_name_once(first: bool, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Blocking) as url, EnvClient(url).sync() as env:
        env.reset()
        env.call_tool("wait", {})
        assert blocks(caplog) == []
        for _ in range(2):
            env.call_tool("crunch", {"first": first})
    (message,) = blocks(caplog)
    assert message.startswith("tool 'crunch' blocks the event loop") and "test_blocked_loop.py:" in message
    assert "no timeout_s can stop it" in message and "def instead of async def" in message


def test_a_blocking_tool_of_a_mounted_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Mounted) as url, EnvClient(url).sync() as env:
        env.reset()
        env.call_tool("crunch", {})
    (message,) = blocks(caplog)
    assert message.startswith("tool 'crunch' blocks the event loop")


def test_a_blocking_reset_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Resetting) as url, EnvClient(url).sync() as env:
        env.reset()
    (message,) = blocks(caplog)
    assert message.startswith("the environment's reset blocks the event loop")


def test_a_sqlite_connection_of_another_thread_names_both_remedies(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Table) as url, EnvClient(url).sync() as env:
        env.reset()
        failure = env.call_tool("count", {}).error
    assert failure is not None
    for remedy in ("THREAD_AFFINE = True", "check_same_thread=False"):
        assert remedy in failure.message and remedy in caplog.text


def test_only_the_types_of_errors_that_another_thread_raises_name_the_remedy() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE words (word TEXT UNIQUE)")
    connection.execute("INSERT INTO words VALUES ('a')")
    named: dict[str, bool] = {}
    for statement in ("SELECT ?", "SELEC", "INSERT INTO words VALUES ('a')"):
        with pytest.raises(sqlite3.Error) as raised:
            connection.execute(statement)
        named[type(raised.value).__name__] = "If it was made in another thread" in own_words(advised(raised.value))
    assert named == {"ProgrammingError": True, "OperationalError": False, "IntegrityError": False}
    same_text = RuntimeError("SQLite objects created in a thread can only be used in that same thread.")
    assert "THREAD_AFFINE" not in own_words(advised(same_text))
    greenlet_error = type("error", (Exception,), {"__module__": "greenlet"})
    assert own_words(advised(greenlet_error("cannot switch"))) == f"error: cannot switch. {AFFINITY}"


def advised(error: Exception) -> Exception:
    """Return an error after it was converted to the failure of a tool."""
    execution_failure("query", error, Mode.SIMULATION)
    return error
