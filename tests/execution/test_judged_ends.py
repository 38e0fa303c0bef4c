"""An end is judged whatever its agent does, by itself, once; and what could not be judged says so."""

from __future__ import annotations

import asyncio
import errno
import gzip
import math
import os
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from hypothesis import given
from hypothesis import strategies as st

from mcpenv import (
    CallToolAction,
    EpisodeDone,
    Evidence,
    ExecutionError,
    MCPEnvironment,
    Misuse,
    ObjectWorld,
    Observation,
    Task,
    ToolCall,
    ToolOutcome,
    Verdict,
    score_of,
)
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, InvalidMessage, OperationTimeout
from mcpenv_client.types.checked import CheckedChange
from mcpenv_client.types.status import COMPLETED, StatusCode

TIMEOUT_S = 60


class Examined(MCPEnvironment):
    """Its verifier waits for the word to go on, and finds that nothing is right."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    examining: asyncio.Event
    go_on: asyncio.Event

    def __init__(self) -> None:
        self.count = 0
        self.world = ObjectWorld(lambda: {"count": self.count})

        @self.tool(concurrent=True)
        async def add() -> int:
            """Add."""
            self.count += 1
            return self.count

        @self.tool(concurrent=True, terminal=True)
        async def submit() -> str:
            """Say that it is done."""
            return "submitted"

    async def verify(self, evidence: Evidence) -> float:
        self.examining.set()
        await self.go_on.wait()
        return -1.0


class Fails(Examined):
    """Its verifier raises."""

    async def verify(self, evidence: Evidence) -> float:
        raise RuntimeError("out of order")


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Fails) as address:
        yield address


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await event.wait()


def test_an_agent_that_goes_away_does_not_take_its_score_along() -> None:
    async def main() -> None:
        Examined.examining, Examined.go_on = asyncio.Event(), asyncio.Event()
        env = Examined()
        await env.reset_async()
        async with asyncio.timeout(TIMEOUT_S), Client(env.mcp) as agent:
            submitting = asyncio.ensure_future(agent.call_tool("submit"))
            await until(Examined.examining)
            submitting.cancel()
            await asyncio.wait([submitting])
            waiting = asyncio.ensure_future(env._execution.wait())
            Examined.go_on.set()
            assert await waiting
        trajectory = env.trajectory
        assert trajectory is not None and trajectory.verified is not None
        assert (trajectory.verified.value, trajectory.total_reward, score_of(trajectory)) == (-1.0, -1.0, -1.0)

    asyncio.run(main())


def test_nothing_runs_beside_a_verifier_and_nothing_begins_after_the_end() -> None:
    async def main() -> None:
        Examined.examining, Examined.go_on = asyncio.Event(), asyncio.Event()
        env = Examined()
        await env.reset_async()
        submitting = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="submit", arguments={})))
        await until(Examined.examining)
        with pytest.raises(EpisodeDone):
            await env.step_async(CallToolAction(tool_name="add", arguments={}))
        Examined.go_on.set()
        assert (await submitting).reward == -1.0
        assert env.count == 0

    asyncio.run(main())


def test_a_tool_that_is_under_way_at_the_end_is_waited_for_before_the_end_is_judged() -> None:
    class Slow(Examined):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.free = asyncio.Event(), asyncio.Event()

            @self.tool(concurrent=True)
            async def slow() -> str:
                """Add when it may."""
                self.begun.set()
                await self.free.wait()
                self.count += 1
                return "slow"

        async def verify(self, evidence: Evidence) -> float:
            assert evidence.after is not None
            return float(evidence.after["count"])

    async def main() -> None:
        env = Slow()
        await env.reset_async()
        slow = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="slow", arguments={})))
        await until(env.begun)
        submitting = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="submit", arguments={})))
        while not env._execution.scoring.ended:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        env.free.set()
        await slow
        assert (await submitting).reward == 1.0
        assert env.trajectory is not None
        assert [step.call.name for step in env.trajectory.steps] == ["slow", "submit"]

    asyncio.run(main())


def test_a_last_step_that_was_stopped_has_no_score() -> None:
    class Limited(Examined):
        max_steps = 1

        def __init__(self) -> None:
            super().__init__()

            @self.tool
            async def endless() -> str:
                """Never return."""
                self.examining.set()
                await asyncio.Event().wait()
                return "never"

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 0.5

    async def main() -> None:
        Examined.examining = asyncio.Event()
        env = Limited()
        await env.reset_async()
        step = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="endless", arguments={})))
        await until(Examined.examining)
        step.cancel()
        await asyncio.wait([step])
        trajectory = env.trajectory
        assert trajectory is not None and trajectory.done
        assert trajectory.steps[-1].fault == "CANCELLED" and score_of(trajectory) is None

    asyncio.run(main())


def test_an_end_that_could_not_be_judged_says_so_to_whoever_waits(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            address = (await env.reset()).info["mcp_url"]
            async with Client(address) as agent:
                with pytest.raises(ToolError, match="could not be completed"):
                    await agent.call_tool("submit")
            waited = await env.wait(TIMEOUT_S)
            assert (waited.done, waited.reward, waited.info["fault"]) == (True, None, "EXECUTION_ERROR")
            assert "return" not in waited.info
            await env.reset()
            with pytest.raises(ExecutionError):
                await env.end()
            again = await env.end()
            assert (again.reward, again.info["fault"]) == (None, "EXECUTION_ERROR") and "return" not in again.info

    asyncio.run(main())


def test_ctrl_c_in_a_verifier_ends_the_episode_without_a_score() -> None:
    class Interrupted(MCPEnvironment):
        """Its author presses Ctrl-C."""

        def __init__(self) -> None:
            @self.tool(terminal=True)
            def submit() -> str:
                """Say that it is done."""
                return "submitted"

        def verify(self, evidence: Evidence) -> float:
            raise KeyboardInterrupt

    for ends in ("end", "submit"):
        env: Any = Interrupted()
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.end() if ends == "end" else env.call_tool("submit")
        assert env.trajectory.done and score_of(env.trajectory) is None
        assert env.trajectory.fault == "CANCELLED" or env.trajectory.steps[-1].fault == "CANCELLED"


def test_finish_has_no_meaning_in_a_verifier() -> None:
    class Finishes(MCPEnvironment):
        """Would add to its reward."""

        def verify(self, evidence: Evidence) -> float:
            with pytest.raises(Misuse):
                self.finish(reward=5)
            return 0.0

    env = Finishes()
    env.reset()
    assert env.end().info["return"] == 0.0


class Noted(MCPEnvironment):
    """Its agent may write anything into its world."""

    def __init__(self, verify: Callable[[Evidence], Any]) -> None:
        self.notes: Any = {"1": "written"}
        self.world = ObjectWorld(lambda: {"notes": self.notes})
        self._judge = verify

        @self.tool
        def write(notes: Any) -> None:
            """Write."""
            self.notes = notes

        @self.tool
        def divide() -> None:
            """Write what is no JSON."""
            self.notes = float("inf")

    def verify(self, evidence: Evidence) -> Any:
        return self._judge(evidence)


def reads(evidence: Evidence) -> bool:
    assert evidence.after is not None
    found: bool = evidence.after["notes"]["1"] == "right"
    return found


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("write", {"notes": {}}, "verification fails on this world: KeyError: '1'"),
        ("write", {"notes": None}, "verification fails on this world: TypeError: "),
        ("divide", {}, "the world cannot be read: "),
    ],
)
def test_who_breaks_the_verification_by_the_world_gets_the_lowest_reward(
    tool: str, arguments: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = Noted(reads)
    env.reset(task=Task(id="a", reward_range=(-1.0, 1.0)))
    env.call_tool(tool, arguments)
    ended = env.end()
    assert ended.reward == score_of(env.trajectory) == -1.0  # type: ignore[arg-type]
    assert env.trajectory is not None and env.trajectory.status is COMPLETED
    assert ended.info["problems"][0].startswith(said)
    assert "the agent has broken its verification" in caplog.text


def test_who_breaks_the_verification_in_another_way_each_time_gets_the_lowest_reward() -> None:
    errors = iter([KeyError("a"), TypeError("b")])

    def verify(evidence: Evidence) -> bool:
        if evidence.after != evidence.before:
            raise next(errors)
        return True

    env = Noted(verify)
    env.reset()
    env.call_tool("write", {"notes": {}})
    ended = env.end()
    assert ended.reward == 0.0
    assert ended.info["problems"] == ["verification fails on this world: KeyError: 'a'"]


def test_the_reasons_of_a_verdict_are_for_orchestrators_and_not_for_agents() -> None:
    class Sold(MCPEnvironment):
        """Sells one."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            self.stock = {"tea": 5}
            self.world = ObjectWorld(lambda: {"stock": self.stock})

            @self.tool(terminal=True)
            def sell(n: int) -> str:
                """Sell."""
                self.stock["tea"] -= n
                return "sold"

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            self.stock = {"tea": 5}

        def verify(self, evidence: Evidence) -> Verdict:
            found = evidence.changes.expect_exactly({"stock/tea": 4})
            return Verdict(found.passed, [*found.problems, "a lone \ud800 surrogate"] if not found else [])

    async def main(url: str) -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            begun = await env.reset()
            async with Client(begun.info["mcp_url"]) as agent:
                answer = await agent.call_tool("sell", {"n": 2})
                with pytest.raises(ToolError) as over:
                    await agent.call_tool("sell", {"n": 2})
            for told in (str(answer), str(over.value)):
                assert "expected" not in told and "changed" not in told
            ended = await env.wait()
            assert ended.info["problems"] == [
                "stock/tea changed from 5 to 3: expected 4",
                "a lone \ufffd surrogate",
            ]
            trajectory = await env.trajectory()
            assert (trajectory.problems, trajectory.changes) == (
                ended.info["problems"],
                ["stock/tea changed from 5 to 3"],
            )
            assert trajectory.evidence == [CheckedChange("stock/tea", "changed", 5, 3, [4], False)]
            await env.reset()
            done = await env.call_tool("sell", {"n": 1})
            assert done.reward == 1.0 and "problems" not in done.info

    with serving(Sold) as url:
        asyncio.run(main(url))


def test_a_verifier_that_is_broken_itself_gives_no_reward() -> None:
    def always(evidence: Evidence) -> bool:
        raise KeyError("typo")

    flaky: Iterator[KeyError | float] = iter([KeyError("once"), 0.5])

    def at_first(evidence: Evidence) -> float:
        found = next(flaky, 0.5)
        if isinstance(found, Exception):
            raise found
        return float(found)

    def on_the_network(evidence: Evidence) -> bool:
        if evidence.after != evidence.before:
            raise ConnectionError("no judge")
        return True

    for verify in (always, at_first, on_the_network):
        env = Noted(verify)
        env.reset()
        env.call_tool("write", {"notes": {}})
        with pytest.raises(ExecutionError):
            env.end()
        assert score_of(env.trajectory) is None  # type: ignore[arg-type]
        assert env.trajectory is not None and env.trajectory.status is not None
        assert env.trajectory.status.code is StatusCode.JUDGE_ERROR


class Desk(MCPEnvironment):
    """Has no world: its verifier reads an attribute, and a file of a folder of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made: ClassVar[list[Desk]] = []

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.notes: Any = None
        self.closed = False
        self.made.append(self)

        @self.tool
        def write(notes: Any) -> None:
            """Write."""
            self.notes = notes

        @self.tool
        def block() -> None:
            """Put a pipe that nobody writes to where the answer is."""
            (self.folder / "answer").unlink()
            os.mkfifo(self.folder / "answer")

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: str = "written") -> None:
        self.notes = {"1": start}
        (self.folder / "answer").write_text("none")

    def verify(self, evidence: Evidence) -> bool:
        return bool(self.notes["1"] == (self.folder / "answer").read_text())

    def close(self) -> None:
        self.closed = True
        shutil.rmtree(self.folder)


def test_who_breaks_the_verification_of_an_environment_without_a_world_gets_the_lowest_reward() -> None:
    Desk.made.clear()
    env: Any = Desk()
    env.reset(task=Task(id="a", reward_range=(-1.0, 1.0)), start="x")
    env.call_tool("write", {"notes": {}})
    ended = env.end()
    assert ended.reward == score_of(env.trajectory) == -1.0
    assert ended.info["problems"] == ["verification fails on this world: KeyError: '1'"]
    assert env.notes == {}
    other = Desk.made[1]
    assert (len(Desk.made), other.notes, other.closed, env.closed) == (2, {"1": "x"}, True, False)
    env.close()


class Bench(MCPEnvironment):
    """Its verifier reads a file, a table of a database and the output of a program, which agents can remove."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())

        @self.tool
        def remove(what: str) -> None:
            """Remove a part of the state."""
            if what == "folder":
                shutil.rmtree(self.folder)
            elif what == "table":
                self.ask("DROP TABLE stock")
            elif what == "text as gzip":
                (self.folder / "log.gz").write_text("no gzip")
            elif what == "database":
                (self.folder / "shop.db").unlink()
                (self.folder / "shop.db").mkdir()
            else:
                (self.folder / what).unlink()

        @self.tool
        def fault(kind: str) -> None:
            """Let the verifier meet a fault of the machine."""
            (self.folder / "fault").write_text(kind)

    def ask(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.db", isolation_level=None)) as shop:
            return shop.execute(statement).fetchall()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        (self.folder / "report").write_text("none")
        (self.folder / "program.py").write_text("print('fine')")
        (self.folder / "log.gz").write_bytes(gzip.compress(b"fine"))
        self.ask("CREATE TABLE stock AS SELECT 'tea' AS item, 5 AS count")

    def verify(self, evidence: Evidence) -> bool:
        fault = self.folder / "fault"
        if fault.exists():
            raise FAULTS[fault.read_text()]
        program = [sys.executable, "-I", str(self.folder / "program.py")]
        said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
        stock, log = self.ask("SELECT count FROM stock"), gzip.decompress((self.folder / "log.gz").read_bytes())
        return bool(stock and log and said and (self.folder / "report").read_text() == "right")

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def of_sqlite(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("any text")
    error.sqlite_errorcode = code
    return error


FAULTS: dict[str, Exception] = {
    **{name: OSError(getattr(errno, name), name) for name in ("EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "EIO")},
    **{name: OSError(getattr(errno, name), name) for name in ("ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EPIPE")},
    "a timeout": TimeoutError(),
    "an address": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "a certificate": ssl.SSLCertVerificationError(1, "expired"),
    "a url": URLError("no route"),
    "busy": of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT),
    "locked": of_sqlite(sqlite3.SQLITE_LOCKED_SHAREDCACHE),
    "full": of_sqlite(sqlite3.SQLITE_FULL),
    "disk": of_sqlite(sqlite3.SQLITE_IOERR_READ),
    "memory": of_sqlite(sqlite3.SQLITE_NOMEM),
    "the author's own": RuntimeError("the judge is out of order"),
}
"""Faults of the machine or of a service, which a verifier may meet only after the agent has changed something."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("report", "FileNotFoundError"),
        ("folder", "CalledProcessError"),
        ("program.py", "CalledProcessError"),
        ("table", "OperationalError"),
        ("database", "OperationalError"),
        ("text as gzip", "BadGzipFile"),
    ],
)
def test_who_removes_what_verify_reads_gets_the_lowest_reward(what: str, error: str) -> None:
    env: Any = Bench()
    env.reset(task=Task(id="a", reward_range=(-1.0, 1.0)))
    env.call_tool("remove", {"what": what})
    ended = env.end()
    assert ended.reward == score_of(env.trajectory) == -1.0
    assert env.trajectory.status is COMPLETED
    assert ended.info["problems"][0].startswith(f"verification fails on this world: {error}: ")
    env.close()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_machine_in_verify_is_none_of_the_agents(kind: str) -> None:
    env: Any = Bench()
    env.reset()
    env.call_tool("fault", {"kind": kind})
    with pytest.raises(ExecutionError):
        env.end()
    assert env.trajectory.status.code is StatusCode.JUDGE_ERROR and score_of(env.trajectory) is None
    env.close()


@pytest.mark.parametrize("state", ["works", "machine"])
def test_an_authors_world_that_can_no_longer_be_read_is_worth_nothing_if_another_instance_can(state: str) -> None:
    class Kept(Desk):
        """Has a world of its author's own, of one file."""

        broken = False

        def __init__(self) -> None:
            super().__init__()
            self.world = ObjectWorld(self._read)

        def _read(self) -> dict[str, Any]:
            if Kept.broken:
                raise FileNotFoundError("gone for every instance")
            return {"answer": (self.folder / "answer").read_text()}

        def verify(self, evidence: Evidence) -> bool:
            return False

    env: Any = Kept()
    env.reset()
    if state == "works":
        (env.folder / "answer").unlink()
        assert env.end().reward == 0.0
    else:
        Kept.broken = True
        with pytest.raises(ExecutionError):
            env.end()
    env.close()


@pytest.mark.parametrize("alone", [False, True])
def test_a_verification_that_fails_also_after_another_reset_gives_no_reward(alone: bool) -> None:
    class Broken(Desk):
        SUPPORTS_CONCURRENT_SESSIONS = not alone

        def verify(self, evidence: Evidence) -> bool:
            return bool(self.notes["1" if alone else "typo"])

    env: Any = Broken()
    env.reset()
    env.call_tool("write", {"notes": {}})
    with pytest.raises(ExecutionError):
        env.end()
    assert env.trajectory.status.code is StatusCode.JUDGE_ERROR and score_of(env.trajectory) is None
    env.close()


class Long(Noted):
    """Its verifier computes for as long as the notes say, up to a minute."""

    def __init__(self) -> None:
        super().__init__(lambda evidence: spin(evidence.after["notes"]["1"]))  # type: ignore[index]


def spin(text: str) -> bool:
    until = time.monotonic() + (TIMEOUT_S if text == "long" else 0.0)
    while time.monotonic() < until:
        pass
    return text == "right"


LIMIT_S = 0.5


async def ended_on(cls: type[MCPEnvironment], tool: str, arguments: dict[str, Any]) -> Any:
    with serving(cls, ServerConfig(step_timeout_s=LIMIT_S)) as url:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            await env.reset()
            await env.call_tool(tool, arguments)
            return await env.end()


@pytest.mark.parametrize(("cls", "tool", "arguments"), [(Long, "write", {"notes": {"1": "long"}}), (Desk, "block", {})])
def test_who_makes_the_verification_pass_its_deadline_gets_the_lowest_reward(
    cls: type[MCPEnvironment], tool: str, arguments: dict[str, Any]
) -> None:
    ended = asyncio.run(ended_on(cls, tool, arguments))
    assert ended.reward == 0.0
    assert ended.info["problems"][0].startswith("verification fails on this world: OperationTimeout: ")


def test_a_verification_that_is_always_late_gives_no_reward() -> None:
    class Slow(Desk):
        async def verify(self, evidence: Evidence) -> float:  # type: ignore[override]
            await asyncio.Event().wait()
            return 0.0

    with pytest.raises(OperationTimeout):
        asyncio.run(ended_on(Slow, "write", {"notes": {}}))


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("worth", [0.0, 0.5])
def test_a_reward_of_the_reset_is_part_of_the_return(worth: float, over: bool) -> None:
    class Prepared(MCPEnvironment):
        """Is paid for its preparation."""

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            if over:
                self.finish(reward=worth)
                return None
            return Observation(reward=worth)

    env = Prepared()
    first = env.reset()
    assert first.reward == worth
    assert first.info.get("return") == (worth if over else None)
    assert env.end().info["return"] == worth
    assert score_of(env.trajectory) == worth  # type: ignore[arg-type]


def test_an_episode_that_is_over_at_its_reset_without_a_reward_has_no_return() -> None:
    class Nothing(MCPEnvironment):
        """Has nothing to do."""

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            self.finish()

    env = Nothing()
    assert env.reset().info["return"] is None


class Tenths(MCPEnvironment):
    """Pays as it is asked, a tenth by default."""

    def __init__(self) -> None:
        @self.tool
        def press(worth: float = 0.1) -> None:
            """Press."""

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(call.arguments.get("worth", 0.1))


@given(st.permutations([0.1, 0.2, 0.3, 0.7, 1 / 3, 1e-3, 1e6, -0.1]))
def test_the_return_does_not_depend_on_the_order_of_the_rewards(rewards: list[float]) -> None:
    env = Tenths()
    env.reset()
    for worth in rewards:
        last = env.call_tool("press", {"worth": worth})
    assert last.info["return"] == math.fsum(rewards)


def test_a_return_that_is_too_large_is_infinite() -> None:
    env = Tenths()
    env.reset()
    for worth in (1e308, 1e308, -1e308):
        env.call_tool("press", {"worth": worth})
    assert env.trajectory is not None and env.trajectory.total_reward == math.inf


def test_tenths_add_up_to_one_also_after_a_restore() -> None:
    env = Tenths()
    env.reset()
    for number in range(10):
        if number == 6:
            snapshot = env.snapshot()
        last = env.call_tool("press")
    assert last.info["return"] == 1.0
    env.restore(snapshot)
    for _ in range(4):
        last = env.call_tool("press")
    assert last.info["return"] == env.trajectory.total_reward == 1.0  # type: ignore[union-attr]


def test_a_verifier_that_is_async_without_saying_so_is_refused() -> None:
    class Wrapped(MCPEnvironment):
        """Hides that it is async."""

        def verify(self, evidence: Evidence) -> Any:
            return asyncio.sleep(0, 1.0)

    env = Wrapped()
    env.reset()
    with pytest.raises(ExecutionError) as failed:
        env.end()
    assert isinstance(failed.value.__cause__, TypeError)


def test_what_an_author_does_to_options_and_tasks_stays_in_that_episode() -> None:
    class Deals(MCPEnvironment):
        """Deals the cards that it is given."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, deck: list[int] | None = None) -> None:  # type: ignore[override]
            assert deck is not None
            self.dealt = [deck.pop() for _ in range(len(deck))]

        def verify(self, evidence: Evidence) -> float:
            assert evidence.task is not None
            return float(evidence.task.metadata.pop("answer", 0))

    task = Task(id="cards", options={"deck": [1, 2, 3]}, metadata={"answer": 1})
    env: Any = Deals()
    for _ in range(2):
        env.reset(task=task)
        assert env.dealt == [3, 2, 1]
        assert env.trajectory.options == {"deck": [1, 2, 3]}
        assert env.end().reward == 1.0


def test_a_reset_that_is_refused_leaves_the_episode_its_address() -> None:
    class Levels(Examined):
        def reset(self, level: int) -> None:  # type: ignore[override]
            self.level = level

    async def main(url: str) -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            address = (await env.reset(level=1)).info["mcp_url"]
            for refused in ({"id": "no level"}, {"id": "x", "options": {"level": 1}, "verifier": {"kind": "bogus"}}):
                with pytest.raises(InvalidMessage):
                    await env.reset(task=refused)
            async with Client(address) as agent:
                assert (await agent.call_tool("add")).data == 1
            assert (await env.state()).step_count == 1

    with serving(Levels) as url:
        asyncio.run(main(url))
