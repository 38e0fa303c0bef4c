"""The blocking clients under the names of the async ones, so that what is shown of these is shown of those."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mcpenv_client import EnvClient, GenericEnvClient

THREADS = ThreadPoolExecutor(256, thread_name_prefix="caller")


class InThreads:
    """A blocking `EnvClient`: each call waits in a thread of its own."""

    of: Any = EnvClient

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sync = self.of(*args, **kwargs).sync()

    def __class_getitem__(cls, item: Any) -> Any:
        return type(cls.__name__, (cls,), {"of": cls.of[item]})

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.sync, name)
        if name.startswith("_") or not inspect.isroutine(attribute):
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await in_a_thread(lambda: attribute(*args, **kwargs))

        return call

    async def __aenter__(self) -> Any:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class GenericInThreads(InThreads):
    """A blocking `GenericEnvClient`."""

    of = GenericEnvClient


async def in_a_thread(call: Any) -> Any:
    """What it returns."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, call)


async def closed_by_the_server(client: EnvClient[Any, Any, Any] | InThreads) -> None:
    """Until the client's socket knows that the server has closed it."""
    connection: Any = client._connection
    assert connection is not None
    if isinstance(client, EnvClient):
        await connection._socket.wait_closed()
        return

    def look() -> None:
        while connection._socket.is_open:
            connection._socket._until_readable(0.1)
            connection.tend(0.0)

    await in_a_thread(look)
