"""What the page Play asks of calls: the same as code, the episode as a task, and the actions beside the tools."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp import Client
from record_worlds import Dice, Shout

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ODD = 'it\'s "odd" € \\ $id `x`'
CALLS = [
    {"name": "say", "arguments": {"text": ODD, "loud": None}},
    {"name": "shout", "arguments": {"text": "up"}, "own": True},
    {"name": "roll", "arguments": {"times": 2}},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Dice, ServerConfig(console=True), max_concurrent_envs=4) as url:
        yield url


def posted(url: str, part: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.post(f"{url}/console/api/{part}", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_calls_as_code_are_the_same_calls(url: str) -> None:
    codes = dict(posted(url, "code", base=url, reset={"seed": 3, "target": 1000}, calls=CALLS)["codes"])
    program = ast.parse(codes["Python"])
    texts = [node.value for node in ast.walk(program) if isinstance(node, ast.Constant)]
    assert ODD in texts and "up" in texts and 1000 in texts and None in texts
    checked = subprocess.run(["sh", "-n", "-c", codes["curl"]], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert codes["curl"].count("/step") == 3
    assert json.loads(codes["Oracle"]) == {"tool_name": "roll", "arguments": {"times": 2}}
    assert "Oracle" not in dict(posted(url, "code", base=url, reset={}, calls=CALLS[:2])["codes"])
    posted(url, "code", 422, base=url, reset={}, calls=[])


def test_an_episode_as_a_task_has_the_calls_that_succeeded_and_as_a_bug_all(url: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset(seed=1, target=1000)
        env.call_tool("say", {"text": "hi"})
        env.call_tool("refuse")
        (session,) = [each for each in httpx.get(f"{url}/sessions").json()["sessions"] if each["step_count"] == 2]
        played = {"session_id": session["session_id"], "id": "a", "prompt": "Say it.", "expected": "quiet"}
        task = posted(url, "task", kind="test", **played)
        assert (task["id"], task["split"], task["prompt"], task["seed"]) == ("a", "test", "Say it.", 1)
        assert task["options"] == {"target": 1000} and "metadata" not in task
        assert [call["tool_name"] for call in task["oracle"]] == ["say"]
        bug = posted(url, "task", kind="bug", **played)
        assert [call["tool_name"] for call in bug["oracle"]] == ["say", "refuse"]
        assert bug["metadata"] == {"expected": "quiet", "seen": "not with these dice"}
        env.step(Shout(text="up"))
        assert "other actions" in posted(url, "task", 422, kind="task", **played)["message"]


def test_a_task_has_the_calls_of_every_caller(url: str) -> None:
    async def plays(mcp_url: str) -> None:
        async with Client(mcp_url) as agent:
            await agent.call_tool("roll", {"times": 2})
            await agent.call_tool("refuse", raise_on_error=False)

    with EnvClient(url).sync() as env:
        mcp_url = env.reset(seed=1, target=1000).info["mcp_url"]
        env.call_tool("say", {"text": "hi"})
        asyncio.run(plays(mcp_url))
        (session,) = [each for each in httpx.get(f"{url}/sessions").json()["sessions"] if each["step_count"] == 3]
        task = posted(url, "task", kind="task", session_id=session["session_id"], id="b")
    assert [call["tool_name"] for call in task["oracle"]] == ["say", "roll"]


def test_own_actions_and_reset_options_are_offered_as_forms(url: str) -> None:
    offered = httpx.get(f"{url}/console/api/play").json()
    (shout,) = offered["actions"]
    assert shout["name"] == "shout" and list(shout["input_schema"]["properties"]) == ["text"]
    assert sorted(offered["reset"]["properties"]) == ["sides", "target"] and offered["models"] == []
