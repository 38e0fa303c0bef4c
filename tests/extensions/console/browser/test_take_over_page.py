"""Take an agent's episode over in the page Live, in Debian's Chromium: call its tools, cancel, and hand it back."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_agent_programs import PROGRAMS, variables, workspace
from workshop_world import WorkshopWorld

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient, StatusCode
from mcpenv_client.errors import OperationCancelled

pytest.importorskip("selenium", reason="a browser is driven by it")

from scripted_model import DONE, answered, scripted_model
from visitor import WAIT_S, Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

AGENT = "Goose"


class Counter(MCPEnvironment):
    """Count."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


def watched(visitor: Visitor, url: str) -> None:
    visitor.width(1280)
    visitor.open(url, "live")
    visitor.find("//a[starts-with(@id, 'session-')]").click()
    visitor.read("Take over")


def test_an_episode_of_a_stock_agent_is_taken_over_and_handed_back(browser: Visitor, tmp_path: Path) -> None:
    goes_on = threading.Event()

    def answering(path: str, body: dict[str, Any]) -> tuple[str | None, bytes]:
        if any(message["role"] == "tool" for message in body.get("messages", ())):
            assert goes_on.wait(WAIT_S)  # the model thinks, until its episode is taken over
        return answered(path, body)

    program, record = PROGRAMS[AGENT], tmp_path / "record"
    with (
        scripted_model(answering) as model,
        serving(Counter, ServerConfig(record=record), max_concurrent_envs=2) as url,
        EnvClient(url).sync() as env,
    ):
        address = str(env.reset(seed=1).info["mcp_url"])
        words = [
            word.replace("{mcp_url}", address).replace("{prompt}", "count") for word in shlex.split(program.command)
        ]
        agent = subprocess.Popen(
            words,
            cwd=workspace(program.files, tmp_path),
            env=variables(program, model, tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            watched(browser, url)
            browser.read("1. add")
            browser.press("Take over")
            browser.read("You have this episode. The calls of its agent wait.")
            goes_on.set()
            browser.give("by")
            browser.type("by", "5")
            browser.call()
            browser.read("2. add")
            browser.browser.refresh()  # the episode is still this tab's
            browser.read("You have this episode.")
            assert agent.poll() is None and len(env.trajectory().steps) == 2
            browser.press("Hand back")
            browser.read("3. add")
            said, _ = agent.communicate(timeout=WAIT_S)
        finally:
            goes_on.set()
            agent.kill()
        assert agent.returncode == 0 and DONE in said, said
        assert model.results() == ["1", "7"]
        env.end()
    (episode,) = read_episodes(record)
    steps = episode.trajectory.steps
    assert [(step.call.plane.value, step.call.principal) for step in steps] == [
        ("agent", None),
        ("control", "person"),
        ("agent", None),
    ]
    assert {step.status.code for step in steps} == {StatusCode.COMPLETED}


def test_a_call_of_an_agent_is_cancelled_and_is_no_failure_of_its_tool(browser: Visitor) -> None:
    with (
        serving(WorkshopWorld, max_concurrent_envs=2) as url,
        EnvClient(url).sync() as env,
        ThreadPoolExecutor(1) as pool,
    ):
        env.reset()
        waiting = pool.submit(env.call_tool, "wait")
        watched(browser, url)
        browser.press("Take over")
        browser.read("A call of the agent still runs.")
        browser.press("Cancel the call")
        browser.read("You have this episode.")
        browser.read("1. wait")
        browser.read("cancelled")
        with pytest.raises(OperationCancelled):
            waiting.result(WAIT_S)
        browser.press("Hand back")
        assert env.call_tool("add", {"by": 2}).text == "2"
        first, second = env.trajectory().steps
        assert (first.status.code, second.status.code) == (StatusCode.CANCELLED, StatusCode.COMPLETED)


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_axe_has_no_serious_finding_while_an_episode_is_taken_over(browser: Visitor, width: int, theme: str) -> None:
    with serving(WorkshopWorld, max_concurrent_envs=2) as url, EnvClient(url).sync() as env:
        env.reset()
        env.call_tool("add", {"by": 1})
        watched(browser, url)
        browser.width(width)
        browser.theme(theme)
        browser.press("Take over")
        browser.read("You have this episode.")
        assert browser.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.serious_findings() == []
        browser.press("Hand back")
