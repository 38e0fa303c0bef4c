"""The pod of one instance, as `KubernetesProvider` sends it to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .owned import owner_annotations

if TYPE_CHECKING:
    from .kubernetes import KubernetesProvider

LABEL = "mcpenv.provider"
"""The label of every object that a provider makes; its value is ``kubernetes``."""

CONTAINER = "server"
TOKENS, TOKEN = "/run/mcpenv", "control-token"
"""The folder of the container with the control token, and the name of its file and of the Secret's key."""

USER = 1000
"""The user of images that ``mcpenv build`` makes."""


def pod_body(provider: KubernetesProvider, name: str, namespace: str) -> dict[str, Any]:
    """Return the pod.

    Args:
        provider: the image and the options.
        name: the name of the pod and of its Secret.
        namespace: its namespace.
    """
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": provider.lifetime_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(provider, name, namespace)],
        "volumes": [
            {"name": "tokens", "secret": {"secretName": name, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if provider.runtime_class is not None:
        spec["runtimeClassName"] = provider.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(provider, name),
        "spec": {**spec, **provider.spec},
    }


def secret_body(provider: KubernetesProvider, name: str, token: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Secret with the control token. It is deleted with its pod.

    Args:
        provider, name: as for `pod_body`.
        token: the token.
        pod: the pod as the API server answered.
    """
    metadata = _metadata(provider, name)
    uid = (pod.get("metadata") or {}).get("uid")
    if uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "immutable": True,
        "type": "Opaque",
        "stringData": {TOKEN: token},
    }


def _metadata(provider: KubernetesProvider, name: str) -> dict[str, Any]:
    labels = {**provider.labels, LABEL: "kubernetes", "app.kubernetes.io/managed-by": "mcpenv"}
    return {"name": name, "labels": labels, "annotations": owner_annotations()}


def _container(provider: KubernetesProvider, name: str, namespace: str) -> dict[str, Any]:
    public_url = provider.address(name, namespace, "$(POD_IP)")
    # --insecure: agents have no tokens. They need the address of an episode, and the control plane has a token.
    arguments = [
        f"--port={provider.port}",
        f"--public-url={public_url}",
        f"--control-token-file={TOKENS}/{TOKEN}",
        "--insecure",
        *(["--require-handle"] if provider.require_handle else []),
        # $ begins a reference to a variable; $$ is one.
        *(option.replace("$", "$$") for option in provider.options),
    ]
    millicores = max(1, round(provider.cpu * 1000))
    return {
        "name": CONTAINER,
        "image": provider.image,
        "args": arguments,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": name, "value": value} for name, value in provider.env.items()),
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in provider.env_from],
        "ports": [{"name": "server", "containerPort": provider.port}],
        "resources": {
            "requests": {"cpu": f"{millicores}m", "memory": provider.memory},
            "limits": {"cpu": f"{2 * millicores}m", "memory": provider.memory},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "server"}, "periodSeconds": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
