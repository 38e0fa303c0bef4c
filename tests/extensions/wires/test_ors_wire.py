"""ORS's wire, as its clients speak it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from environments import PIXEL
from fastmcp.utilities.types import Image
from trainer_worlds import Doors

from mcpenv import MCPEnvironment, TaskSet, ToolError
from mcpenv.extensions.wires.ors import CHUNK
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

TIMEOUT_S = 30
TOKEN = "the-control-token"
WIRES = ServerConfig(wires=("ors",))


class Talk(MCPEnvironment):
    """An environment whose tools answer with what is hard to send."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    go_on = threading.Event()
    calls = 0

    def __init__(self) -> None:
        @self.tool
        def say(text: str) -> str:
            """Say it."""
            return text

        @self.tool
        def see() -> Image:
            """See."""
            return Image(data=PIXEL, format="png")

        @self.tool
        def refuse() -> str:
            """Refuse."""
            raise ToolError("not now")

        @self.tool
        def wait() -> str:
            """Wait."""
            type(self).calls += 1
            assert self.go_on.wait(TIMEOUT_S)
            return "waited"

        @self.tool
        def end_episode() -> str:
            """Has the name of the terminal tool."""
            return "not the end"

    tasks = TaskSet([{"id": "talk", "prompt": "Talk."}])

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        """Begin."""

    def score(self, call: Any, outcome: Any) -> float | None:
        return -0.5 if call.arguments == {"text": 1} else None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Doors, WIRES) as base_url:
        yield base_url


@pytest.fixture(scope="module")
def talk() -> Iterator[str]:
    with serving(Talk, WIRES) as base_url:
        yield base_url


def events(response: httpx.Response) -> list[tuple[str, str]]:
    """Return the events of a stream, read as ORS's client reads them."""
    assert response.status_code == 200, response.text
    found: list[tuple[str, str]] = []
    name, lines = "", list[str]()
    for line in response.text.split("\n"):
        if not line:
            if name:
                found.append((name, "\n".join(lines)))
            name, lines = "", []
        elif not line.startswith(":"):
            field, value = line.split(":", 1)
            if field == "event":
                name = value.strip()
            else:
                lines.append(value.lstrip())
    return found


@contextmanager
def opened(url: str, **task: Any) -> Iterator[httpx.Client]:
    """Yield a client of a new session."""
    (_, session_id), end = events(httpx.post(f"{url}/create_session"))
    assert end == ("end", "")
    with httpx.Client(base_url=url, headers={"X-Session-ID": session_id}, timeout=TIMEOUT_S) as client:
        assert client.post("/create", json=task).json() == {"sid": session_id}
        yield client


def output(client: httpx.Client, name: str, path: str = "/call", **arguments: Any) -> dict[str, Any]:
    """Return the answer to a call."""
    (first, _), *rest = events(client.post(path, json={"name": name, "input": arguments}))
    assert first == "task_id" and rest[-1][0] == "end", rest
    answer: dict[str, Any] = json.loads("".join(data for _, data in rest))
    return answer


def test_an_episode_is_played_to_its_end_with_and_without_the_name_in_the_path(url: str) -> None:
    with opened(url, split="train", index=1) as client:
        assert client.get("/doors/prompt").json() == [{"type": "text", "text": "Number 1.", "detail": None}]
        assert client.get("/prompt").json() == client.get("/Doors/prompt").json()
        looked = output(client, "look")["output"]
        assert looked["blocks"][0]["text"] == '{"colour":"green"}'
        assert (looked["reward"], looked["finished"]) == (0.25, False)
        ended = output(client, "open_door", "/doors/call", colour="green")["output"]
        assert (ended["reward"], ended["finished"], ended["metadata"]["return"]) == (1.0, True, 1.25)
        over = output(client, "look")
        assert (over["ok"], over["reason"]) == (False, "episode_finished")
        assert output(client, "end_episode")["reason"] == "episode_finished"


def test_the_terminal_tool_asks_the_verifier(url: str) -> None:
    with opened(url, task_spec={"id": "mine", "prompt": "Mine.", "options": {"door": "blue"}}) as client:
        listed = client.get("/task_tools").json()
        assert listed["terminal_tool"] == {"name": "end_episode", "arg": None, "description": "End the episode."}
        assert "end_episode" not in [tool["name"] for tool in listed["tools"]]
        ended = output(client, "end_episode")["output"]
        assert (ended["reward"], ended["finished"]) == (0.0, True)


def test_a_call_that_no_tool_takes_is_refused_with_its_reason(url: str) -> None:
    with opened(url, split="train", index=0) as client:
        assert output(client, "nothing")["ok"] is False
        wrong = output(client, "open_door", colour="pink")
        assert "'red', 'green' or 'blue'" in json.dumps(wrong)


def test_a_failure_that_is_not_about_the_agent_is_an_error_and_no_reward(url: str) -> None:
    with opened(url, split="train", index=0) as client:
        output(client, "break_verifier")
        for _ in range(2):
            called = events(client.post("/call", json={"name": "end_episode", "input": {}}))
            assert called[-1][0] == ("error" if _ == 0 else "end")
            if _ == 0:
                assert called[-1][1].startswith("judge_error: ")
            else:
                assert json.loads(called[-1][1])["reason"] == "episode_finished"


def test_texts_of_any_length_and_with_blanks_anywhere_arrive_whole(talk: str) -> None:
    with opened(talk, split="train", index=0) as client:
        for text in ("", " " * 3 * CHUNK, "ä ☃\u2028\n\r\x85 x" * CHUNK, "a" * (CHUNK + 7)):
            said = output(client, "say", text=text)["output"]
            assert said["blocks"][0]["text"] == text


def test_images_are_blocks_and_a_tools_error_is_an_answer(talk: str) -> None:
    with opened(talk, split="train", index=0) as client:
        (image,) = output(client, "see")["output"]["blocks"]
        assert image["type"] == "image" and image["mimeType"] == "image/png" and image["data"]
        refused = output(client, "refuse")["output"]
        assert refused["metadata"]["is_error"] and "not now" in refused["blocks"][0]["text"]


def test_the_reward_of_a_refused_call_is_not_lost(talk: str) -> None:
    with opened(talk, split="train", index=0) as client:
        assert output(client, "say")["reason"] == "input_validation"
        assert output(client, "say", text=1)["output"]["reward"] == -0.5


def test_a_tool_with_the_name_of_the_terminal_tool_stays_a_tool(talk: str) -> None:
    with opened(talk, split="train", index=0) as client:
        listed = client.get("/tools").json()
        assert listed["terminal_tool"]["name"] == "end_episode_"
        assert output(client, "end_episode")["output"]["blocks"][0]["text"] == "not the end"
        assert output(client, "end_episode_")["output"]["finished"]


def test_a_call_whose_stream_is_lost_goes_on_and_is_not_made_again(talk: str) -> None:
    Talk.go_on.clear()
    Talk.calls = 0
    call = {"name": "wait", "input": {}}
    with opened(talk, split="train", index=0) as client:
        with client.stream("POST", "/call", json=call) as lost:
            head = next(lost.iter_text())
        task_id = head.partition("data: ")[2].strip()
        Talk.go_on.set()
        for _ in range(2):
            resumed = events(client.post("/call", json={**call, "task_id": task_id}))
            assert resumed[0] == ("task_id", task_id)
            assert json.loads(resumed[1][1])["output"]["blocks"][0]["text"] == "waited"
        assert Talk.calls == 1
        assert events(client.post("/call", json={**call, "task_id": "other"})) == [("error", "unknown task_id")]


def test_a_create_is_repeated_and_a_deleted_session_is_gone(url: str) -> None:
    with opened(url, split="train", index=0) as client:
        assert client.post("/create", json={"split": "train", "index": 0}).status_code == 200
        assert client.post("/create", json={"split": "train", "index": 1}).status_code == 422
        assert client.post("/ping").json() == {"status": "ok"}
        for path in ("/delete", "/delete_session", "/delete"):
            assert client.post(path).status_code == 200
        for gone in (client.post("/ping"), client.get("/prompt"), client.post("/call", json={"name": "look"})):
            assert gone.status_code == 410 and "no such session" in gone.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "either task_spec"),
        ({"split": "train"}, "either task_spec"),
        ({"split": "train", "index": 99}, "99"),
        ({"split": "train", "index": 0, "env_name": "other"}, "unknown environment"),
        ({"split": "train", "index": 0, "toolset_name": "codex"}, "toolset_name"),
        ({"task_spec": {"prompt": "?"}}, "id"),
    ],
)
def test_a_create_that_cannot_be_is_refused_and_leaves_no_session(url: str, body: dict[str, Any], said: str) -> None:
    headers = {"X-Session-ID": "a-session-of-its-own"}
    refused = httpx.post(f"{url}/create", json=body, headers=headers)
    assert 400 <= refused.status_code < 500 and said in refused.json()["detail"]
    assert httpx.post(f"{url}/ping", headers=headers).status_code == 410


def test_a_request_without_a_session_id_is_told_so(url: str) -> None:
    refused = httpx.post(f"{url}/call", json={"name": "look"})
    assert refused.status_code == 422 and "X-Session-ID is needed" in refused.json()["detail"]


def test_the_control_token_is_asked_for_and_may_be_an_api_key() -> None:
    with serving(Doors, ServerConfig(wires=("ors",), control_token=TOKEN)) as url:
        for path in ("/create_session", "/create", "/doors/call", "/tasks"):
            assert httpx.post(f"{url}{path}", json={}).status_code == 401
        for headers in ({"X-API-Key": TOKEN}, {"Authorization": f"Bearer {TOKEN}"}):
            splits = httpx.get(f"{url}/doors/splits", headers=headers).json()
            assert [split["name"] for split in splits] == ["train", "test"]
        assert httpx.get(f"{url}/sessions", headers={"X-API-Key": TOKEN}).status_code == 401


def test_without_the_wire_there_are_no_routes_of_it() -> None:
    with serving(Doors) as url:
        assert httpx.post(f"{url}/create_session").status_code == 404
