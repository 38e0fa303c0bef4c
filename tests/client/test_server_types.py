"""`SessionInfo` and `ServerCapacityStatus` against a real server: what they read is what the server said, and back."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
from client_servers import in_loop
from pydantic import ValidationError

import mcpenv
import mcpenv_client
from mcpenv import MCPEnvironment, Reward
from mcpenv.server import AgentTokens, ConcurrencyConfig, ServerConfig, serving
from mcpenv_client import (
    ConnectionFailed,
    EnvClient,
    EpisodeState,
    Mode,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    Unauthorized,
)


class Scored(MCPEnvironment):
    """One tool, scored in two parts."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def act() -> str:
            return "done"

    def score(self, call: object, outcome: object) -> Reward:
        return Reward(0.75, {"right": 1.0, "long": -0.25})


@pytest.fixture(
    params=[pytest.param(1, id="alone"), pytest.param(2, marks=pytest.mark.extension("workers"), id="workers")]
)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(Scored, concurrency=ConcurrencyConfig(max_concurrent_envs=4), workers=request.param) as address:
        yield address


def test_the_models_have_all_that_a_server_answers(url: str) -> None:
    with EnvClient(url).sync() as one, EnvClient(url).sync() as other:
        one.reset(episode_id="mine")
        one.call_tool("act")
        other.connect()
        # Both connect on entering: which instance is made first is not said.
        first, second = sorted(one.sessions(), key=lambda session: session.episode_id is None)
        capacity = one.capacity()
        documents = httpx.get(f"{url}/sessions").json()["sessions"]
        documents.sort(key=lambda document: document["episode_id"] is None)
        assert [first.to_plain(), second.to_plain()] == documents
        assert [SessionInfo.model_validate(each) for each in documents] == [first, second]
        assert httpx.get(f"{url}/sessions/{first.session_id}").json() == documents[0]
        assert httpx.get(f"{url}/capacity").json() == capacity.to_plain()
    assert (first.environment_type, first.origin, first.mode, first.planes) == (
        "Scored",
        "socket",
        Mode.SIMULATION,
        ["control"],
    )
    assert (first.episode_id, first.state, first.step_count, first.busy) == ("mine", EpisodeState.RUNNING, 1, False)
    assert (first.total_reward, first.reward) == (0.75, Reward(0.75, {"right": 1.0, "long": -0.25}))
    assert (second.state, second.reward) == (EpisodeState.NEW, None)
    assert capacity == ServerCapacityStatus(active_sessions=2, max_sessions=4)
    assert (capacity.available_slots, capacity.is_at_capacity, capacity.ready) == (2, False, True)


def test_the_json_has_the_names_of_the_wire(url: str) -> None:
    with EnvClient(url).sync() as client:
        client.reset()
        (session,) = httpx.get(f"{url}/sessions").json()["sessions"]
        capacity = httpx.get(f"{url}/capacity").json()
    names = "session_id created_at last_activity_at step_count environment_type origin mode planes episode_id state"
    assert session.keys() == {
        *names.split(),
        "busy",
        "task",
        "return",
        "reward",
        "status",
        "agent",
        "paused_until",
        "unwritten",
    }
    assert capacity == {
        "active_sessions": 1,
        "max_sessions": 4,
        "available_slots": 3,
        "waiting": 0,
        "quarantined": 0,
        "ready": True,
        "reason": None,
    }


@pytest.mark.extension("api_docs")
def test_the_openapi_document_describes_them_by_their_fields(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()

    def check(method: str, path: str, answered: httpx.Response) -> None:
        response = document["paths"][path][method]["responses"][str(answered.status_code)]
        schema = {**response["content"]["application/json"]["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answered.json())

    with EnvClient(url).sync() as client:
        client.reset()
        client.call_tool("act")
        check("get", "/sessions", httpx.get(f"{url}/sessions"))
        check("get", "/capacity", httpx.get(f"{url}/capacity"))
        opened = httpx.post(f"{url}/sessions")
        check("post", "/sessions", opened)
        one = f"{url}/sessions/{opened.json()['session_id']}"
        check("get", "/sessions/{session_id}", httpx.get(one))
        check("delete", "/sessions/{session_id}", httpx.delete(one))
        check("get", "/sessions/{session_id}", httpx.get(one))
    schemas = document["components"]["schemas"]
    for cls in (SessionInfo, ServerCapacityStatus):
        assert (
            schemas[cls.__name__]["properties"].keys()
            == cls.model_json_schema(mode="serialization")["properties"].keys()
        )
    sessions = document["paths"]["/sessions"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert sessions["properties"]["sessions"]["items"] == {"$ref": "#/components/schemas/SessionInfo"}


@in_loop
async def test_the_async_client_has_them_too() -> None:
    with serving(Scored, max_concurrent_envs=1) as url:
        async with EnvClient(url) as client:
            (session,) = await client.sessions()
            assert session.state == EpisodeState.NEW
            assert (await client.capacity()).is_at_capacity


def test_they_need_the_control_token() -> None:
    config = ServerConfig(control_token="a-secret-token")
    with serving(Scored, config, auth=AgentTokens({"t": "agent-token"})) as url:
        with pytest.raises(Unauthorized):
            EnvClient(url).sync().capacity()
        assert EnvClient(url, headers={"Authorization": "Bearer a-secret-token"}).sync().sessions() == []


def test_a_server_in_production_has_no_such_routes() -> None:
    with serving(Scored, mode=ServerMode.PRODUCTION) as url:
        client = EnvClient(url).sync()
        for ask in (client.sessions, client.capacity):
            with pytest.raises(ConnectionFailed, match="HTTP 404"):
                ask()


def test_ages_are_seconds_by_the_clock_given_and_never_negative() -> None:
    session = SessionInfo(
        session_id="s",
        created_at=100.0,
        last_activity_at=130.0,
        environment_type="E",
        origin="http",
        mode=Mode.SIMULATION,
        planes=["control"],
        state="running",
        busy=False,
        total_reward=0.5,
    )
    assert (session.age_s(140.0), session.idle_s(140.0)) == (40.0, 10.0)
    assert (session.age_s(99.5), session.idle_s(99.5)) == (0.0, 0.0)
    assert session.age_s() > session.idle_s() > 0
    busy = session.model_copy(update={"busy": True})
    assert busy.idle_s(140.0) == 0.0
    assert SessionInfo.model_validate(session.to_plain()) == session
    with pytest.raises(ValidationError):
        session.busy = True


def test_capacity_keeps_no_slots_below_zero() -> None:
    over = ServerCapacityStatus(active_sessions=3, max_sessions=2)
    assert (over.available_slots, over.is_at_capacity) == (0, True)
    assert ServerCapacityStatus.model_validate(over.to_plain()) == over


def test_a_server_that_takes_no_new_sessions_has_no_slots() -> None:
    unready = ServerCapacityStatus(active_sessions=1, max_sessions=4, ready=False, reason="this server is about to end")
    assert (unready.available_slots, unready.is_at_capacity) == (0, True)
    assert unready.to_plain()["available_slots"] == 0


def test_the_names_of_the_seeds_are_public() -> None:
    assert ServerMode is Mode is mcpenv.Mode is mcpenv_client.ServerMode
