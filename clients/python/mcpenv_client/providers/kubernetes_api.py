"""The API server of a cluster, by the kubernetes client. Blocking; imported on use."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes.client
import kubernetes.config
import urllib3.exceptions

from .access import Access
from .owned import is_orphan
from .pod import CONTAINER, LABEL, pod_body, secret_body

if TYPE_CHECKING:
    from .kubernetes import KubernetesProvider

FAILURES = (
    kubernetes.client.ApiException,
    kubernetes.config.ConfigException,
    urllib3.exceptions.HTTPError,
    OSError,
)
"""The exceptions of a call to the API server, or of reading its address."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The file of a pod with its namespace."""

LOG_LINES = 30
STOP_TIMEOUT_S = 10
"""Seconds for a pod to end by itself."""

REQUEST_TIMEOUT_S = 30.0
_HOPELESS = {
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}
"""The reasons of a waiting container that waiting does not resolve.

A container that lacks its Secret has a different reason.
"""

_RAW: dict[str, Any] = {"_preload_content": False, "_request_timeout": REQUEST_TIMEOUT_S}
"""The options of a call to return its answer as bytes: the client's models differ between versions."""


@dataclass(frozen=True)
class PodState:
    """The state of a pod.

    Attributes:
        phase: Pending, Running, Succeeded, Failed or Unknown.
        ip: its address; None until it has one.
        failure: the reason why it will not run, or no longer runs; None if it may.
        pending: the reason why it is not scheduled yet; None if it is scheduled, or the reason is unknown.
    """

    phase: str
    ip: str | None = None
    failure: str | None = None
    pending: str | None = None


class Cluster:
    """A connection to an API server, for one operation at a time.

    Attributes:
        namespace: the namespace of all its operations.
    """

    def __init__(self, api: kubernetes.client.ApiClient, namespace: str) -> None:
        self._api = api
        self._core = kubernetes.client.CoreV1Api(api)
        self.namespace = namespace

    def may_create_pods(self) -> bool:
        """Return True if this account may create pods here."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace, "verb": "create", "resource": "pods"}},
        }
        api = kubernetes.client.AuthorizationV1Api(self._api)
        answered = _json(api.create_self_subject_access_review(review, **_RAW))
        return bool((answered.get("status") or {}).get("allowed"))

    def start(self, provider: KubernetesProvider, name: str, token: str) -> None:
        """Create a pod and the Secret that the pod waits for."""
        body = pod_body(provider, name, self.namespace)
        pod = _json(self._core.create_namespaced_pod(self.namespace, body, **_RAW))
        self._core.create_namespaced_secret(self.namespace, secret_body(provider, name, token, pod), **_RAW)

    def state(self, name: str) -> PodState:
        """Return the state of a pod."""
        try:
            pod = _json(self._core.read_namespaced_pod(name, self.namespace, **_RAW))
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return PodState("Unknown", failure="the pod is gone")
            raise
        return _state_of(pod)

    def logs(self, name: str) -> str:
        """Return the end of a pod's output; empty if there is none."""
        try:
            answered = self._core.read_namespaced_pod_log(
                name, self.namespace, container=CONTAINER, tail_lines=LOG_LINES, **_RAW
            )
        except kubernetes.client.ApiException as error:
            if error.status in (400, 404):  # it has not started, or is gone
                return ""
            raise
        return bytes(answered.data).decode("utf-8", "replace").strip()

    def remove(self, name: str) -> None:
        """Delete a pod and its Secret. Do nothing if they do not exist."""
        deletions: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
            (self._core.delete_namespaced_pod, {"grace_period_seconds": STOP_TIMEOUT_S}),
            (self._core.delete_namespaced_secret, {}),
        )
        for delete, options in deletions:
            try:
                delete(name, self.namespace, **options, **_RAW)
            except kubernetes.client.ApiException as error:
                if error.status != 404:
                    raise

    def remove_orphans(self) -> list[str]:
        """Delete the pods of ended owners, and finished pods. Return their names."""
        selector = f"{LABEL}=kubernetes"
        listed = _json(self._core.list_namespaced_pod(self.namespace, label_selector=selector, **_RAW))
        removed = []
        for pod in listed.get("items") or []:
            metadata = pod.get("metadata") or {}
            if (metadata.get("labels") or {}).get(LABEL) != "kubernetes" or metadata.get("deletionTimestamp"):
                continue
            is_over = (pod.get("status") or {}).get("reason") == "DeadlineExceeded"
            if is_over or is_orphan(metadata.get("annotations") or {}):
                self.remove(str(metadata["name"]))
                removed.append(str(metadata["name"]))
        return removed


@contextlib.contextmanager
def cluster(access: Access, namespace: str | None) -> Iterator[Cluster]:
    """Connect to a cluster, for operations in a namespace; None: the namespace of the context or of this pod.

    Raises:
        kubernetes.config.ConfigException: no cluster is configured.
    """
    api, named = connect(access)
    with api:
        yield Cluster(api, namespace or named)


def connect(access: Access) -> tuple[kubernetes.client.ApiClient, str]:
    """Return a client of the API server, and the namespace of the context or of this pod.

    Raises:
        kubernetes.config.ConfigException: no cluster is configured.
    """
    configuration = kubernetes.client.Configuration()
    named = _in_cluster(configuration) if access == Access() else None
    if named is None:
        kubernetes.config.load_kube_config(
            access.kubeconfig, context=access.context, client_configuration=configuration
        )
        named = _namespace_of(access)
    return kubernetes.client.ApiClient(configuration), named


def _in_cluster(configuration: kubernetes.client.Configuration) -> str | None:
    """Set the address and account of the pod in which this runs.

    Return its namespace; None if this process is not in a pod.
    """
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException:
        return None
    return NAMESPACE_FILE.read_text(encoding="utf-8").strip()


def _namespace_of(access: Access) -> str:
    """Return the namespace of a context of the kubeconfig."""
    contexts, active = kubernetes.config.list_kube_config_contexts(access.kubeconfig)
    found = active if access.context is None else next((c for c in contexts if c["name"] == access.context), None)
    return str(((found or {}).get("context") or {}).get("namespace") or "default")


def _json(answered: Any) -> dict[str, Any]:
    body = json.loads(answered.data)
    return body if isinstance(body, dict) else {}


def _state_of(pod: Mapping[str, Any]) -> PodState:
    status = pod.get("status") or {}
    phase, ip = str(status.get("phase") or "Pending"), status.get("podIP")
    failure = None
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        failure = "the pod is being deleted"
    elif phase in ("Failed", "Succeeded"):
        failure = _text("the pod has ended", status.get("reason"), status.get("message"))
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        terminated = (container.get("state") or {}).get("terminated") or {}
        if waiting.get("reason") in _HOPELESS:
            failure = _text("its container cannot start", waiting.get("reason"), waiting.get("message"))
        elif terminated:
            code = terminated.get("exitCode")
            failure = _text(f"its container ended with status {code}", terminated.get("reason"), None)
    pending = None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            pending = _text("it is not scheduled", condition.get("reason"), condition.get("message"))
    return PodState(phase, None if ip is None else str(ip), failure, pending)


def _text(what: str, *details: object) -> str:
    said = ", ".join(str(each) for each in details if each)
    return f"{what} ({said})" if said else what
