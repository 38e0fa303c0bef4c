"""The objects that control the number of pods: autoscaling and the disruption budget."""

from __future__ import annotations

import math

from .deployment import Deployment
from .kube_object import KubeObject

METRIC = "mcpenv_sessions_taken"
"""The pods' metric from which autoscaling computes the number of pods."""

FULL = 0.7
"""The share of a pod's sessions above which pods are added."""

SLOW_S = 600
"""Seconds of lower demand before a pod is removed: removal ends the sessions of the pod with the highest number."""


def autoscaler(deployment: Deployment) -> list[KubeObject]:
    """Return the HorizontalPodAutoscaler; none if a pod's sessions or the range of pods is unknown."""
    if deployment.max_sessions is None or deployment.most_pods == deployment.replicas:
        return []
    target = max(1, math.floor(deployment.max_sessions * FULL))
    body = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": deployment.metadata(),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": deployment.name},
            "minReplicas": deployment.replicas,
            "maxReplicas": deployment.most_pods,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": METRIC},
                        "target": {"type": "AverageValue", "averageValue": str(target)},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0},
                "scaleDown": {
                    "stabilizationWindowSeconds": SLOW_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(1800, max(60, deployment.grace_s))}],
                },
            },
        },
    }
    return [
        KubeObject(
            body,
            f"More pods above {target} sessions a pod. This needs an adapter (prometheus-adapter, or KEDA) that gives\n"
            f"Kubernetes the metric {METRIC} of pods; without one the number stays at {deployment.replicas}.\n"
            "The pod with the highest number goes first, whoever is busy there, one after another.",
        )
    ]


def disruption_budget(deployment: Deployment) -> KubeObject:
    """Return the PodDisruptionBudget."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": deployment.metadata(),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": deployment.selector}},
    }
    return KubeObject(body, "Nodes are drained one pod after another.")
