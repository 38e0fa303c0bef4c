"""Servers in sandboxes of kubernetes-sigs/agent-sandbox: `SandboxProvider`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar

from mcpenv_client.errors import InstanceFailed

from .access import Access
from .blocking import in_thread
from .provider import Capabilities, Instance, Provider, one_line

if TYPE_CHECKING:
    from .sandbox_api import Claim

T = TypeVar("T")

POLL_S = 0.5
"""Seconds between two requests to the API server about a sandbox."""

REFUSED = "the cluster refused"


class SandboxProvider(Provider):
    """The provider of sandboxes, claimed from a warm pool in the cluster, and released with the block.

    ``mcpenv deploy k8s TARGET --sandbox`` writes the pool and its template. The pool creates sandboxes ahead of need,
    so that `ProviderPool` is not needed.

    A claim does not end when its owner process is killed. agent-sandbox ends it after ``lifetime_s``.

    Args:
        pool: the name of the SandboxWarmPool.
        namespace: its namespace.
        context: another context of the kubeconfig.
        kubeconfig: the path of a kubeconfig; ``KUBECONFIG``, or ``~/.kube/config``, by default.
        control_token: the control token in the Secret of its sandboxes.
        url: the address of a sandbox's control plane, with ``{pod_ip}``, ``{name}`` and ``{namespace}``. The default
            works if pod addresses are reachable, as inside the cluster.
        lifetime_s: seconds after which a claim ends by itself.
        start_timeout_s: maximum seconds until the server of a claim is ready.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(isolated=True, limits=True, remote=True)

    def __init__(
        self,
        pool: str,
        *,
        namespace: str = "default",
        context: str | None = None,
        kubeconfig: str | None = None,
        control_token: str | None = None,
        url: str = "http://{pod_ip}:8001",
        lifetime_s: int = 86400,
        start_timeout_s: float = 180.0,
    ) -> None:
        super().__init__(start_timeout_s=start_timeout_s)
        self.pool = pool
        self.namespace = namespace
        self.access = Access(context, kubeconfig)
        self._control_token = control_token
        self.url = url
        self.lifetime_s = lifetime_s
        self.address("name", "127.0.0.1")  # an unknown field is refused here

    async def missing(self) -> list[str]:
        """Return a sentence if there is no client, no cluster, or no such pool."""
        if importlib.util.find_spec("k8s_agent_sandbox") is None:
            return [
                "the client of agent-sandbox is not installed; run: pip install 'mcpenv-client[agent-sandbox]' "
                "(Python 3.11 or later)"
            ]
        return await in_thread(self._missing)

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[SandboxInstance]:
        """Claim a sandbox, and release it with the block."""
        claim = await _asked(f"pool {self.pool}", "no sandbox could be claimed", self._claim)
        name = f"sandbox {claim.sandbox}"
        try:
            ip = await _asked(name, REFUSED, claim.pod_ip)
            if ip is None:
                raise InstanceFailed(name, "it has no address")
            yield SandboxInstance(claim, self.address(claim.sandbox, ip), self._control_token)
        finally:
            await _asked(name, "it could not be given up", claim.give_up)

    def address(self, name: str, ip: str) -> str:
        """Return the address of a sandbox.

        Raises:
            ValueError: ``url`` has an unknown field.
        """
        host = f"[{ip}]" if ":" in ip else ip
        try:
            return self.url.format(pod_ip=host, name=name, namespace=self.namespace)
        except (KeyError, IndexError) as error:
            raise ValueError(f"url {self.url!r}: {error} is none of pod_ip, name and namespace") from error

    def _missing(self) -> list[str]:
        from .sandbox_api import FAILURES, has_pool

        try:
            if has_pool(self.access, self.pool, self.namespace):
                return []
        except FAILURES as error:
            return [f"no cluster answers ({one_line(error)}); set KUBECONFIG, or run this in a pod"]
        return [
            f"there is no SandboxWarmPool {self.pool} in the namespace {self.namespace}; "
            "write one by mcpenv deploy k8s TARGET --sandbox"
        ]

    def _claim(self) -> Claim:
        from .sandbox_api import claim

        return claim(self.access, self.pool, self.namespace, int(self.start_timeout_s), self.lifetime_s)


class SandboxInstance(Instance):
    """A server in a sandbox.

    Attributes:
        sandbox: the sandbox's name.
    """

    def __init__(self, claim: Claim, url: str, control_token: str | None) -> None:
        super().__init__(f"sandbox {claim.sandbox}", url, control_token)
        self.sandbox = claim.sandbox
        self._claim = claim
        self._ready = True
        self._asked = time.monotonic()

    async def is_running(self) -> bool:
        """Return True if the sandbox is ready. It sends at most two requests per second to the API server."""
        now = time.monotonic()
        if now - self._asked >= POLL_S:
            self._ready = await _asked(self.name, REFUSED, self._claim.is_ready)
            self._asked = now
        return self._ready

    async def logs(self) -> str:
        """Return an empty text: a claim gives no access to the output of its sandbox."""
        return ""


async def _asked(what: str, failure: str, call: Callable[[], T]) -> T:
    """Return the result of a call to the API server, made in a thread.

    Raises:
        InstanceFailed: the API server refused, or did not answer.
    """
    from .sandbox_api import FAILURES

    try:
        return await in_thread(call)
    except FAILURES as error:
        raise InstanceFailed(what, f"{failure}: {one_line(error)}") from error
