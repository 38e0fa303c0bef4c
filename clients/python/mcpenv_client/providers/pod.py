"""The pod of one instance, as `KubernetesProvider` sends it to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LABEL = "mcpenv.provider"
"""The label of every object that a provider makes; its value is ``kubernetes``."""

CONTAINER = "server"
TOKENS, TOKEN = "/run/mcpenv", "control-token"
"""The folder of the container with the control token, and the name of its file and of the Secret's key."""

USER = 1000
"""The user of images that ``mcpenv build`` makes."""


@dataclass(frozen=True)
class PodOptions:
    """The options of one pod.

    Attributes:
        name: the name of the pod and of its Secret.
        image: the image.
        public_url: the URL at which agents reach it; ``$(POD_IP)`` stands for its address.
        port: the port that the server listens on.
        options: further options of ``mcpenv run``.
        env: environment variables.
        env_from: Secrets; their keys become environment variables.
        memory: the request and the limit of memory.
        cpu: the request of processors; the limit is twice that.
        runtime_class: the RuntimeClass; None: the cluster's default.
        require_handle: True to serve agents only at the address of an episode.
        lifetime_s: seconds after which Kubernetes ends the pod.
        spec: further fields of the pod's spec, which win.
        labels: further labels.
        owner: annotations that name the owner.
    """

    name: str
    image: str
    public_url: str
    port: int = 8000
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_from: tuple[str, ...] = ()
    memory: str = "1Gi"
    cpu: float = 0.5
    runtime_class: str | None = None
    require_handle: bool = True
    lifetime_s: int = 86400
    spec: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)


def pod_body(options: PodOptions) -> dict[str, Any]:
    """Return the pod."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": options.lifetime_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options)],
        "volumes": [
            {"name": "tokens", "secret": {"secretName": options.name, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if options.runtime_class is not None:
        spec["runtimeClassName"] = options.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(options),
        "spec": {**spec, **options.spec},
    }


def secret_body(options: PodOptions, token: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Secret with the control token. It is deleted with its pod.

    Args:
        options: the options of the pod.
        token: the token.
        pod: the pod as the API server answered.
    """
    metadata = _metadata(options)
    uid = (pod.get("metadata") or {}).get("uid")
    if uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": options.name, "uid": uid}]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "immutable": True,
        "type": "Opaque",
        "stringData": {TOKEN: token},
    }


def _metadata(options: PodOptions) -> dict[str, Any]:
    labels = {**options.labels, LABEL: "kubernetes", "app.kubernetes.io/managed-by": "mcpenv"}
    return {"name": options.name, "labels": labels, "annotations": dict(options.owner)}


def _container(options: PodOptions) -> dict[str, Any]:
    # --insecure: agents have no tokens. They need the address of an episode, and the control plane has a token.
    arguments = [
        f"--port={options.port}",
        f"--public-url={options.public_url}",
        f"--control-token-file={TOKENS}/{TOKEN}",
        "--insecure",
        *(["--require-handle"] if options.require_handle else []),
        # $ begins a reference to a variable; $$ is one.
        *(option.replace("$", "$$") for option in options.options),
    ]
    millicores = max(1, round(options.cpu * 1000))
    return {
        "name": CONTAINER,
        "image": options.image,
        "args": arguments,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": name, "value": value} for name, value in options.env.items()),
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in options.env_from],
        "ports": [{"name": "server", "containerPort": options.port}],
        "resources": {
            "requests": {"cpu": f"{millicores}m", "memory": options.memory},
            "limits": {"cpu": f"{2 * millicores}m", "memory": options.memory},
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
