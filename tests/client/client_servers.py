"""Small WebSocket servers for the client's tests: real sockets, no mcpenv."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from mcpenv_client.wire.protocol import Frame, FrameType, decode_frame, encode_reply

Handler = Callable[[ServerConnection], Awaitable[None]]
T = TypeVar("T")

LIMIT_S = 30.0
"""No test waits longer for anything."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **kwargs), LIMIT_S)

        asyncio.run(bounded())

    return run


async def frames(socket: ServerConnection) -> AsyncIterator[str]:
    """The frames of a client until it closes the session. Unless a server ends then, the client waits for seconds."""
    async for text in socket:
        if decode_frame(text).type is FrameType.CLOSE:
            return
        yield str(text)


@asynccontextmanager
async def server(handler: Handler, **options: Any) -> AsyncIterator[str]:
    """The http address of a server that runs ``handler`` for each connection."""
    async with serve(handler, "127.0.0.1", 0, compression=None, **options) as running:
        port = next(iter(running.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"


@contextmanager
def server_in_thread(handler: Handler, **options: Any) -> Iterator[str]:
    """The same in a thread, for blocking clients."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test server", daemon=True)
    thread.start()
    running = server(handler, **options)

    def call(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(LIMIT_S)

    try:
        yield call(_entered(running))
    finally:
        call(_left(running))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


async def _entered(manager: Any) -> str:
    url: str = await manager.__aenter__()
    return url


async def _left(manager: Any) -> None:
    await manager.__aexit__(None, None, None)


def observation(body: dict[str, Any] | None = None, **data: Any) -> str:
    """An observation frame."""
    return encode_reply("observation", {"observation": body or {}, "reward": None, "done": False, **data})


def said(text: str, **data: Any) -> str:
    """An observation frame of a tool that returned ``text``."""
    result = {"content": [{"type": "text", "text": text}], "structured_content": {"result": text}, "data": text}
    return observation(
        {"tool_name": "echo", "result": {**result, "is_error": False, "meta": None}, "error": None}, **data
    )


def refused(code: str, message: str = "no", **data: Any) -> str:
    """An error frame."""
    return encode_reply("error", {"message": message, "code": code, **data})


def until(reached: Callable[[], bool]) -> None:
    """Look again and again; another thread is on its way there."""
    waited = threading.Event()
    for _ in range(int(LIMIT_S / 0.001)):
        if reached():
            return
        waited.wait(0.001)
    raise AssertionError("it was not reached")


class Echo:
    """A server of one tool, ``echo``; it knows who called and in which order.

    Attributes:
        frames: the types of the frames that came.
        echoed: what was echoed.
        ended: a socket has ended, and all that came by it was read.
        connections: sockets that were opened.
        paths: what they asked for.
        headers: the headers of their handshakes, by name in lower case.
    """

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.echoed: list[Any] = []
        self.connections = 0
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.closed = 0
        self.ended = threading.Event()

    async def __call__(self, socket: ServerConnection) -> None:
        self.connections += 1
        assert socket.request is not None
        self.paths.append(socket.request.path)
        self.headers.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        steps = 0
        try:
            async for text in socket:
                frame = decode_frame(text)
                self.frames.append(frame.type.value)
                if frame.type is FrameType.CLOSE:
                    break
                if frame.type is FrameType.RESET:
                    steps = 0
                    info = {"episode_id": frame.data.get("episode_id") or f"episode-{self.connections}"}
                    await socket.send(observation(info=info))
                elif frame.type is FrameType.STATE:
                    await socket.send(encode_reply("state", {"episode_id": "e", "step_count": steps}))
                elif frame.data.get("type") == "list_tools":
                    await socket.send(observation({"tools": [{"name": "echo", "description": "", "input_schema": {}}]}))
                else:
                    steps += 1
                    word = frame.data["arguments"]["word"]
                    self.echoed.append(word)
                    await socket.send(said(word, reward=float(steps)))
        except ConnectionClosed:
            pass
        finally:
            self.closed += 1
            self.ended.set()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def until_goodbye(socket: ServerConnection) -> AsyncIterator[Frame]:
    """The frames that come, without the last: a server that does not end then is waited for."""
    async for text in socket:
        frame = decode_frame(text)
        if frame.type is FrameType.CLOSE:
            return
        yield frame


class Patient:
    """A server whose tool ``hold`` is answered when ``release`` is called; others at once. Counts what ran."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.ran: list[str] = []
        self._waiting: list[tuple[ServerConnection, str | None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, socket: ServerConnection) -> None:
        self._loop = asyncio.get_running_loop()
        async for frame in until_goodbye(socket):
            if frame.type is FrameType.STEP:
                word = frame.data["arguments"].get("word", "")
                self.ran.append(word)
                if frame.data["tool_name"] == "hold":
                    self._waiting.append((socket, frame.request_id))
                    self.held.set()
                    continue
                await socket.send(named(said(word), frame.request_id))
            else:
                await socket.send(named(observation(), frame.request_id))

    def release(self) -> None:
        """Answer what is held."""
        assert self._loop is not None
        for held, request_id in self._waiting:
            answer = named(said("held"), request_id)
            asyncio.run_coroutine_threadsafe(held.send(answer), self._loop).result(LIMIT_S)
        self._waiting.clear()


def named(text: str, request_id: str | None) -> str:
    """A frame's text, with a request id."""
    return text if request_id is None else text[:-1] + f',"request_id":"{request_id}"}}'
