"""Taking over an agent's episode: its calls wait, a person's are steps with their caller, and it is handed back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client, Context

from mcpenv import MCPEnvironment
from mcpenv.extensions.live import take_over
from mcpenv.extensions.records.reviews import review_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient, StatusCode, SyncEnvClient
from mcpenv_client.types.records import Plane

WAIT_S = 60


class Taken(MCPEnvironment):
    """Say something, or wait."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    SURVIVES_TIMEOUT = True

    def __init__(self) -> None:
        @self.tool
        async def say(text: str) -> str:
            """Say something."""
            return text

        @self.tool
        async def wait(context: Context) -> str:
            """Wait until the call is cancelled."""
            await context.report_progress(1, 2)
            return await asyncio.Future[str]()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture(params=[1, 2])
def url(request: pytest.FixtureRequest, record: Path) -> Iterator[str]:
    with serving(Taken, ServerConfig(record=record, console=True), max_concurrent_envs=8, workers=request.param) as url:
        yield url


class Page:
    """A page that acts in one session."""

    def __init__(self, url: str, holder: str = "page") -> None:
        (session,) = httpx.get(f"{url}/sessions").json()["sessions"]
        self.url, self.holder = f"{url}/sessions/{session['session_id']}", holder

    def ask(self, method: str, part: str, status: int = 200, **body: Any) -> dict[str, Any]:
        answer = httpx.request(method, f"{self.url}/{part}", json=body, timeout=WAIT_S)
        assert answer.status_code == status, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def take(self, status: int = 200) -> dict[str, Any]:
        return self.ask("POST", "holder", status, holder=self.holder, by="person")

    def call(self, text: str, status: int = 200) -> dict[str, Any]:
        action = {"type": "call_tool", "tool_name": "say", "arguments": {"text": text}}
        return self.ask("POST", "calls", status, holder=self.holder, action=action)

    def hand_back(self) -> dict[str, Any]:
        return self.ask("DELETE", "holder", holder=self.holder)

    def held(self, holder: str = "") -> Any:
        return self.ask("PUT", "holder", holder=holder or self.holder)["held"]

    def busy(self) -> bool:
        return bool(self.ask("PUT", "holder", holder=self.holder)["busy"])


def until(condition: Callable[[], Any]) -> None:
    done = threading.Event()
    for _ in range(WAIT_S * 20):
        if condition():
            return
        done.wait(0.05)
    raise AssertionError("the condition did not come true")


async def _say(address: str, tool: str, arguments: dict[str, Any]) -> str:
    async with Client(address) as agent:
        answer = await agent.call_tool(tool, arguments, raise_on_error=False)
        return str(answer.content[0].text)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def callers(env: SyncEnvClient[Any, Any]) -> list[tuple[str, Any]]:
    return [(step.call.plane.value, step.call.principal) for step in env.trajectory().steps]


def test_an_episode_is_taken_over_and_handed_back_and_the_record_has_who_did_what(
    url: str, record: Path, pool: ThreadPoolExecutor
) -> None:
    with EnvClient(url).sync() as env:
        address = str(env.reset().info["mcp_url"])
        assert asyncio.run(_say(address, "say", {"text": "first"})) == "first"
        page = Page(url)
        told = page.take()
        assert told["held"] == {"by": "person", "begun": True, "mine": True} and "say" in [
            each["name"] for each in told["tools"]
        ]
        waiting = pool.submit(asyncio.run, _say(address, "say", {"text": "third"}))
        assert page.call("second")["observation"]["result"]["content"][0]["text"] == "second"
        assert not waiting.done()
        assert page.hand_back()["held"] is None
        assert waiting.result(WAIT_S) == "third"
        assert callers(env) == [("agent", None), ("control", "person"), ("agent", None)]
        env.end()
    (episode,) = read_episodes(record)
    assert [step.call.principal for step in episode.trajectory.steps] == [None, "person", None]
    assert episode.trajectory.steps[1].call.plane is Plane.CONTROL


def test_only_the_page_that_has_an_episode_calls_in_it(url: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page, other = Page(url), Page(url, "other")
        page.take()
        assert "person has taken" in other.take(409)["message"]
        other.call("no", 409)
        other.ask("DELETE", "holder", 409, holder="other")
        page.call("yes")
        page.hand_back()
        other.take()
        page.call("no", 409)
        other.hand_back()


def test_an_episode_is_handed_back_when_its_page_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_over, "LEASE_S", 0.2)
    with serving(Taken) as url, EnvClient(url).sync() as env:
        address = str(env.reset().info["mcp_url"])
        page = Page(url)
        page.take()
        assert asyncio.run(_say(address, "say", {"text": "on"})) == "on"
        until(lambda: page.held("another") is None)


def test_a_session_that_is_taken_over_is_busy_while_a_call_runs(url: str, pool: ThreadPoolExecutor) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        told = page.take()
        assert not told["busy"] and 120 < told["paused_until"] - time.time() <= take_over.LEASE_S
        action = {"type": "call_tool", "tool_name": "wait", "arguments": {}}
        waiting = pool.submit(page.ask, "POST", "calls", 409, holder="page", action=action)
        until(page.busy)
        page.ask("POST", "cancel")
        waiting.result(WAIT_S)
        assert not page.busy() and page.held()
        page.hand_back()


def test_a_reviewer_of_any_name_takes_an_episode_over(url: str) -> None:
    rater = review_of({"episode": "e", "rater": "n" * 100}).rater
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        assert page.ask("POST", "holder", holder="page", by=f"person {rater}")["held"]["by"] == f"person {rater}"
        page.hand_back()
        page.ask("POST", "holder", 422, holder="page", by=f"person {rater}n")


def test_only_the_page_that_has_an_episode_keeps_it(url: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        first = page.take()["paused_until"]
        other = page.ask("PUT", "holder", holder="other")
        assert other["held"]["mine"] is False and other["paused_until"] == first
        assert page.ask("PUT", "holder", holder=page.holder)["paused_until"] > first
        page.hand_back()


def test_a_call_of_the_agent_is_cancelled_with_that_status_and_its_episode_goes_on(
    url: str, pool: ThreadPoolExecutor
) -> None:
    with EnvClient(url).sync() as env:
        address = str(env.reset().info["mcp_url"])
        waiting = pool.submit(asyncio.run, _say(address, "wait", {}))
        page = Page(url)
        until(page.busy)
        assert page.take()["held"] == {"by": "person", "begun": False, "mine": True}
        assert "still runs" in page.call("early", 409)["message"]
        assert page.ask("POST", "cancel") == {"cancelled": True}
        assert "cancelled" in waiting.result(WAIT_S)
        until(lambda: page.held()["begun"])
        page.call("then")
        page.hand_back()
        first, second = env.trajectory().steps
        assert first.status.code is StatusCode.CANCELLED
        assert second.status.code is StatusCode.COMPLETED
        assert page.ask("POST", "cancel") == {"cancelled": False}
        assert env.end().episode_status is not None


def test_a_call_of_the_person_is_cancelled_and_the_episode_stays_theirs(url: str, pool: ThreadPoolExecutor) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        page.take()
        action = {"type": "call_tool", "tool_name": "wait", "arguments": {}}
        waiting = pool.submit(page.ask, "POST", "calls", 409, holder="page", action=action)
        until(lambda: page.ask("POST", "cancel")["cancelled"])
        assert waiting.result(WAIT_S)["code"] == "CANCELLED"
        page.call("then")
        assert page.held()
        page.hand_back()


def test_a_session_that_ends_while_a_person_calls_ends_for_both(url: str, pool: ThreadPoolExecutor) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        page.take()
        action = {"type": "call_tool", "tool_name": "wait", "arguments": {}}
        waiting = pool.submit(page.ask, "POST", "calls", 404, holder="page", action=action)
        until(lambda: httpx.get(f"{page.url}/running").json()["logs"])
        assert httpx.delete(page.url, timeout=WAIT_S).json()["closed"]
        assert waiting.result(WAIT_S)["code"] == "SESSION_LOST"


def test_a_session_without_an_episode_is_not_taken_over(url: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        page = Page(url)
        env.end()
        assert "no episode runs" in page.take(409)["message"]
        page.ask("POST", "holder", 422, holder="", by="person")
