"""The NetworkPolicy: agents reach their port only, orchestrators both; the manifest decides the access of tools."""

from __future__ import annotations

from typing import Any

from .deployment import Deployment
from .kube_object import KubeObject
from .workload import orchestrators

NAMESPACE = "kubernetes.io/metadata.name"
"""The label with a namespace's name, which every namespace has."""


def network_policy(deployment: Deployment) -> KubeObject:
    """Return the NetworkPolicy of the pods."""
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": deployment.metadata(),
        "spec": {
            "podSelector": {"matchLabels": deployment.selector},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress_rules(deployment),
            "egress": egress_rules(deployment),
        },
    }
    (label,) = (f"{key}={value}" for key, value in orchestrators(deployment).items())
    outside = "" if deployment.control_host is None else f" and for the proxies in {deployment.proxies}"
    egress = "Tools reach all machines." if deployment.network else "Tools reach no other machine (needs.network)."
    return KubeObject(
        body,
        "Agents reach the port of agents, whatever they know. The control plane is for pods of this namespace with\n"
        f"the label {label}, for Prometheus in the namespace {deployment.monitoring}{outside}.\n"
        f"{egress} It has an effect only where the cluster's network plugin enforces policies.",
    )


def ingress_rules(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the rules for connections to a pod."""
    control = [
        {"podSelector": {"matchLabels": orchestrators(deployment)}},
        {"namespaceSelector": {"matchLabels": {NAMESPACE: deployment.monitoring}}},
    ]
    if deployment.control_host is not None:
        control.append({"namespaceSelector": {"matchLabels": {NAMESPACE: deployment.proxies}}})
    return [
        {"ports": [{"protocol": "TCP", "port": "agents"}]},
        {"from": control, "ports": [{"protocol": "TCP", "port": "control"}]},
    ]


def egress_rules(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the rules for connections from a pod: names are resolved, and the manifest decides the rest."""
    if deployment.network:
        return [{}]
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return [{"to": [{"namespaceSelector": {"matchLabels": {NAMESPACE: "kube-system"}}}], "ports": dns}]
