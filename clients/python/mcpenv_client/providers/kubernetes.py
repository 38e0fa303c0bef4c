"""Servers in pods of a cluster: `KubernetesProvider`."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mcpenv_client.errors import InstanceFailed

from .access import Access
from .blocking import in_thread
from .provider import Capabilities, Instance, Provider, one_line

if TYPE_CHECKING:
    from .kubernetes_api import Cluster, PodState

T = TypeVar("T")

POLL_S = 0.5
"""Seconds between two requests to the API server about a pod."""


class KubernetesProvider(Provider):
    """The provider of pods: one for each instance, deleted with its block.

    The image's entrypoint must accept options of ``mcpenv run``, as in images from ``mcpenv build``. A pod is not root,
    has no capabilities, no service account, and is read-only but for ``/tmp``. Its control token is in a Secret of its
    own, which the pod mounts as a file.

    A pod does not end when its owner process is killed. The next use of a `KubernetesProvider` of the same user on that
    machine deletes it; Kubernetes ends it after ``lifetime_s``.

    The cluster is the one of the kubeconfig's current context, or of the pod in which this process runs.

    Args:
        image: the image, at a registry that the cluster reaches.
        namespace: the namespace; by default the context's namespace.
        context: another context of the kubeconfig.
        kubeconfig: the path of a kubeconfig; ``KUBECONFIG``, or ``~/.kube/config``, by default.
        url: the address at which this process and agents reach a pod, with ``{pod_ip}``, ``{name}``, ``{namespace}``
            and ``{port}``. The default works if pod addresses are reachable, as inside the cluster.
        port: the port that the server listens on.
        options: further options of ``mcpenv run``, such as ``["--set=size=3"]``.
        env: environment variables. Any user who may read pods can read them.
        env_from: names of Secrets; their keys become environment variables, such as the manifest's secrets.
        memory: the request and the limit of memory.
        cpu: the request of processors; the limit is twice that.
        runtime_class: the RuntimeClass, such as ``gvisor``.
        labels: further labels of the pod.
        spec: further fields of the pod's spec, such as ``{"nodeSelector": {...}}``. They take precedence.
        require_handle: True to serve agents only at the address of an episode.
        control_token: the control token of every pod; by default each has its own.
        lifetime_s: seconds after which Kubernetes ends a pod.
        start_timeout_s: maximum seconds until a pod is ready, including scheduling and pulling.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(isolated=True, limits=True, remote=True)

    def __init__(
        self,
        image: str,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        url: str = "http://{pod_ip}:{port}",
        port: int = 8000,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        env_from: Sequence[str] = (),
        memory: str = "1Gi",
        cpu: float = 0.5,
        runtime_class: str | None = None,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        require_handle: bool = True,
        control_token: str | None = None,
        lifetime_s: int = 86400,
        start_timeout_s: float = 180.0,
    ) -> None:
        super().__init__(start_timeout_s=start_timeout_s)
        self.image = image
        self.namespace = namespace
        self.access = Access(context, kubeconfig)
        self.url = url
        self.port = port
        self.options = tuple(options)
        self.env = dict(env or {})
        self.env_from = tuple(env_from)
        self.memory = memory
        self.cpu = cpu
        self.runtime_class = runtime_class
        self.labels = dict(labels or {})
        self.spec = dict(spec or {})
        self.require_handle = require_handle
        self._control_token = control_token
        self.lifetime_s = lifetime_s
        self.address("name", "namespace", "127.0.0.1")  # an unknown field is refused here

    async def missing(self) -> list[str]:
        """Return a sentence if there is no client, no cluster, or no permission to create pods."""
        if importlib.util.find_spec("kubernetes") is None:
            return ["the kubernetes client is not installed; run: pip install 'mcpenv-client[kubernetes]'"]
        return await in_thread(self._missing)

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[KubernetesInstance]:
        """Create a pod, and delete it with the block."""
        name, token = f"mcpenv-{secrets.token_hex(6)}", self._control_token or secrets.token_urlsafe(24)
        await self.remove_orphans()
        try:
            namespace = await in_thread(self.ask, lambda cluster: self._start(cluster, name, token), f"pod {name}")
            ip = await self._address_of(name)
            yield KubernetesInstance(self, name, self.address(name, namespace, ip), token)
        finally:
            await in_thread(self.ask, lambda cluster: cluster.remove(name), name)

    async def remove_orphans(self) -> list[str]:
        """Delete the pods of killed owners of this machine and user, and expired pods. Return their names."""
        return await in_thread(self.ask, lambda cluster: cluster.remove_orphans(), "the cluster")

    def address(self, name: str, namespace: str, ip: str) -> str:
        """Return the address of a pod.

        Raises:
            ValueError: ``url`` has an unknown field.
        """
        host = f"[{ip}]" if ":" in ip else ip
        try:
            return self.url.format(pod_ip=host, name=name, namespace=namespace, port=self.port)
        except (KeyError, IndexError) as error:
            raise ValueError(f"url {self.url!r}: {error} is none of pod_ip, name, namespace and port") from error

    def ask(self, function: Callable[[Cluster], T], what: str) -> T:
        """Return the result of a function that uses the cluster. Blocking.

        Raises:
            InstanceFailed: the API server refused, or did not answer.
        """
        from .kubernetes_api import FAILURES, cluster

        try:
            with cluster(self.access, self.namespace) as connected:
                return function(connected)
        except FAILURES as error:
            raise InstanceFailed(what, f"the cluster refused: {one_line(error)}") from error

    def _missing(self) -> list[str]:
        from .kubernetes_api import FAILURES, cluster

        try:
            with cluster(self.access, self.namespace) as connected:
                if connected.may_create_pods():
                    return []
                return [
                    f"this account may not create pods in the namespace {connected.namespace}; give it a Role that may "
                    "create, get, list and delete pods, create and delete secrets, and get pods/log"
                ]
        except FAILURES as error:
            return [f"no cluster answers ({one_line(error)}); set KUBECONFIG, choose a context, or run this in a pod"]

    def _start(self, cluster: Cluster, name: str, token: str) -> str:
        """Create a pod and return its namespace."""
        cluster.start(self, name, token)
        return cluster.namespace

    async def _address_of(self, name: str) -> str:
        """Return the address of a pod, once it has one.

        Raises:
            InstanceFailed: it will not run, or is not scheduled within ``start_timeout_s`` seconds.
        """
        end = time.monotonic() + self.start_timeout_s
        while True:
            state: PodState = await in_thread(self.ask, lambda cluster: cluster.state(name), name)
            if state.failure is not None:
                log = await in_thread(self.ask, lambda cluster: cluster.logs(name), name)
                raise InstanceFailed(f"pod {name}", state.failure, log)
            if state.ip is not None:
                return state.ip
            if time.monotonic() >= end:
                why = "" if state.pending is None else f": {state.pending}"
                raise InstanceFailed(f"pod {name}", f"it had no address after {self.start_timeout_s:g} s{why}")
            await asyncio.sleep(POLL_S)


class KubernetesInstance(Instance):
    """A server in a pod.

    Attributes:
        pod: the pod's name.
    """

    def __init__(self, provider: KubernetesProvider, pod: str, url: str, control_token: str) -> None:
        super().__init__(f"pod {pod}", url, control_token)
        self.pod = pod
        self._provider = provider
        self._state: PodState | None = None
        self._asked = 0.0

    async def is_running(self) -> bool:
        """Return True if the pod runs, or may still start.

        It sends at most two requests per second to the API server.
        """
        now = time.monotonic()
        if self._state is not None and now - self._asked < POLL_S:
            return self._state.failure is None
        state: PodState = await in_thread(self._provider.ask, lambda cluster: cluster.state(self.pod), self.name)
        self._state, self._asked = state, now
        return state.failure is None

    async def logs(self) -> str:
        """Return the end of the output of the server and the environment, and the reason why the pod does not run."""
        log = await in_thread(self._provider.ask, lambda cluster: cluster.logs(self.pod), self.name)
        failure = None if self._state is None else self._state.failure
        return "\n".join(part for part in (log, failure) if part)
