"""Watching a session: its steps so far, new ones, resuming, slow watchers, and watchers that leave."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp.utilities.types import Image
from websockets.sync.client import ClientConnection, connect

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(20_000)


class Watched(MCPEnvironment):
    """A world that is watched."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        async def say(text: str) -> str:
            """Say something."""
            return text

        @self.tool
        async def show() -> Image:
            """Show a large picture."""
            return Image(data=PICTURE, format="png")


@pytest.fixture(scope="module", params=[1, 2])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(Watched, max_concurrent_envs=16, workers=request.param) as base_url:
        yield base_url


class Played:
    """An orchestrator's session."""

    def __init__(self, url: str, socket: ClientConnection) -> None:
        self._url = url
        self._socket = socket
        before = {each["session_id"] for each in httpx.get(f"{url}/sessions").json()["sessions"] if each["episode_id"]}
        self.reset()
        rows = httpx.get(f"{url}/sessions").json()["sessions"]
        (self.id,) = {each["session_id"] for each in rows if each["episode_id"]} - before

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        self._socket.send(json.dumps({"type": kind, "data": data}))
        reply: dict[str, Any] = json.loads(self._socket.recv(20))
        assert reply["type"] == "observation", reply
        return reply

    def reset(self) -> None:
        self.ask("reset", {})

    def call(self, name: str, **arguments: Any) -> None:
        self.ask("step", {"type": "call_tool", "tool_name": name, "arguments": arguments})

    @property
    def address(self) -> str:
        return f"{self._url}/sessions/{self.id}"


@pytest.fixture
def played(url: str) -> Iterator[Played]:
    with connect(url.replace("http", "ws") + "/ws", max_size=None) as socket:
        yield Played(url, socket)


Event = tuple[str, str | None, dict[str, Any]]


def events(answer: httpx.Response) -> Iterator[Event]:
    """Yield the name, id and data of each event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], fields.get("id"), json.loads(fields["data"])
            fields = {}


def said(event: Event) -> str:
    name, _, data = event
    assert name == "step", event
    return str(data["step"]["call"]["arguments"]["text"])


def test_a_watcher_gets_the_steps_so_far_and_then_each_new_one(played: Played) -> None:
    played.call("say", text="one")
    with httpx.stream("GET", f"{played.address}/events", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = events(answer)
        name, _, data = next(seen)
        assert (name, data["session"]["session_id"]) == ("episode", played.id)
        assert "steps" not in data["trajectory"]
        assert said(next(seen)) == "one"
        played.call("say", text="two")
        assert said(next(seen)) == "two"
        first = data["episode"]
        played.reset()
        name, _, data = next(seen)
        assert (name, data["episode"], data["trajectory"]["reason"]) == ("end", first, "reset")
        name, _, data = next(seen)
        assert name == "episode" and data["episode"] != first
        played.ask("end", {})
        name, _, data = next(seen)
        assert (name, data["trajectory"]["terminated"]) == ("end", True)
        assert httpx.delete(played.address).status_code == 200
        assert next(seen)[0] == "closed"
        assert next(seen, None) is None


def test_a_watcher_resumes_after_the_last_event_that_it_had(played: Played) -> None:
    for text in ("one", "two"):
        played.call("say", text=text)
    with httpx.stream("GET", f"{played.address}/events", timeout=20) as answer:
        seen = events(answer)
        assert next(seen)[0] == "episode"
        _, last, _ = next(seen)
        assert last is not None
    played.call("say", text="three")
    with httpx.stream("GET", f"{played.address}/events", headers={"Last-Event-ID": last}, timeout=20) as answer:
        seen = events(answer)
        assert [said(next(seen)), said(next(seen))] == ["two", "three"]
    played.reset()
    with httpx.stream("GET", f"{played.address}/events", headers={"Last-Event-ID": last}, timeout=20) as answer:
        assert next(events(answer))[0] == "episode"


def test_no_step_waits_for_a_watcher_that_does_not_read(played: Played) -> None:
    with httpx.stream("GET", f"{played.address}/events", timeout=20) as answer:
        seen = events(answer)
        assert next(seen)[0] == "episode"
        text = "x" * 100_000
        for number in range(120):  # 24 MB, far more than the sockets between them hold
            played.call("say", text=f"{number}{text}")
        assert [said(next(seen)).rstrip("x") for _ in range(120)] == [str(number) for number in range(120)]


def test_a_watcher_that_leaves_is_forgotten(played: Played) -> None:
    for _ in range(3):
        with httpx.stream("GET", f"{played.address}/events", timeout=20) as answer:
            assert next(events(answer))[0] == "episode"
    played.call("say", text="on")
    assert httpx.get(f"{played.address}/trajectory").json()["step_count"] == 1


def test_the_trajectory_is_read_from_a_step_on(played: Played) -> None:
    for text in ("one", "two", "three"):
        played.call("say", text=text)
    body = httpx.get(f"{played.address}/trajectory", params={"after": 1}).json()
    assert [step["call"]["arguments"]["text"] for step in body["steps"]] == ["two", "three"]
    assert [step["position"] for step in body["steps"]] == [2, 3]
    assert (body["step_count"], body["dropped"], body["state"]) == (3, 0, "running")
    assert httpx.get(f"{played.address}/trajectory", params={"after": 9}).json()["steps"] == []


def test_a_large_picture_is_fetched_by_its_reference(url: str, played: Played) -> None:
    played.call("show")
    body = httpx.get(f"{played.address}/trajectory").json()
    (block,) = [each for each in body["steps"][0]["outcome"]["result"]["content"] if each["type"] == "image"]
    assert "data" not in block
    picture = httpx.get(f"{url}/{block['ref']}")
    assert (picture.content, picture.headers["content-type"]) == (PICTURE, "image/png")
    assert picture.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert httpx.get(f"{played.address}/steps/1/content/9").status_code == 404
    assert httpx.get(f"{played.address}/steps/7/content/0").status_code == 404
    played.reset()
    assert httpx.get(f"{url}/{block['ref']}").status_code == 404
    assert base64.b64encode(PICTURE).decode() not in json.dumps(body)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("trajectory?after=-1", {}, 422),
        ("trajectory?after=x", {}, 422),
        ("events", {"Last-Event-ID": "nonsense"}, 422),
        ("events?after=a.-1", {}, 422),
    ],
)
def test_a_place_that_is_none_is_refused(played: Played, path: str, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(f"{played.address}/{path}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, "VALIDATION_ERROR")


def test_an_unknown_session_cannot_be_watched(url: str) -> None:
    for part in ("events", "trajectory", "steps/1/content/0"):
        assert httpx.get(f"{url}/sessions/nobody/{part}").json()["code"] == "SESSION_LOST"


def test_a_session_without_an_episode_says_so(url: str) -> None:
    session_id = httpx.post(f"{url}/sessions").json()["session_id"]
    for part in ("trajectory", "steps/1/content/0"):
        answer = httpx.get(f"{url}/sessions/{session_id}/{part}")
        assert answer.status_code == 409 and "reset first" in answer.json()["message"]
    httpx.delete(f"{url}/sessions/{session_id}")


def test_watching_needs_the_control_token() -> None:
    with serving(Watched, ServerConfig(control_token="the-control-token")) as url:
        for part in ("events", "trajectory", "steps/1/content/0"):
            assert httpx.get(f"{url}/sessions/nobody/{part}").status_code == 401
