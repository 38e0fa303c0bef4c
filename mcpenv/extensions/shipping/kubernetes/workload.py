"""The objects that run pods: a StatefulSet with its services, pre-pulling, and a RuntimeClass."""

from __future__ import annotations

from typing import Any

from .deployment import AGENTS_PORT, CONTROL_PORT, ROLE, Deployment
from .kube_object import KubeObject
from .pods import USER, pod_spec

POD_NAME = "statefulset.kubernetes.io/pod-name"
"""The label that a StatefulSet gives each of its pods."""

AGENTS_SERVICE_PORT = 80

HANDLERS = {"gvisor": "runsc", "kata": "kata"}
"""The handlers of RuntimeClasses that are written; any other class must exist in the cluster."""


def stateful_set(deployment: Deployment) -> KubeObject:
    """Return the StatefulSet. Each pod has a name, and so a public URL."""
    template: dict[str, Any] = {
        "metadata": {"labels": {**deployment.labels, **deployment.selector}},
        "spec": pod_spec(deployment, public_url(deployment, "$(POD_NAME)"), _names(deployment)),
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": deployment.metadata(),
        "spec": {
            "serviceName": deployment.name,
            "replicas": deployment.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": deployment.selector},
            "template": template,
        },
    }
    return KubeObject(
        body,
        f"The servers. An update replaces one pod after another: each gets no new sessions, has\n"
        f"{deployment.drain_s:g} s for running episodes, and is killed after {deployment.grace_s} s.\n"
        "The sleep before SIGTERM needs Kubernetes 1.30 or later.",
    )


def services(deployment: Deployment) -> list[KubeObject]:
    """Return the services: of single pods, of agents, and of the control plane."""
    ports = [
        {"name": "agents", "port": AGENTS_PORT, "targetPort": "agents"},
        {"name": "control", "port": CONTROL_PORT, "targetPort": "control"},
    ]
    headless = _service(deployment, "", {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": ports})
    agents = _service(
        deployment,
        "-agents",
        {
            "sessionAffinity": "ClientIP",
            "ports": [{"name": "agents", "port": AGENTS_SERVICE_PORT, "targetPort": "agents"}],
        },
    )
    control = _service(
        deployment, "-control", {"ports": [{"name": "control", "port": CONTROL_PORT, "targetPort": "control"}]}
    )
    return [
        KubeObject(
            headless,
            f"The name of each pod: {deployment.name}-0.{deployment.name}. Also of one that is not ready, so that\n"
            "agents reach the episodes of a pod that drains. An orchestrator that comes back, or forks,\n"
            f"connects to http://{deployment.name}-0.{deployment.name}:{CONTROL_PORT} and so on.",
        ),
        KubeObject(agents, "Agents without an episode: any pod that is ready, and the same one for each client."),
        KubeObject(
            control,
            f"Orchestrators: EnvClient('http://{deployment.name}-control:{CONTROL_PORT}'). A socket stays at its pod.",
        ),
    ]


def pod_services(deployment: Deployment) -> list[KubeObject]:
    """Return a service for each possible pod, for routes from outside; none without a host."""
    if deployment.host is None:
        return []
    made = []
    for ordinal in range(deployment.most_pods):
        spec = {
            "publishNotReadyAddresses": True,
            "ports": [{"name": "agents", "port": AGENTS_SERVICE_PORT, "targetPort": "agents"}],
        }
        body = _service(deployment, f"-{ordinal}", spec, {POD_NAME: f"{deployment.name}-{ordinal}"})
        comment = "One pod, for its route; also one that drains." if ordinal == 0 else later_pods(deployment, ordinal)
        made.append(KubeObject(body, comment))
    return made


def later_pods(deployment: Deployment, ordinal: int) -> str:
    """Return the comment for the first pod that does not exist from the start; an empty one for all others."""
    if ordinal != deployment.replicas or ordinal >= deployment.most_pods:
        return ""
    last = deployment.most_pods - 1
    pods = f"pod {deployment.name}-{ordinal}" if ordinal == last else f"pods {deployment.name}-{ordinal} to -{last}"
    namespace = "" if deployment.namespace is None else f" --namespace {deployment.namespace}"
    by_hand = f"kubectl scale statefulset {deployment.name}{namespace} --replicas {deployment.most_pods}"
    adds = by_hand if deployment.max_sessions is None else "autoscaling"
    return f"For later: {adds} adds {pods}."


def pre_pull(deployment: Deployment) -> KubeObject:
    """Return the DaemonSet that makes every node pull the image, and keeps it there."""
    selector = {**deployment.selector, "app.kubernetes.io/component": "pre-pull"}
    small = {"cpu": "10m", "memory": "32Mi"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": deployment.metadata("-pre-pull"),
        "spec": {
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {**deployment.labels, **selector}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": "wait",
                            "image": deployment.image,
                            "command": ["sleep", "infinity"],
                            "resources": {"requests": small, "limits": small},
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                                "readOnlyRootFilesystem": True,
                            },
                        }
                    ],
                },
            },
        },
    }
    return KubeObject(body, "Every node pulls the image before a server is scheduled there.")


def runtime_class(deployment: Deployment) -> list[KubeObject]:
    """Return the RuntimeClass of gVisor or Kata; none if the cluster already has it."""
    name = deployment.runtime_class
    if name is None or name not in HANDLERS:
        return []
    body = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name, "labels": deployment.labels},
        "handler": HANDLERS[name],
    }
    return [KubeObject(body, "For the whole cluster. Its nodes must have the handler; remove this where it exists.")]


def public_url(deployment: Deployment, pod: str) -> str:
    """Return the URL at which agents reach one pod."""
    if deployment.host is not None:
        return f"https://{deployment.host}/{pod}"
    return f"http://{pod}.{deployment.name}.$(POD_NAMESPACE).svc:{AGENTS_PORT}"


def orchestrators(deployment: Deployment) -> dict[str, str]:
    """Return the labels of pods that may connect to the control plane."""
    return {ROLE: "orchestrator"}


def _names(deployment: Deployment) -> list[str]:
    """Return the names under which clients reach a pod, in all forms that the cluster's DNS resolves."""
    services = (f"$(POD_NAME).{deployment.name}", f"{deployment.name}-agents", f"{deployment.name}-control")
    ends = ("", ".$(POD_NAMESPACE)", ".$(POD_NAMESPACE).svc", ".$(POD_NAMESPACE).svc.cluster.local")
    outside = [host for host in (deployment.host, deployment.control_host) if host is not None]
    return [*(f"{service}{end}" for service in services for end in ends), *outside]


def _service(
    deployment: Deployment, suffix: str, spec: dict[str, Any], selector: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": deployment.metadata(suffix),
        "spec": {"selector": {**deployment.selector, **(selector or {})}, **spec},
    }
