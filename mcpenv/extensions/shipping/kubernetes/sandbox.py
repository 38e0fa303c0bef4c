"""The objects of kubernetes-sigs/agent-sandbox: a template, and a pool of sandboxes that are ready to be claimed."""

from __future__ import annotations

from .deployment import AGENTS_PORT, Deployment
from .kube_object import KubeObject
from .network import egress_rules, ingress_rules
from .pods import pod_spec

API = "extensions.agents.x-k8s.io/v1beta1"


def sandbox_objects(deployment: Deployment) -> list[KubeObject]:
    """Return the SandboxTemplate and the SandboxWarmPool."""
    template = {
        "apiVersion": API,
        "kind": "SandboxTemplate",
        "metadata": deployment.metadata(),
        "spec": {
            "podTemplate": {
                "metadata": {"labels": {**deployment.labels, **deployment.selector}},
                "spec": {
                    **pod_spec(deployment, f"http://$(POD_IP):{AGENTS_PORT}", ["$(POD_NAME)", "$(POD_IP)"]),
                    "restartPolicy": "Always",
                },
            },
            "networkPolicyManagement": "Managed",
            "networkPolicy": {"ingress": ingress_rules(deployment), "egress": egress_rules(deployment)},
            "envVarsInjectionPolicy": "Disallowed",
        },
    }
    pool = {
        "apiVersion": API,
        "kind": "SandboxWarmPool",
        "metadata": deployment.metadata(),
        "spec": {
            "replicas": deployment.warm,
            "sandboxTemplateRef": {"name": deployment.name},
            "updateStrategy": {"type": "OnReplenish"},
        },
    }
    return [
        KubeObject(
            template,
            "One pod for each claim. Right where an environment needs a container of its own; one server of many\n"
            "sessions (without --sandbox) is right everywhere else.",
        ),
        KubeObject(pool, f"{deployment.warm} sandboxes are ready before they are claimed."),
    ]
