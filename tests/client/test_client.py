"""`EnvClient` against real WebSocket servers: what it sends, what it gives back, and how it loses a session."""

from __future__ import annotations

import asyncio
import gc
import http
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import pytest
from client_servers import Echo, free_port, in_loop, observation, refused, said, server, server_in_thread
from strategies import Rich, RichObservation, RichState
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import OPEN

from mcpenv_client import (
    PROTOCOL_VERSION,
    Action,
    AnyObservation,
    CallToolAction,
    CallToolObservation,
    CapacityReached,
    ConnectionFailed,
    EnvClient,
    ErrorCode,
    FactoryError,
    GenericEnvClient,
    InvalidJSON,
    InvalidMessage,
    ListingFailed,
    ListToolsAction,
    ListToolsObservation,
    NotSerializable,
    Observation,
    SessionLost,
    State,
    StepResult,
    ToolErrorType,
    Unauthorized,
    UnsupportedVersion,
    WireError,
    errors,
)
from mcpenv_client.connection.addresses import http_base, is_loopback, without_password, ws_url
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import FrameType, decode_frame, encode_action, encode_reply, observation_data

T = TypeVar("T", bound=Observation)


class Script:
    """A server that answers each frame with the next of ``replies``, and keeps the frames.

    A reply is a frame's text, or a callable that is given the socket.
    """

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.frames: list[dict[str, Any]] = []
        self.headers: Headers | None = None
        self.gone = asyncio.Event()

    async def __call__(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers = socket.request.headers
        try:
            async for text in socket:
                frame = json.loads(text)
                self.frames.append(frame)
                if frame["type"] == "close":
                    return
                reply = self.replies.pop(0)
                if callable(reply):
                    await reply(socket)
                else:
                    await socket.send(reply)
        finally:
            self.gone.set()


@asynccontextmanager
async def scripted(*replies: Any, client: Any = EnvClient, **options: Any) -> AsyncIterator[tuple[Any, Script]]:
    """A client, and the script that it talks to."""
    script = Script(*replies)
    async with server(script) as url, client(url, **options) as connected:
        yield connected, script


async def closed_by_the_server(client: EnvClient[Any, Any, Any]) -> None:
    """Return once the client's socket knows that the server has closed it."""
    connection: Any = client._session.connection
    await connection._socket.wait_closed()


async def hang(socket: ServerConnection) -> None:
    """Answer nothing until the client goes."""
    await socket.wait_closed()


# -- what is sent


@in_loop
async def test_frames_are_those_of_the_wire() -> None:
    listing = observation({"tools": [{"name": "t", "input_schema": {}}]})
    state = encode_reply("state", {"episode_id": "e", "step_count": 2})
    async with scripted(observation(), said("a"), said("b"), listing, state) as (client, script):
        await client.reset(seed=3, episode_id="e", level="hard")
        await client.step(CallToolAction(tool_name="echo", arguments={"word": "a"}), timeout_s=5)
        await client.call_tool("echo", {"word": "b"})
        await client.list_tools()
        await client.state()
    await script.gone.wait()
    call = {"type": "call_tool", "tool_name": "echo"}
    assert script.frames == [
        {"type": "reset", "data": {"level": "hard", "seed": 3, "episode_id": "e"}},
        {"type": "step", "data": {**call, "arguments": {"word": "a"}}, "timeout_s": 5},
        {"type": "step", "data": {**call, "arguments": {"word": "b"}}},
        {"type": "step", "data": {"type": "list_tools"}},
        {"type": "state"},
        {"type": "close"},
    ]


@in_loop
async def test_a_reset_without_arguments_sends_none() -> None:
    async with scripted(observation()) as (client, script):
        await client.reset()
    assert script.frames[0] == {"type": "reset", "data": {}}


@in_loop
async def test_what_has_no_json_form_is_not_sent_and_costs_nothing() -> None:
    async with scripted(said("x")) as (client, script):
        with pytest.raises(NotSerializable, match=r"arguments\.x"):
            await client.call_tool("t", {"x": float("nan")})
        with pytest.raises(NotSerializable, match=r"options\.level"):
            await client.reset(level=object())
        with pytest.raises(TypeError, match="not a list"):
            await client.step([])
        assert (await client.call_tool("t")).text == "x"
        assert len(script.frames) == 1


@in_loop
async def test_headers_and_the_protocol_version_are_sent_at_the_handshake() -> None:
    echo = Echo()
    async with server(echo) as url, EnvClient(url) as client:
        await client.reset()
    assert echo.paths == [f"/ws?protocol={PROTOCOL_VERSION}"]
    async with scripted(observation(), headers={"Authorization": "Bearer t"}) as (client, script):
        await client.reset()
        assert script.headers is not None
        assert script.headers["authorization"] == "Bearer t"


# -- what comes back


@in_loop
async def test_a_tools_observation_without_types() -> None:
    async with scripted(said("hi", reward=0.5, info={"return": 0.5}, terminated=True, done=True)) as (client, _):
        result = await client.call_tool("echo")
    assert isinstance(result, StepResult)
    assert isinstance(result.observation, CallToolObservation)
    assert (result.reward, result.terminated, result.truncated, result.done) == (0.5, True, False, True)
    assert (result.text, result.error, result.info) == ("hi", None, {"return": 0.5})


@in_loop
async def test_a_tools_failure_is_data() -> None:
    failed = observation({"tool_name": "t", "result": None, "error": {"error_type": "timeout", "message": "slow"}})
    async with scripted(failed) as (client, _):
        result = await client.call_tool("t")
    assert result.error.error_type is ToolErrorType.TIMEOUT
    assert result.text == "slow"


@in_loop
async def test_observations_without_types_are_what_they_look_like() -> None:
    frames = [
        observation({"x": 1}, reward=1),
        observation({"tools": [{"name": "t", "input_schema": {}}]}),
        observation({"tools": ["hammer"]}),
        observation({"tool_name": "t", "result": "plain text"}),
        observation({}, metadata={"a": 1}),
        encode_reply("state", {"episode_id": None, "step_count": 0, "more": [1]}),
    ]
    async with scripted(*frames) as (client, _):
        seen = [(await client.step({"x": 1})).observation for _ in frames[:-1]]
        state = await client.state()
    assert [type(one) for one in seen] == [
        AnyObservation,
        ListToolsObservation,
        AnyObservation,
        AnyObservation,
        AnyObservation,
    ]
    assert (seen[0].x, seen[2].tools, seen[3].result, seen[4].metadata) == (1, ["hammer"], "plain text", {"a": 1})
    assert (type(state), state.more) == (State, [1])


class Seen(Observation):
    x: int


class Hidden(State):
    secret: bytes = b""


class BySubclass(EnvClient[Action, Seen, Hidden]):
    """Typed by a subclass, with a method of its own."""

    async def look(self) -> Seen:
        return (await self.step({"look": True})).observation  # type: ignore[arg-type]


class ByHand(EnvClient[int, str, float]):
    """Typed by overriding, as OpenEnv's clients are."""

    def _step_payload(self, action: int) -> dict[str, Any]:
        return {"by": action}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[str]:
        return StepResult(
            observation=f"at {payload['observation']['x']}", reward=payload["reward"], done=payload["done"]
        )

    def _parse_state(self, payload: dict[str, Any]) -> float:
        half: float = payload["step_count"] / 2
        return half


TYPED_FRAMES = [
    observation({"x": 1}),
    observation({}),
    said("hi"),
    encode_reply("state", {"secret": "_w=="}),
]


@pytest.mark.parametrize("client_class", [BySubclass, EnvClient[Action, Seen, Hidden]])
def test_types_by_subclass_and_by_parameters(client_class: Any) -> None:
    @in_loop
    async def body() -> None:
        async with scripted(*TYPED_FRAMES, client=client_class) as (client, _):
            assert (await client.step({"look": True})).observation == Seen(x=1)
            # A reset may answer without an observation of its own.
            assert (await client.reset()).observation == Observation()
            assert type((await client.call_tool("echo")).observation) is CallToolObservation
            assert await client.state() == Hidden(secret=b"\xff")

    body()


@in_loop
async def test_types_by_overriding() -> None:
    frames = [observation({"x": 1}, done=True), observation({"x": 2}), encode_reply("state", {"step_count": 3})]
    async with scripted(*frames, client=ByHand) as (client, script):
        result = await client.step(4)
        assert (result.observation, result.done, result.terminated, result.text) == ("at 1", True, True, "")
        # A tool call is none of the actions that _step_payload knows.
        assert (await client.call_tool("t")).observation == "at 2"
        assert await client.state() == 1.5
    assert [frame.get("data") for frame in script.frames[:2]] == [
        {"by": 4},
        encode_action(CallToolAction(tool_name="t")),
    ]


@in_loop
async def test_own_methods_of_a_subclass() -> None:
    async with scripted(observation({"x": 7}), client=BySubclass) as (client, _):
        assert (await client.look()).x == 7


@in_loop
async def test_an_own_observation_with_every_kind_of_field() -> None:
    sent = RichObservation(data=b"\xff", grid=[[0.5]], text="t", reward=1.0)
    state = RichState(data=b"\x00", step_count=2)
    frames = [
        encode_reply("observation", observation_data(sent)),
        encode_reply("state", to_plain(state)),
    ]
    async with scripted(*frames, client=EnvClient[Rich, RichObservation, RichState]) as (client, script):
        assert (await client.step(Rich(required=1, data=b"\xfe"))).observation == sent
        assert await client.state() == state
    assert script.frames[0]["data"]["data"] == "_g=="


@in_loop
async def test_the_generic_client_gives_dicts() -> None:
    frames = [
        observation({"x": 1}, done=True, reward=2, info={"a": 1}),
        said("hi"),
        observation({"tool_name": "t", "result": None, "error": {"error_type": "timeout", "message": "slow"}}),
        observation({"tool_name": "t", "error": "of its own kind"}),
        observation({"tools": [{"name": "t", "input_schema": {}}]}),
        encode_reply("state", {"a": 1}),
    ]
    async with scripted(*frames, client=GenericEnvClient) as (client, script):
        result = await client.step({"type": "move", "by": 1})
        assert (result.observation, result.reward, result.info) == ({"x": 1}, 2, {"a": 1})
        assert (result.terminated, result.done, result.text, result.error) == (True, True, "", None)
        said_ = await client.call_tool("t")
        assert said_.observation["result"]["data"] == "hi"
        assert (said_.text, said_.error) == ("hi", None)
        failed = await client.step(CallToolAction(tool_name="t"))
        assert failed.error is not None
        assert failed.error.message == failed.text == "slow"
        assert (await client.call_tool("t")).error is None
        assert [tool.name for tool in await client.list_tools()] == ["t"]
        assert await client.state() == {"a": 1}
    assert script.frames[0]["data"] == {"type": "move", "by": 1}


def test_classes_that_cannot_be_read_are_refused_with_what_to_do() -> None:
    @in_loop
    async def body() -> None:
        for wrong in (EnvClient[Any, dict[str, Any], State], EnvClient[Any, str, State], EnvClient[Any, State, State]):
            async with scripted(observation({"x": 1}), client=wrong) as (client, _):
                with pytest.raises(TypeError, match="GenericEnvClient"):
                    await client.reset()

    body()


def test_type_parameters_are_found_through_generic_subclasses() -> None:
    class Half(EnvClient[Action, T, Hidden], Generic[T]):
        pass

    class Whole(Half[Seen]):
        pass

    class Further(Whole):
        pass

    for client in (Half[Seen]("http://h"), Whole("http://h"), Further("http://h")):
        assert client._types() == (Seen, Hidden)
    for bare in (EnvClient("http://h"), Half("http://h"), EnvClient[Any, Any, Any]("http://h")):  # type: ignore[var-annotated]
        assert bare._types()[0] is AnyObservation


@in_loop
async def test_an_openenv_server_that_never_says_terminated_or_info() -> None:
    """The frames of openenv/core/env_server/serialization.py, version 0.10."""

    def reply(body: dict[str, Any], reward: Any, done: bool) -> str:
        data: dict[str, Any] = {"observation": {**body, "metadata": {"m": 1}}, "reward": reward, "done": done}
        return json.dumps({"type": "observation", "data": {**data, "metadata": {"m": 1}}})

    result = {"content": [{"type": "text", "text": "4"}], "structured_content": {"result": 4}, "meta": None, "data": 4}
    frames = [
        reply({"echoed": "ready"}, None, False),
        reply({"tool_name": "add", "result": {**result, "is_error": False}, "error": None}, 1, False),
        reply({"tools": [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]}, None, False),
        reply({"echoed": "end"}, True, True),
        json.dumps({"type": "error", "data": {"message": "boom", "code": "EXECUTION_ERROR"}}),
        json.dumps({"type": "state", "data": {"episode_id": "e", "step_count": 3, "extra": 1}}),
    ]
    async with scripted(*frames) as (client, _):
        assert (await client.reset()).observation.echoed == "ready"
        added = await client.call_tool("add", {"a": 2, "b": 2})
        assert (added.reward, added.text, added.observation.result.data, added.done) == (1.0, "4", 4, False)
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        end = await client.step({"message": "bye"})
        assert (end.reward, end.terminated, end.truncated, end.done, end.info) == (1.0, True, False, True, {})
        assert end.observation.metadata == {"m": 1}
        with pytest.raises(errors.ExecutionError, match="boom"):
            await client.step({})
        assert (await client.state()).step_count == 3


# -- refusals


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_wire_code_raises_its_class(code: ErrorCode) -> None:
    @in_loop
    async def body() -> None:
        async with scripted(refused(code.value, "why", incident="1a"), observation()) as (client, _):
            with pytest.raises(WireError) as error:
                await client.reset()
            assert type(error.value).code is code
            assert type(error.value) is not WireError
            assert (error.value.message, error.value.data) == ("why", {"incident": "1a"})

    body()


@pytest.mark.parametrize(
    "code", ["VALIDATION_ERROR", "EXECUTION_ERROR", "EPISODE_DONE", "TIMEOUT", "CANCELLED", "NEW_ONE"]
)
def test_the_session_goes_on_after_a_refusal(code: str) -> None:
    @in_loop
    async def body() -> None:
        async with scripted(refused(code), said("still here")) as (client, _):
            with pytest.raises(WireError):
                await client.call_tool("t")
            assert (await client.call_tool("t")).text == "still here"

    body()


@in_loop
async def test_the_reason_of_a_close_is_said_once() -> None:
    async def leaving(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1013, "no room")

    async with server(leaving) as url, EnvClient(url) as client:
        with pytest.raises(SessionLost, match=r"ended: 1013 \(try again later\) no room$"):
            await client.reset()


@pytest.mark.parametrize(("code", "error"), [("CAPACITY_REACHED", CapacityReached), ("FACTORY_ERROR", FactoryError)])
@pytest.mark.parametrize("client_waits", [False, True])
@pytest.mark.parametrize("resume", [False, True])
def test_a_refusal_right_after_accept_is_raised_by_the_first_call(
    code: str, error: Any, client_waits: bool, resume: bool
) -> None:
    @in_loop
    async def body() -> None:
        async def full(socket: ServerConnection) -> None:
            await socket.send(refused(code, "full", retry_after_s=2))
            await socket.close(1013)

        async with server(full) as url:
            client = EnvClient(url, resume=resume)
            await client.connect()
            if client_waits:
                # The close has arrived: nothing can be sent any more, but what the server said is still there.
                await closed_by_the_server(client)
            for _ in range(2):
                with pytest.raises(error, match="full") as refusal:
                    await (client.call_tool("t") if client._session.connection is not None else client.reset())
                assert refusal.value.data == {"retry_after_s": 2}
                # reset() asks again, in a new session.
                await client.close()
                client = EnvClient(url, resume=resume)
            await client.close()

    body()


@in_loop
async def test_a_refusal_that_another_caller_reads_is_raised_by_the_one_whose_send_came_too_late() -> None:
    connections = 0

    async def full(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        # Both in one piece: when the first caller is woken by the refusal, nothing more can be sent.
        socket.protocol.send_text(refused("CAPACITY_REACHED", "full").encode())
        socket.protocol.send_close(1013)
        socket.transport.write(b"".join(socket.protocol.data_to_send()))
        await socket.wait_closed()

    async with server(full) as url:
        client = EnvClient(url, resume=True)
        await client.connect()
        connection: Any = client._session.connection
        socket = connection._socket
        first = asyncio.create_task(client.call_tool("t"))
        while socket.state is OPEN:
            await asyncio.sleep(0)
        assert not first.done()
        with pytest.raises(CapacityReached, match="full"):
            await client.call_tool("t")
        with pytest.raises(CapacityReached, match="full"):
            await first
        await client.close()
    assert connections == 1


@in_loop
async def test_reset_asks_again_after_a_full_server() -> None:
    slots = iter([False, False, True])

    async def sometimes_full(socket: ServerConnection) -> None:
        if next(slots):
            await Echo()(socket)
        else:
            await socket.send(refused("CAPACITY_REACHED", "full", retry_after_s=0.01))
            await socket.close(1013)

    async with server(sometimes_full) as url, EnvClient(url) as client:
        refusals = 0
        while True:
            try:
                await client.reset()
                break
            except CapacityReached as full:
                refusals += 1
                assert full.retry_after_s == 0.01
        # The refusal of the first connection may be passed over: reset() finds the socket closed and asks anew.
        assert refusals in (1, 2)
        assert (await client.call_tool("echo", {"word": "in"})).text == "in"


@in_loop
async def test_an_unsupported_version_ends_the_session() -> None:
    async with scripted(refused("UNSUPPORTED_VERSION", "2.0 here", protocol="2.0")) as (client, _):
        with pytest.raises(UnsupportedVersion) as error:
            await client.reset()
        assert error.value.data == {"protocol": "2.0"}
        with pytest.raises(SessionLost, match=r"2\.0 here"):
            await client.call_tool("t")


@in_loop
async def test_the_servers_protocol_version_is_kept() -> None:
    async with scripted('{"type":"observation","data":{"observation":{}},"protocol":"1.4"}') as (client, _):
        await client.reset()
        assert client._session.connection.protocol == "1.4"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("no json", InvalidJSON),
        ("[]", InvalidMessage),
        ('{"type": "observation"}', InvalidMessage),
        (encode_reply("state", {}), InvalidMessage),
        (observation(reward="much"), InvalidMessage),
        ('{"type": "observation", "data": {}}', InvalidMessage),
        ('{"type": "observation", "data": {"observation": [1]}}', InvalidMessage),
        (b"\xff\x00", InvalidJSON),
    ],
)
@pytest.mark.parametrize("client_class", [EnvClient, GenericEnvClient])
def test_an_answer_that_is_none_is_an_error(reply: Any, error: type[WireError], client_class: Any) -> None:
    if client_class is not EnvClient and "much" in str(reply):
        return  # a dict client passes on what came

    @in_loop
    async def body() -> None:
        async with scripted(reply, client=client_class) as (client, _):
            with pytest.raises(error):
                await client.step({"a": 1})

    body()


@in_loop
async def test_an_answer_to_something_else_ends_the_session() -> None:
    async with scripted(encode_reply("state", {}), observation()) as (client, _):
        with pytest.raises(InvalidMessage, match="'state'"):
            await client.call_tool("t")
        with pytest.raises(SessionLost, match="'state'"):
            await client.call_tool("t")


@in_loop
async def test_an_observation_or_a_state_of_another_class_is_named() -> None:
    frames = [observation({"y": 1}), encode_reply("state", {"step_count": -1})]
    async with scripted(*frames, client=BySubclass) as (client, _):
        with pytest.raises(InvalidMessage, match=r"no Seen: x: Field required") as wrong:
            await client.step({"a": 1})
        assert ["x"] in [fault["loc"] for fault in wrong.value.errors]
        with pytest.raises(InvalidMessage, match="no Hidden: step_count"):
            await client.state()


@in_loop
async def test_a_failed_listing_is_not_an_empty_one() -> None:
    frames = [
        observation({"tools": []}),
        observation({}),
        observation({"tools": None}),
        observation({"tools": [{}]}),
        refused("EXECUTION_ERROR"),
    ]
    async with scripted(*frames) as (client, _):
        assert await client.list_tools() == []
        for _ in range(3):
            with pytest.raises(ListingFailed):
                await client.list_tools()
        with pytest.raises(errors.ExecutionError):
            await client.list_tools()


# -- losing a session


@in_loop
async def test_a_reply_that_does_not_come_loses_the_session_and_reset_begins_another() -> None:
    echo, lost = Echo(), asyncio.Event()

    async def first_hangs(socket: ServerConnection) -> None:
        if echo.connections == 0:
            echo.connections += 1
            await hang(socket)
            lost.set()
        else:
            await echo(socket)

    async with server(first_hangs) as url, EnvClient(url, message_timeout_s=0.05) as client:
        with pytest.raises(SessionLost, match=r"within 0\.05 s"):
            await client.call_tool("echo", {"word": "lost"})
        await lost.wait()  # the server sees it too: its step can be cancelled
        for call in (client.call_tool("echo", {"word": "x"}), client.state(), client.list_tools(), client.step({})):
            with pytest.raises(SessionLost, match="within"):
                await call
        assert echo.connections == 1
        assert (await client.reset()).info == {"episode_id": "episode-2"}
        assert (await client.call_tool("echo", {"word": "found"})).text == "found"
        assert echo.echoed == ["found"]


@in_loop
async def test_a_steps_own_deadline_is_the_servers_to_keep() -> None:
    async def late(socket: ServerConnection) -> None:
        await asyncio.sleep(0.2)
        await socket.send(refused("TIMEOUT", "too slow"))

    async with scripted(late, message_timeout_s=0.05) as (client, script):
        with pytest.raises(errors.OperationTimeout, match="too slow"):
            await client.call_tool("t", timeout_s=0.1)
        assert script.frames[0]["timeout_s"] == 0.1


@in_loop
async def test_a_server_that_closes_in_the_middle_of_a_step_loses_the_session() -> None:
    async def restart(socket: ServerConnection) -> None:
        await socket.close(1012, "restart")

    async with scripted(observation(), restart) as (client, _):
        await client.reset()
        with pytest.raises(SessionLost, match="1012"):
            await client.call_tool("t")
        with pytest.raises(SessionLost, match="1012"):
            await client.state()


@in_loop
async def test_a_server_that_vanishes_loses_the_session() -> None:
    async def vanish(socket: ServerConnection) -> None:
        socket.transport.abort()

    async with scripted(vanish) as (client, _):
        with pytest.raises(SessionLost):
            await client.call_tool("t")


@in_loop
async def test_a_server_that_closed_between_two_calls_is_noticed() -> None:
    echo = Echo()

    async def once(socket: ServerConnection) -> None:
        await socket.send(said(decode_frame(await socket.recv()).data["arguments"]["word"]))

    async def first_once(socket: ServerConnection) -> None:
        echo.connections += 1
        await (once(socket) if echo.connections == 1 else echo(socket))

    async with server(first_once) as url, EnvClient(url) as client:
        await client.call_tool("echo", {"word": "a"})
        await closed_by_the_server(client)
        with pytest.raises(SessionLost):
            await client.call_tool("echo", {"word": "b"})
        assert echo.connections == 1  # nobody asked for another session
        await client.reset()
        assert (await client.call_tool("echo", {"word": "c"})).text == "c"


@in_loop
async def test_a_frame_larger_than_allowed_loses_the_session() -> None:
    async with scripted(said("x" * 2_000), max_message_bytes=1_000) as (client, _):
        with pytest.raises(SessionLost, match="1009"):
            await client.call_tool("t")


@in_loop
async def test_a_dead_peer_is_found_by_pings() -> None:
    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await socket.wait_closed()

    async with server(deaf, close_timeout=0.1) as url:
        client = EnvClient(url, ping_interval_s=0.05, ping_timeout_s=0.05, connect_timeout_s=0.5)
        with pytest.raises(SessionLost, match="keepalive"):
            await client.call_tool("t")
        await client.close()


@in_loop
async def test_a_cancelled_caller_loses_the_session() -> None:
    asked = asyncio.Event()

    async def ask_and_hang(socket: ServerConnection) -> None:
        asked.set()
        await hang(socket)

    async with scripted(ask_and_hang, said("never")) as (client, script):
        call = asyncio.ensure_future(client.call_tool("t"))
        waiting = asyncio.ensure_future(client.call_tool("u"))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(SessionLost, match="cancelled"):
            await waiting
        await script.gone.wait()
        assert len(script.frames) == 1


@in_loop
async def test_a_caller_cancelled_before_its_turn_costs_nothing() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(socket: ServerConnection) -> None:
        asked.set()
        await go_on.wait()
        await socket.send(said("first"))

    async with scripted(slow, said("second")) as (client, script):
        first = asyncio.ensure_future(client.call_tool("a"))
        queued = asyncio.ensure_future(client.call_tool("b"))
        await asked.wait()
        queued.cancel()
        go_on.set()
        assert (await first).text == "first"
        assert (await client.call_tool("c")).text == "second"
        assert [frame["data"]["tool_name"] for frame in script.frames] == ["a", "c"]


# -- connecting and closing


@in_loop
async def test_a_refused_connection_is_named() -> None:
    port = free_port()
    client = EnvClient(f"http://user:secret@127.0.0.1:{port}")
    for call in (client.connect, client.reset, client.state):
        with pytest.raises(ConnectionFailed) as failed:
            await call()
        assert f"ws://127.0.0.1:{port}/ws" in str(failed.value)
        assert "secret" not in str(failed.value)
    await client.close()


@in_loop
async def test_a_server_that_does_not_answer_the_handshake() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match=r"within 0\.05 s"):
            await EnvClient(f"http://127.0.0.1:{port}", connect_timeout_s=0.05).connect()


@in_loop
async def test_a_server_that_speaks_no_http() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        writer.close()

    async with await asyncio.start_server(rude, "127.0.0.1", 0) as mail:
        port = mail.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed):
            await EnvClient(f"http://127.0.0.1:{port}").connect()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, b"not here", ConnectionFailed),
        (401, b"", Unauthorized),
        (401, b'{"code": "UNAUTHORIZED", "message": "token"}', Unauthorized),
        (503, b'{"code": "CAPACITY_REACHED", "message": "full", "retry_after_s": 1}', CapacityReached),
        (500, b'["no object"]', ConnectionFailed),
    ],
)
def test_a_handshake_refused_over_http(status: int, body: bytes, error: type[Exception]) -> None:
    @in_loop
    async def answer() -> None:
        def refuse(socket: ServerConnection, request: Request) -> Response:
            headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
            return Response(status, http.HTTPStatus(status).phrase, headers, body)

        async with server(hang, process_request=refuse) as url:
            with pytest.raises(error, match=r"HTTP|token|full"):
                await EnvClient(url).connect()

    answer()


def test_proxies_are_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)

    @in_loop
    async def body() -> None:
        async with server(Echo()) as url, EnvClient(url) as client:
            await client.reset()

    body()


@in_loop
async def test_close_twice_and_leaving_after_close() -> None:
    echo = Echo()
    async with server(echo) as url:
        client = EnvClient(url)
        await client.close()  # never opened
        async with client:
            await client.reset()
            await client.close()
            await client.close()
            with pytest.raises(SessionLost, match="closed"):
                await client.call_tool("echo", {"word": "x"})
        assert echo.frames == ["reset", "close"]
        assert (await client.reset()).info == {"episode_id": "episode-2"}
        await client.close()
        assert echo.connections == 2


@in_loop
async def test_connect_opens_one_session_for_all_who_ask_at_once() -> None:
    echo = Echo()
    async with server(echo) as url:
        client = EnvClient(url)
        await asyncio.gather(*(client.connect() for _ in range(10)))
        await client.connect()
        assert echo.connections == 1
        await client.close()


@in_loop
async def test_steps_of_many_tasks_keep_their_order() -> None:
    echo = Echo()
    async with server(echo) as url, EnvClient(url) as client:
        await client.reset()
        steps = [client.call_tool("echo", {"word": f"w{index}"}) for index in range(200)]
        results = await asyncio.gather(*steps)
    words = [f"w{index}" for index in range(200)]
    assert [result.text for result in results] == words == echo.echoed
    assert [result.reward for result in results] == [float(index + 1) for index in range(200)]


def test_a_client_outlives_its_event_loop_as_a_lost_session() -> None:
    with server_in_thread(Echo()) as url:
        client = EnvClient(url)

        @in_loop
        async def first() -> None:
            await client.reset()
            # No close: the loop just ends, as after asyncio.run().
            connection: Any = client._session.connection
            connection._socket.transport.abort()

        @in_loop
        async def second() -> None:
            with pytest.raises(SessionLost, match="event loop"):
                await client.call_tool("echo", {"word": "x"})
            await client.reset()
            await client.close()

        first()
        second()


@in_loop
async def test_two_event_loops_at_once_are_a_mistake_that_is_named() -> None:
    async with server(Echo()) as url, EnvClient(url) as client:
        await client.reset()
        with pytest.raises(RuntimeError, match="two event loops"):
            await asyncio.to_thread(asyncio.run, client.state())
        await client.state()


def test_a_client_that_is_dropped_closes_its_socket_and_says_so() -> None:
    echo = Echo()

    @in_loop
    async def body() -> None:
        async with server(echo) as url:
            client = EnvClient(url)
            await client.reset()
            with pytest.warns(ResourceWarning, match="not closed"):
                del client
                gc.collect()
            while not echo.closed:
                await asyncio.sleep(0)

    body()


def test_nothing_is_left_open() -> None:
    @in_loop
    async def body() -> None:
        async with server(Echo()) as url:
            client = EnvClient(url)
            await client.reset()
            await client.close()
            lost = EnvClient(url, message_timeout_s=1e-9)
            with pytest.raises(SessionLost):
                await lost.reset()
            with pytest.raises(ConnectionFailed):
                await EnvClient(f"http://127.0.0.1:{free_port()}").connect()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert len(left) <= 1  # in_loop's own

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        body()
        gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, ClientConnection) and one.state == 1]


# -- addresses


@pytest.mark.parametrize(
    ("given", "base", "socket"),
    [
        ("http://h:1", "http://h:1", "ws://h:1/ws"),
        ("https://h/", "https://h", "wss://h/ws"),
        ("ws://h:1/ws", "http://h:1", "ws://h:1/ws"),
        ("wss://h/prefix/ws/", "https://h/prefix", "wss://h/prefix/ws"),
        ("http://[::1]:8/env?x=1#y", "http://[::1]:8/env", "ws://[::1]:8/env/ws"),
    ],
)
def test_addresses(given: str, base: str, socket: str) -> None:
    assert EnvClient(given).base_url == http_base(given) == base
    assert ws_url(given) == f"{socket}?protocol={PROTOCOL_VERSION}"


@pytest.mark.parametrize(
    "given", ["", "h:1", "ftp://h", "http://", "http:///x", "http://h:port", "http://h:99999", "/ws"]
)
def test_what_is_no_address_is_refused_at_once(given: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        EnvClient(given)


def test_this_machine_and_passwords_in_addresses() -> None:
    local = ["http://127.0.0.1", "ws://localhost:1/ws", "http://[::1]:2", "http://127.8.9.1"]
    local += ["http://[::ffff:127.0.0.1]:1", "http://[::ffff:7f00:1]"]
    other = ["http://127.0.0.1.example.com", "http://my-localhost.example.com", "http://10.0.0.1", "http://a@b"]
    other += ["http://[::ffff:10.0.0.1]", "http://[::ffff]"]
    assert [is_loopback(url) for url in local + other] == [True] * 6 + [False] * 6
    assert without_password("ws://u:p@h:1/ws?x=1") == "ws://h:1/ws?x=1"


# -- HTTP


@asynccontextmanager
async def http_server(status: int, body: bytes) -> AsyncIterator[str]:
    def answer(socket: ServerConnection, request: Request) -> Response:
        return Response(status, "x", Headers({"Content-Length": str(len(body)), "Connection": "close"}), body)

    async with server(hang, process_request=answer) as url:
        yield url


@in_loop
async def test_metadata_and_schema_are_read_over_http() -> None:
    async with http_server(200, b'{"name": "echo"}') as url:
        assert await EnvClient(url).metadata() == await EnvClient(url).schema() == {"name": "echo"}


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"no json", InvalidMessage),
        (200, b"[]", InvalidMessage),
        (404, b"", ConnectionFailed),
        (500, b'{"code": "EXECUTION_ERROR", "message": "m"}', errors.ExecutionError),
        (401, b"{}", Unauthorized),
        (307, b"", ConnectionFailed),
    ],
)
def test_http_refusals_have_the_same_classes(status: int, body: bytes, error: type[Exception]) -> None:
    @in_loop
    async def ask() -> None:
        async with http_server(status, body) as url:
            with pytest.raises(error):
                await EnvClient(url).metadata()

    ask()


@in_loop
async def test_http_without_a_server() -> None:
    with pytest.raises(ConnectionFailed):
        await EnvClient(f"http://127.0.0.1:{free_port()}").metadata()


def test_close_is_a_frame_of_its_own() -> None:
    assert decode_frame('{"type": "close"}').type is FrameType.CLOSE
    assert encode_action(ListToolsAction()) == {"type": "list_tools"}
