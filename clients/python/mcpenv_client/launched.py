"""A client together with the server that a provider starts for it: `Launched`; and providers by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .errors import ProviderUnavailable
from .portal import PORTAL
from .sync import SyncEnvClient

if TYPE_CHECKING:
    from .client import EnvClient
    from .providers.provider import Instance

ENTRY_POINTS = "mcpenv_client.providers"
"""The entry-point group of providers: classes or functions that make one."""

C = TypeVar("C", bound="EnvClient[Any, Any, Any]")


class Instances(Protocol):
    """The source of instances: a `Provider` or a `ProviderPool`."""

    def instance(self) -> AbstractAsyncContextManager[Instance]:
        """Give a ready instance for the block."""
        ...


def provider_named(name: str) -> Callable[..., Instances]:
    """Return the class or function that makes providers of a name, such as ``docker``, from an installed distribution.

    Raises:
        ProviderUnavailable: there is no provider of that name.
    """
    entry = next(iter(entry_points(group=ENTRY_POINTS, name=name)), None)
    if entry is None:
        names = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
        raise ProviderUnavailable(name, [f"no distribution offers this provider; there are: {', '.join(names)}"])
    make: Callable[..., Instances] = entry.load()
    return make


class Launched(Generic[C]):
    """The context manager that starts a server, connects a client to it, and ends both.

    ``async with`` gives the client; ``with launched.sync()`` its blocking form.

    Attributes:
        instance: the server; None outside of the block.

    Args:
        provider: the source of the server.
        make: makes the client from a URL and headers.
    """

    def __init__(self, provider: Instances, make: Callable[[Instance], C]) -> None:
        self._provider = provider
        self._make = make
        self._stack = AsyncExitStack()
        self.instance: Instance | None = None

    async def __aenter__(self) -> C:
        async with AsyncExitStack() as stack:
            self.instance = await stack.enter_async_context(self._provider.instance())
            client = self._make(self.instance)
            await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        return client

    async def __aexit__(self, *exc: Any) -> None:
        self.instance = None
        await self._stack.__aexit__(*exc)

    def sync(self) -> BlockingLaunched:
        """Return the blocking form of this context manager. Use only one of the two forms."""
        return BlockingLaunched(self)


class BlockingLaunched:
    """The blocking form of `Launched`: ``with`` gives a `SyncEnvClient`."""

    def __init__(self, launched: Launched[Any]) -> None:
        self._launched = launched

    @property
    def instance(self) -> Instance | None:
        """The server; None outside of the block."""
        return self._launched.instance

    def __enter__(self) -> SyncEnvClient[Any, Any]:
        client: EnvClient[Any, Any, Any] = PORTAL.call(self._launched.__aenter__)
        return client.sync()

    def __exit__(self, *exc: Any) -> None:
        PORTAL.call(lambda: self._launched.__aexit__(*exc))
