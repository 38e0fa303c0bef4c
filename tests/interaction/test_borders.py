"""Any JSON, any annotation, any return value: the same answer through every plane, in records, pools and listings.

The answer is true, or an error that names the tool. A value is what the same tool answers in process.
"""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from border_worlds import ANNOTATIONS, VALUES, Blob, Borders
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planes import Outcome, Plane, opened

from mcpenv import MCPEnvironment, Mode, Observation, State, Trajectory
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient
from mcpenv_client.pool import BlockingEpisode, EnvPool
from mcpenv_client.types.values import decode, encode

PLANES = ("process", "ws-uvicorn", "http", "mcp-handshake", "mcp-2026")
INCIDENT = re.compile(r" \(incident [0-9a-f]+\)")

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["", "a", "red", "1", "1.5", "aGk=", "__4=", "//4=", "2026-01-31", "2026-01-31T12:00:00Z", "PT1S", "12:00:00",
     "1/2", "00000000-0000-0000-0000-000000000001", "127.0.0.1", "http://a/", "1j", "true", "NaN", "Infinity", "null",
     "id", "\x00", "\u2028", "🙂", "[]", "x" * 1000]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 11)
    | st.integers()
    | st.sampled_from([2**53 + 1, -(2**63), 2**64 - 1, 10**40])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
KEYS = TEXTS | st.sampled_from(
    ["id", "x", "y", "n", "data", "name", "value", "children", "a", "innerValue", "numbers", "left"]
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
TAKEN = st.tuples(st.integers(0, len(ANNOTATIONS) - 1).map("take_{}".format), st.builds(lambda v: {"v": v}, JSON))
GIVEN = st.tuples(
    st.integers(0, len(ANNOTATIONS) - 1).map("give_{}".format) | st.sampled_from(["give", "give_bare"]),
    st.builds(lambda value: {"value": value}, st.integers(0, len(VALUES) - 1)),
)
CALLS = TAKEN | GIVEN | st.tuples(st.just("take_0"), JSON.filter(lambda v: isinstance(v, dict)))


def shown(outcome: Outcome) -> tuple[Any, ...]:
    """Return the part of an outcome that every plane has, as text, so that 1, 1.0 and True differ."""
    return INCIDENT.sub("", outcome.text), outcome.failed, json.dumps([outcome.content, outcome.data])


def open_planes(names: tuple[str, ...]) -> Iterator[dict[str, Plane]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(opened(name, Borders, Mode.SIMULATION)) for name in names}


@pytest.fixture(scope="module")
def planes() -> Iterator[dict[str, Plane]]:
    yield from open_planes(PLANES)


@pytest.fixture(scope="module")
def with_stdio() -> Iterator[dict[str, Plane]]:
    yield from open_planes(("process", "stdio"))


def check(planes: dict[str, Plane], name: str, arguments: dict[str, Any]) -> None:
    sent = json.dumps(arguments)
    here = planes["process"].call(name, arguments)
    assert json.dumps(arguments) == sent, "the caller's arguments are the caller's"
    for plane, each in planes.items():
        if plane != "process":
            assert shown(each.call(name, json.loads(sent))) == shown(here), plane
    env = planes["process"].env  # type: ignore[attr-defined]
    step = env.trajectory.steps[-1]
    assert json.dumps(step.call.arguments) == sent
    # The score saw what was sent, and no address of an object.
    assert here.reward == len(repr(json.loads(sent))) / 8 - here.failed
    assert " at 0x" not in here.text
    if here.failed:
        assert name in here.text
    again = type(step).from_plain(decode(encode(step.to_plain())))
    assert again.call == step.call and again.outcome.result == step.outcome.result
    for twin in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert twin.to_plain() == step.to_plain()


@settings(max_examples=7 * settings().max_examples)
@given(CALLS)
@example(("take_6", {"v": {"id": 5}}))
@example(("take_4", {"v": "__4="}))
def test_a_call_has_the_same_answer_in_process_on_ws_on_http_and_on_both_eras_of_mcp(
    planes: dict[str, Plane], call: tuple[str, dict[str, Any]]
) -> None:
    check(planes, *call)


@pytest.mark.extension("stdio")
@pytest.mark.smoke
@settings(max_examples=3 * settings().max_examples)
@given(CALLS)
def test_a_call_has_the_same_answer_over_stdio(with_stdio: dict[str, Plane], call: tuple[str, dict[str, Any]]) -> None:
    check(with_stdio, *call)


@pytest.mark.extension("stdio")
@pytest.mark.slow
@settings(max_examples=800)
@given(CALLS)
def test_many_calls_have_the_same_answer_on_every_plane(
    planes: dict[str, Plane], with_stdio: dict[str, Plane], call: tuple[str, dict[str, Any]]
) -> None:
    check({**planes, **with_stdio}, *call)


@pytest.mark.parametrize("name", ["give", "give_bare", *(f"give_{index}" for index in range(len(ANNOTATIONS)))])
def test_every_value_has_the_same_answer_whatever_the_annotation_says(planes: dict[str, Plane], name: str) -> None:
    some = {plane: planes[plane] for plane in ("process", "mcp-2026")}
    for value in range(len(VALUES)):
        check(some, name, {"value": value})


class Seen(Observation):
    """An observation that may have anything."""

    found: Any = None


class Filled(State):
    """A state that may have anything."""

    found: Any = None


class Filling(MCPEnvironment):
    """Show what it is given at its reset in every place that has no type."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    given: Any = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, given: Blob | None = None) -> Seen:
        self.given = given
        return Seen(found={"in": [given]}, metadata={"in": given}, info={"told": given})

    @property
    def state(self) -> Filled:
        return Filled(found=(self.given, {"data": bytes(self.given.data)}))


@pytest.mark.parametrize("data", [b"hi", b"\xff\xfe"])
def test_bytes_are_base64_text_in_every_place_without_a_type(data: bytes) -> None:
    blob = {"data": base64.urlsafe_b64encode(data).decode(), "name": "blob"}
    with serving(Filling) as url, EnvClient[Any, Seen, Filled](url).sync() as client:
        first = client.reset(given=Blob(data=data))
        assert (first.observation.found, first.observation.metadata) == ({"in": [blob]}, {"in": blob})
        assert first.info["told"] == blob
        assert client.state().found == [blob, {"data": blob["data"]}]
        assert client.trajectory().options["given"] == blob


class Blobs(MCPEnvironment):
    """Return a model where the annotation has another type."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        for number, hint in enumerate(PLACES):
            self.tool(self.returning(hint), name=f"t{number}")

    @staticmethod
    def returning(hint: Any) -> Callable[[bytes], Any]:
        def tool(data: bytes) -> Any:
            """Return it."""
            blob = Blob(data=data)
            return [blob] if typing.get_origin(hint) is list or hint is list else blob

        tool.__annotations__["return"] = hint
        return tool


PLACES: list[Any] = [Any, Blob, dict, dict[str, Any], dict | None, str | dict, list, list[dict], list[Any], list[Blob]]  # type: ignore[type-arg]


@pytest.mark.parametrize("data", [b"hi>", b"\xff\xfe"])
def test_bytes_of_a_model_are_base64_text_whatever_the_annotation(data: bytes) -> None:
    blob = {"data": base64.urlsafe_b64encode(data).decode(), "name": "blob"}
    with Blobs() as env:
        env.reset()
        for number, hint in enumerate(PLACES):
            outcome = env.call_tool(f"t{number}", {"data": blob["data"]})
            assert outcome.error is None, (hint, outcome.error)
            assert outcome.result is not None and json.loads(outcome.text) in (blob, [blob]), hint


class Player:
    """A policy that makes the same calls each time."""

    def __init__(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        self.calls = calls

    def __call__(self, episode: BlockingEpisode) -> None:
        for name, arguments in self.calls:
            episode.call_tool(name, arguments)


def steps_of(trajectory: Trajectory | dict[str, Any]) -> list[Any]:
    """Return the steps of a trajectory without times, incidents and planes."""
    data = trajectory if isinstance(trajectory, dict) else replace(trajectory, observation=None).to_plain()
    steps = json.loads(INCIDENT.sub("", json.dumps(data["steps"])))
    for step in steps:
        step["outcome"].pop("duration_s")
        for name in ("started_at", "scoring_s", "position"):
            step.pop(name, None)
        step["call"].pop("plane")
    return steps  # type: ignore[no-any-return]


@settings(max_examples=settings().max_examples // 4)
@given(calls=st.lists(CALLS, min_size=10, max_size=30))
def test_an_episode_is_the_same_in_a_record_a_pool_and_the_listings_of_the_console(
    recording: tuple[str, Path], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    url, folder = recording
    env = Borders()
    env.reset(seed=1)
    for name, arguments in calls:
        env.call_tool(name, arguments)
    env.end()
    assert env.trajectory is not None
    expected = steps_of(env.trajectory)
    with EnvPool(Borders, 1).sync() as pool:
        (played,) = pool.rollout(Player(calls), [{"seed": 1}])
    assert played.trajectory is not None and steps_of(played.trajectory) == expected
    assert steps_of(pickle.loads(pickle.dumps(played)).trajectory) == expected
    with EnvClient[Any, Any, Any](url).sync() as client:
        episode_id = client.reset(seed=1).info["episode_id"]
        for name, arguments in calls:
            client.call_tool(name, arguments)
        assert steps_of(client.trajectory()) == expected
        (session,) = httpx.get(f"{url}/sessions").json()["sessions"]
        live = httpx.get(f"{url}/sessions/{session['session_id']}/trajectory").json()
        assert steps_of({"steps": live["steps"]}) == expected
        client.end()
    while not (found := httpx.get(f"{url}/records/{episode_id}")).is_success:
        assert found.status_code == 404
    assert steps_of(found.json()["episode"]["trajectory"]) == expected
    (recorded,) = [each for each in read_episodes(folder) if each.id == episode_id]
    assert steps_of(recorded.trajectory) == expected


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("record")
    with serving(Borders, ServerConfig(record=folder)) as url:
        yield url, folder
