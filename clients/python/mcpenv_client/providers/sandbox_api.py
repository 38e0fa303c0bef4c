"""Claims of agent-sandbox, by its client k8s-agent-sandbox. Blocking; imported on use."""

from __future__ import annotations

from typing import Any

import kubernetes.client
import kubernetes.config
import urllib3.exceptions
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.exceptions import SandboxError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig, SandboxInClusterConnectionConfig

from .access import Access
from .kubernetes_api import connect

GROUP, VERSION, POOLS = "extensions.agents.x-k8s.io", "v1beta1", "sandboxwarmpools"

FAILURES = (
    SandboxError,
    kubernetes.client.ApiException,
    kubernetes.config.ConfigException,
    urllib3.exceptions.HTTPError,
    OSError,
)
"""The exceptions that the client raises."""


class Claim:
    """A claimed sandbox.

    Attributes:
        sandbox: the name of the sandbox and of its pod.
    """

    def __init__(self, client: SandboxClient[Any], handle: Any) -> None:
        self._client = client
        self._handle = handle
        self.sandbox = str(handle.sandbox_id)

    def pod_ip(self) -> str | None:
        """Return the address of its pod; None if it has none."""
        ip = self._handle.get_pod_ip()
        return None if ip is None else str(ip)

    def is_ready(self) -> bool:
        """Return True if the sandbox exists and is ready."""
        sandbox = self._client.k8s_helper.get_sandbox(self.sandbox, self._handle.namespace)
        conditions = ((sandbox or {}).get("status") or {}).get("conditions") or []
        return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)

    def run(self, command: str, timeout_s: int) -> tuple[int, str, str]:
        """Run a command by the sandbox's runtime. Return its exit status and both outputs."""
        try:
            done = self._handle.commands.run(command, timeout=timeout_s)
        except RuntimeError as error:  # the answer has another form
            raise SandboxError(str(error)) from error
        return int(done.exit_code), str(done.stdout), str(done.stderr)

    def read(self, name: str) -> bytes:
        """Return a file of the runtime's folder."""
        return bytes(self._handle.files.read(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the runtime's folder."""
        self._handle.files.write(name, content)

    def give_up(self) -> None:
        """Delete the claim, and with it the sandbox. Do nothing if it no longer exists."""
        self._handle.terminate()


def claim(
    access: Access, pool: str, namespace: str, timeout_s: int, lifetime_s: int, port: int = 8888, url: str | None = None
) -> Claim:
    """Claim a sandbox and wait until it is ready. A claim that fails is deleted.

    Args:
        port: the port of its runtime, for `Claim.run`, `Claim.read` and `Claim.write`.
        url: the router to that port; None: the pod's own address.
    """
    client = _client(access, port, url)
    handle = client.create_sandbox(
        pool, namespace=namespace, sandbox_ready_timeout=timeout_s, shutdown_after_seconds=lifetime_s
    )
    return Claim(client, handle)


def has_pool(access: Access, pool: str, namespace: str) -> bool:
    """Return True if there is a warm pool of that name."""
    api = _client(access).k8s_helper.custom_objects_api
    try:
        api.get_namespaced_custom_object(GROUP, VERSION, namespace, POOLS, pool)
    except kubernetes.client.ApiException as error:
        if error.status == 404:
            return False
        raise
    return True


def _client(access: Access, port: int = 8888, url: str | None = None) -> SandboxClient[Any]:
    # A provider connects by itself; for it, this setting only means that no tunnel is needed.
    config: Any = SandboxInClusterConnectionConfig(server_port=port)
    if url is not None:
        config = SandboxDirectConnectionConfig(api_url=url, server_port=port)
    return SandboxClient(connection_config=config, api_client=connect(access)[0])
