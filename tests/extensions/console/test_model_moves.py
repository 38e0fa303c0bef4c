"""Moves of a model in the page Play: asked by name, from the steps so far, with the endpoint's own refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from evaluate_endpoint import Endpoint, called, refused, said, scripted_endpoint
from evaluate_world import Counting

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.console import MODELS
from mcpenv.extensions.records.transcript import transcript_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def url(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("KEY_OF_ONE", "sk-one-0123456789")
    monkeypatch.setenv(MODELS, f"one={endpoint.url},KEY_OF_ONE two={endpoint.url}")
    with serving(Counting, ServerConfig(console=True), max_concurrent_envs=4) as url:
        yield url


def asked(url: str, model: str, status: int = 200) -> dict[str, Any]:
    (session,) = httpx.get(f"{url}/sessions").json()["sessions"]
    answer = httpx.post(f"{url}/sessions/{session['session_id']}/moves", json={"model": model}, timeout=60)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_a_model_proposes_calls_until_it_is_done_and_makes_none(url: str, endpoint: Endpoint) -> None:
    with EnvClient(url).sync() as env:
        env.reset(task="solve")
        for count in (1, 2):
            assert asked(url, "one") == {
                "text": "",
                "calls": [{"name": "add", "arguments": {"by": 1}}],
                "problem": None,
            }
            assert len(env.trajectory().steps) == count - 1
            env.call_tool("add", {"by": 1})
        assert asked(url, "one") == {"text": "I am there.", "calls": [], "problem": None}
    assert endpoint.asked[0]["model"] == "one" and len(endpoint.asked[0]["tools"]) == 2
    assert endpoint.keys == ["Bearer sk-one-0123456789"] * 3


def test_a_model_sees_the_calls_of_others_by_the_names_that_it_may_use(url: str, endpoint: Endpoint) -> None:
    with EnvClient(url).sync() as env:
        env.reset(task="solve")
        env.call_tool("look.at/it")
        asked(url, "two")
    messages = endpoint.asked[0]["messages"]
    names = [tool["function"]["name"] for tool in endpoint.asked[0]["tools"]]
    assert messages[1]["tool_calls"][0]["function"]["name"] in names and messages[2]["content"] == "it stands at 0"
    assert endpoint.keys == [None]


def test_what_cannot_be_read_or_was_refused_is_said(url: str, endpoint: Endpoint) -> None:
    with EnvClient(url).sync() as env:
        env.reset(task="scrawl")
        assert "not JSON" in asked(url, "one")["problem"]
        endpoint.first = [refused(400, "no credit is left"), (503, {}), (503, {}), said("", refusal="I will not.")]
        assert "no credit is left" in asked(url, "one", 502)["message"]
        assert "2 tries" in asked(url, "one", 502)["message"]
        assert asked(url, "one")["text"] == "I will not."
        endpoint.first = [called(("add", {"by": 1}), ("add", {"by": 2}))]
        assert [call["arguments"] for call in asked(url, "one")["calls"]] == [{"by": 1}, {"by": 2}]


def test_a_page_names_a_model_and_never_an_address_or_a_key(url: str, endpoint: Endpoint) -> None:
    assert httpx.get(f"{url}/console/api/play").json()["models"] == ["one", "two"]
    with EnvClient(url).sync() as env:
        env.reset(task="solve")
        assert "model is one of: one, two" in asked(url, endpoint.url, 422)["message"]
    assert endpoint.asked == []


@pytest.mark.parametrize("text", ["one", "=http://host", "one=ftp://host/v1", "one=http://host/v1,NO_SUCH_KEY"])
def test_models_that_cannot_be_asked_are_refused_at_the_start(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, text)
    with pytest.raises(ConfigurationError), serving(Counting, ServerConfig(console=True)):
        pass


def test_what_a_model_said_is_in_the_record_once(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEY_OF_ONE", "sk-one-0123456789")
    monkeypatch.setenv(MODELS, f"one={endpoint.url},KEY_OF_ONE")
    config = ServerConfig(console=True, record=tmp_path)
    with serving(Counting, config, max_concurrent_envs=4) as url, EnvClient(url).sync() as env:
        for seed in (1, 2):
            env.reset(task="solve", seed=seed)
            env.call_tool("add", {"by": 5})  # of a person
            _, answer = called(("add", {"by": seed}))
            calls = answer["choices"][0]["message"]["tool_calls"]
            endpoint.first = [said(f"My key is sk-one-0123456789, and I add {seed}.", tool_calls=calls)]
            asked(url, "one")
            begun = env.snapshot()
            env.call_tool("add", {"by": 7})
            env.restore(begun)  # as the page undoes it
            env.call_tool("add", {"by": seed})
            endpoint.first = [said(f"{5 + seed} is enough.")]
            asked(url, "one")
    went_on = [each for each in read_episodes(tmp_path) if each.trajectory.forked_from is not None]
    for seed, episode in zip((1, 2), went_on, strict=True):
        assert episode.model_turns is not None
        assert [[call.step for call in turn.calls] for turn in episode.model_turns] == [[2], []]
        assert all(turn.model == "one" and turn.status == 200 for turn in episode.model_turns)
        shown = [
            entry.get("step") or [entry["role"], *(part.get("text", part["type"]) for part in entry["parts"])]
            for entry in transcript_of(episode)
        ]
        assert shown == [
            ["user", "solve: count to 2 (solve)."],
            1,
            ["assistant", f"My key is ***, and I add {seed}.", "call"],
            2,
            ["assistant", f"{5 + seed} is enough."],
        ]
