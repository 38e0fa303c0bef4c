"""The contract of MyEnv, and its calls, against the stand-in of the API."""

from __future__ import annotations

import httpx
import pytest
from mcpenv.extensions.contract import EnvironmentContract

from my_env import environment, stand_in


class TestMyEnv(EnvironmentContract):
    factory = environment.MyEnv
    examples = {"book_room": {"room": "hall", "hour": 9, "who": "Ana"}}


def test_a_room_that_suits_the_meeting_is_rewarded() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        step = env.call_tool("book_room", {"room": "hall", "hour": env.hour, "who": env.who})
        assert (step.reward, step.done) == (1.0, True)


def test_another_hour_is_not_rewarded() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        step = env.call_tool("book_room", {"room": "hall", "hour": 8 if env.hour > 8 else 9, "who": env.who})
        assert (step.reward, step.done) == (0.0, True)


def test_what_the_api_refuses_is_told_to_the_agent() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        step = env.call_tool("book_room", {"room": "cellar", "hour": 9, "who": "Ana"})
        assert step.error is not None and "there is no room 'cellar'" in step.error.message


def test_two_sessions_have_worlds_of_their_own() -> None:
    with environment.MyEnv() as one, environment.MyEnv() as other:
        one.reset(seed=1)
        other.reset(seed=1)
        one.call_tool("book_room", {"room": "hall", "hour": 9, "who": "Ana"})
        assert other.call_tool("list_bookings").result.data == []


def test_the_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.TOKEN, "a-secret-of-mine")
    with environment.MyEnv(base_url=stand_in.url()) as env:
        assert env.api.headers["Authorization"] == "Bearer a-secret-of-mine"


def test_an_api_that_wants_another_token_is_an_error_of_ours() -> None:
    with environment.MyEnv() as env:
        env.reset(seed=1)
        env.api.headers["Authorization"] = "none"
        with pytest.raises(httpx.HTTPStatusError):
            env._call("GET", "/rooms")
        env.api.headers["Authorization"] = "Bearer again"
