"""The pods of an environment: one container, the image's entrypoint with options of ``mcpenv run``."""

from __future__ import annotations

from typing import Any

from .deployment import AGENTS_PORT, CONTROL_PORT, PRE_STOP_S, Deployment

TOKENS = "/run/mcpenv"
"""The folder of a container with the tokens."""

CONTROL_TOKEN, METRICS_TOKEN, AGENT_TOKENS = "control-token", "metrics-token", "agent-tokens"
"""The keys of the Secret with the tokens."""

USER = 1000
"""The user of images that ``mcpenv build`` makes."""

CONTAINER = "server"


def pod_spec(deployment: Deployment, public_url: str, names: list[str]) -> dict[str, Any]:
    """Return the spec of a pod.

    Args:
        deployment: the settings.
        public_url: the URL at which agents reach this pod; ``$(POD_NAME)`` and similar variables stand for its own
            values.
        names: further names under which clients reach it.
    """
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": deployment.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(deployment, public_url, names)],
        "volumes": [
            {"name": "tokens", "secret": {"secretName": deployment.tokens_secret, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }
    if deployment.runtime_class is not None:
        spec["runtimeClassName"] = deployment.runtime_class
    return spec


def _container(deployment: Deployment, public_url: str, names: list[str]) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": deployment.image,
        "args": _arguments(deployment, public_url, names),
        "env": [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in (
                    ("POD_NAME", "metadata.name"),
                    ("POD_NAMESPACE", "metadata.namespace"),
                    ("POD_IP", "status.podIP"),
                )
            ),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": deployment.values_secret, "key": name}}}
                for name in deployment.secrets
            ),
        ],
        "ports": [
            {"name": "agents", "containerPort": AGENTS_PORT},
            {"name": "control", "containerPort": CONTROL_PORT},
        ],
        "resources": _resources(deployment),
        # At SIGTERM it drains; before that, proxies and endpoints have this long to stop routing to the pod.
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "startupProbe": {**_probe("/health"), "periodSeconds": 2, "failureThreshold": 90},
        "livenessProbe": {**_probe("/health"), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/ready"), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 1},
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


def _arguments(deployment: Deployment, public_url: str, names: list[str]) -> list[str]:
    options = {
        "--mode": deployment.mode,
        "--port": str(AGENTS_PORT),
        "--control-host": "0.0.0.0",
        "--control-port": str(CONTROL_PORT),
        "--public-url": public_url,
        "--allowed-hosts": ",".join(names),
        "--control-token-file": f"{TOKENS}/{CONTROL_TOKEN}",
        "--metrics-token-file": f"{TOKENS}/{METRICS_TOKEN}",
        "--agent-tokens-file": f"{TOKENS}/{AGENT_TOKENS}",
        "--drain-s": f"{deployment.drain_s:g}",
        "--shutdown-timeout-s": f"{deployment.shutdown_timeout_s:g}",
        "--log-format": "json",
    }
    if deployment.max_sessions is not None:
        options["--max-sessions"] = str(deployment.max_sessions)
    arguments = [f"{option}={value}" for option, value in options.items()]
    # $ begins a reference to a variable; $$ is one.
    return [*arguments, *(f"--set={setting.replace('$', '$$')}" for setting in deployment.settings)]


def _resources(deployment: Deployment) -> dict[str, Any]:
    millicores = max(1, round(deployment.cpu * 1000))
    return {
        "requests": {"cpu": f"{millicores}m", "memory": deployment.memory, "ephemeral-storage": "256Mi"},
        "limits": {"cpu": f"{2 * millicores}m", "memory": deployment.memory, "ephemeral-storage": "2Gi"},
    }


def _probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "agents"}}


__all__ = ["AGENT_TOKENS", "CONTAINER", "CONTROL_TOKEN", "METRICS_TOKEN", "TOKENS", "USER", "pod_spec"]
