"""The generation: the process that loads an author's code once, serves it, and ends when the next one is ready."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import getattr_static
from pathlib import Path

from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.http.gc_tuning import tuned_gc
from mcpenv.server.serve import Listening, Served, address_of
from mcpenv.server.uvicorn_server import Ending, HTTPServer, at_ending_signals, loop_factory, serve_doors, settings_of

from .author_files import is_authors
from .dev_events import DevEvents
from .failure import Failure, failure_of
from .fault_page import fault_application
from .fork_server import Start
from .messages import (
    Admit,
    Broken,
    End,
    Failed,
    Loading,
    Message,
    Ready,
    Serving,
    StopAccepting,
    Stopped,
    received,
    send,
)

FINISH_S = 1.0
"""Maximum seconds for answering HTTP requests; then new sessions are refused, and requests of sessions are awaited."""

IDLE_S = 0.25
"""Seconds that a connection may take to send a request. Its client cannot know that it will be closed."""

LOOK_S = 0.02
"""Seconds between two checks of the open connections."""

ORPHAN_S = 1.5
"""Seconds after which a generation without a fork server ends unconditionally."""

FAILED = 1
"""The exit status of a generation that did not load, or lost its fork server."""


@dataclass(frozen=True)
class Loaded:
    """The loaded environment, and its introduction.

    Attributes:
        config: according to the options and the manifest, which may have changed.
        name: the environment's.
        addresses: returns URLs by purpose, for the ports of the agent plane and of the control plane.
        introduce: called as `mcpenv.server.serve.OnStarted`, by the first generation that serves.
    """

    served: Served
    config: ServerConfig
    name: str
    addresses: Callable[[int, int], Mapping[str, str]]
    introduce: Callable[[int, int, bool], None]


class FaultEnding:
    """Ends the servers of a failure to load. Like `Ending`, but without sessions to finish."""

    def __init__(self, servers: Sequence[HTTPServer], admitted: asyncio.Future[bool]) -> None:
        self._servers = servers
        self._admitted = admitted

    def begin(self) -> None:
        """End, even if the servers were never admitted."""
        for server in self._servers:
            server.should_exit = True
        if not self._admitted.done():
            self._admitted.set_result(False)

    def at_signals(self) -> contextlib.AbstractContextManager[None]:
        """End at Ctrl-C, SIGTERM and SIGHUP."""
        return at_ending_signals(lambda _: self.begin())


class Generation:
    """The generation in its process.

    Args:
        doors: the listening socket of agents, and the control plane's socket if it is separate.
        root: the watched folder.
    """

    def __init__(self, start: Start, listening: Listening, doors: Sequence[socket.socket], root: Path) -> None:
        self._start = start
        self._pipe = start.pipe
        self._listening = listening
        self._doors = list(doors)
        self._root = root
        self._events = DevEvents()
        self._inherited = frozenset(sys.modules)
        self._loop: asyncio.AbstractEventLoop | None = None  # set once messages can be processed
        self._servers: list[HTTPServer] = []
        self._ending: Ending | FaultEnding
        self._admitted: asyncio.Future[bool]
        self._accepting = asyncio.Event()
        self._making_room: asyncio.Task[None] | None = None

    def serve(self, load: Callable[[], Loaded]) -> int:
        """Load and serve until the fork server or a signal ends it; return the exit status."""
        # Bytecode has timestamps in seconds: it could not distinguish two changes in one second.
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        threading.Thread(target=self._listen, name="mcpenv-generation", daemon=True).start()
        try:
            loaded = load()
            # The environment's FastMCP server may authenticate agents. This is known only once the environment is
            # loaded.
            self._listening.check(loaded.config, agents_need_token=None if loaded.served.auth is None else True)
            with asyncio.Runner(loop_factory=loop_factory()) as runner, tuned_gc(forked=True):
                runner.run(self._serve(loaded))
        except (Exception, SystemExit) as error:
            if self._loop is not None:
                raise
            failure = failure_of(error, self._root)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve_failure(failure))
            return FAILED
        return 0

    async def _serve_failure(self, failure: Failure) -> None:
        """Report why the code does not load.

        If no other code is served, answer requests with the failure until other code is.
        """
        local = self._listening.is_local
        applications = [fault_application(failure, local=local) for _ in self._doors]
        self._servers = [HTTPServer(settings_of(app, ServerConfig())) for app in applications]
        self._admitted = asyncio.get_running_loop().create_future()
        self._ending = ending = FaultEnding(self._servers, self._admitted)
        with ending.at_signals():
            self._loop = asyncio.get_running_loop()
            host, port = self._listening.host, self._doors[0].getsockname()[1]
            send(self._pipe, Failed(failure=failure, url=f"http://{address_of(host, port)}"))
            if await self._admitted:
                self._accepting.set()
                doors = zip(self._servers, self._doors, strict=True)
                await asyncio.gather(*(server.serve_at(door, lambda: None) for server, door in doors))

    async def _serve(self, loaded: Loaded) -> None:
        served = loaded.served
        config = self._listening.with_address(loaded.config, self._doors)
        server = EnvServer(
            served.env_factory,
            config=replace(config, extensions=(self._events.extension, *config.extensions)),
            readme=served.readme,
            auth=served.auth,
        )

        def need_token() -> bool:
            return server.agent_server.auth is not None

        def check() -> None:
            self._listening.check(loaded.config, agents_need_token=need_token())

        async with server.running(check=check):
            applications = server.applications(split=len(self._doors) > 1)
            self._servers = [HTTPServer(settings_of(app, server.config)) for app in applications]
            self._admitted = asyncio.get_running_loop().create_future()
            self._ending = ending = Ending(server, self._servers, on_draining=self._release)
            with ending.at_signals():
                self._loop = asyncio.get_running_loop()
                send(self._pipe, Ready())
                if await self._admitted:
                    doors = list(zip(self._servers, self._doors, strict=True))
                    await serve_doors(server, doors, lambda: self._started(loaded, need_token()))

    def _started(self, loaded: Loaded, agents_need_token: bool) -> None:
        self._accepting.set()
        start, took_s = self._start, time.monotonic() - self._start.began
        self._events.reloaded(
            server=start.server,
            generation=start.number,
            changed=start.changed,
            took_s=took_s if start.changed else None,
        )
        ports = [door.getsockname()[1] for door in self._doors]
        if start.first:
            loaded.introduce(ports[0], ports[-1], agents_need_token)
        sources, modules = self._imported()
        send(
            self._pipe,
            Serving(
                name=loaded.name,
                addresses=dict(loaded.addresses(ports[0], ports[-1])),
                took_s=took_s,
                sources=sources,
                modules=modules,
            ),
        )

    def _imported(self) -> tuple[list[str], list[str]]:
        """Return the author's files that were imported, and the names of the other modules."""
        sources, modules = [], []
        for name, module in list(sys.modules.items()):
            if name in self._inherited:
                continue
            file = getattr_static(module, "__file__", None)  # a module may answer for any name, or raise
            if isinstance(file, str) and is_authors(file, self._root):
                sources.append(file)
            elif file is not None:
                modules.append(name)
        return sources, modules

    # -- messages of the fork server

    def _listen(self) -> None:
        """Pass messages on to the event loop. Runs in a thread, which ends the process if the fork server is gone."""
        while (messages := received(self._pipe, wait=True)) is not None:
            for message in messages:
                self._pass(message)
        self._pass(End())
        threading.Event().wait(ORPHAN_S)  # the process usually ends meanwhile
        os._exit(FAILED)

    def _pass(self, message: Message) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._handle, message)

    def _handle(self, message: Message) -> None:
        match message:
            case Admit() if not self._admitted.done():
                self._admitted.set_result(True)
            case End():
                self._ending.begin()
            case StopAccepting():
                self._making_room = asyncio.ensure_future(self._make_room())
            case Loading():
                self._events.loading(message.changed)
            case Broken():
                self._events.failed(message.changed, asdict(message.failure))

    def _release(self) -> None:
        """Skip serving if the end comes before the admission."""
        if not self._admitted.done():
            self._admitted.set_result(False)

    async def _make_room(self) -> None:
        """Stop accepting connections, answer pending requests, and end.

        Sessions are refused after this has finished. Until then every accepted request is answered as usual.
        """
        await self._accepting.wait()  # another change may come before this one is served
        for server in self._servers:
            server.stop_accepting()
        send(self._pipe, Stopped())
        self._events.stop()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + FINISH_S:
            idle = loop.time() >= began + IDLE_S
            if not sum(server.retire_connections(idle=idle) for server in self._servers):
                break
            await asyncio.sleep(LOOK_S)
        self._ending.begin()
