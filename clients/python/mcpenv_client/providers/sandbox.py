"""Servers in sandboxes of kubernetes-sigs/agent-sandbox: `SandboxProvider`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from mcpenv_client.errors import InstanceFailed

from .access import Access
from .blocking import in_thread
from .provider import Capabilities, Instance, Provider

if TYPE_CHECKING:
    from .sandbox_api import Claim

POLL_S = 0.5
"""Seconds between two requests to the API server about a sandbox."""


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
        claim = await in_thread(self._claim)
        try:
            ip = await in_thread(self._pod_ip, claim)
            if ip is None:
                raise InstanceFailed(f"sandbox {claim.sandbox}", "it has no address")
            yield SandboxInstance(self, claim, self.address(claim.sandbox, ip), self._control_token)
        finally:
            await in_thread(self._give_up, claim)

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

    def is_ready(self, claim: Claim) -> bool:
        """Return True if a sandbox exists and is ready. Blocking.

        Raises:
            InstanceFailed: the API server refused, or did not answer.
        """
        from .sandbox_api import FAILURES

        try:
            return claim.is_ready()
        except FAILURES as error:
            raise InstanceFailed(f"sandbox {claim.sandbox}", f"the cluster refused: {_text(error)}") from error

    def _missing(self) -> list[str]:
        from .sandbox_api import FAILURES, has_pool

        try:
            if has_pool(self.access, self.pool, self.namespace):
                return []
        except FAILURES as error:
            return [f"no cluster answers ({_text(error)}); set KUBECONFIG, or run this in a pod"]
        return [
            f"there is no SandboxWarmPool {self.pool} in the namespace {self.namespace}; "
            "write one by mcpenv deploy k8s TARGET --sandbox"
        ]

    def _claim(self) -> Claim:
        from .sandbox_api import FAILURES, claim

        try:
            return claim(self.access, self.pool, self.namespace, int(self.start_timeout_s), self.lifetime_s)
        except FAILURES as error:
            raise InstanceFailed(f"pool {self.pool}", f"no sandbox could be claimed: {_text(error)}") from error

    def _pod_ip(self, claim: Claim) -> str | None:
        from .sandbox_api import FAILURES

        try:
            return claim.pod_ip()
        except FAILURES as error:
            raise InstanceFailed(f"sandbox {claim.sandbox}", f"the cluster refused: {_text(error)}") from error

    def _give_up(self, claim: Claim) -> None:
        from .sandbox_api import FAILURES

        try:
            claim.give_up()
        except FAILURES as error:
            raise InstanceFailed(f"sandbox {claim.sandbox}", f"it could not be given up: {_text(error)}") from error


class SandboxInstance(Instance):
    """A server in a sandbox.

    Attributes:
        sandbox: the sandbox's name.
    """

    def __init__(self, provider: SandboxProvider, claim: Claim, url: str, control_token: str | None) -> None:
        super().__init__(f"sandbox {claim.sandbox}", url, control_token)
        self.sandbox = claim.sandbox
        self._provider = provider
        self._claim = claim
        self._ready = True
        self._asked = time.monotonic()

    async def is_running(self) -> bool:
        """Return True if the sandbox is ready. It sends at most two requests per second to the API server."""
        now = time.monotonic()
        if now - self._asked >= POLL_S:
            self._ready = await in_thread(self._provider.is_ready, self._claim)
            self._asked = now
        return self._ready

    async def logs(self) -> str:
        """Return an empty text: a claim gives no access to the output of its sandbox."""
        return ""


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
