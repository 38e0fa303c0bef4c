"""Overlays of Kustomize: what differs from the manifests on kind, on GKE and on EKS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import yaml  # type: ignore[import-untyped]

from .deployment import Deployment
from .objects import HANDLERS, KubeObject, public_url

PLATFORMS = ("kind", "gke", "eks")

BASE, OVERLAYS = "base", "overlays"
"""The folders of the manifests and of the overlays."""

_COMMENTS = {
    "kind": "One pod, and nothing that needs more than Kubernetes itself: no autoscaler, no routes, no sandbox.",
    "gke": """\
The volume of records is Filestore's (its CSI driver, at least 1Ti in most tiers), and names are resolved by the
cache of the node too. Routes need Envoy Gateway; the PodMonitor needs the operator of Prometheus, which Managed
Service for Prometheus is not. On paper: no cluster of GKE has run this.""",
    "eks": """\
The volume of records is EFS's: make the storage class efs with its CSI driver. The VPC CNI enforces the
NetworkPolicy only with enableNetworkPolicy. Routes need Envoy Gateway. On paper: no cluster of EKS has run this.""",
}

_ABSENT_ON_KIND = (
    *("HorizontalPodAutoscaler", "ScaledObject", "PodMonitor", "HTTPRoute", "BackendTrafficPolicy", "Ingress"),
    *("RuntimeClass", "DaemonSet"),
)

_NODE_LOCAL_DNS = "169.254.20.10/32"
"""The address of NodeLocal DNSCache."""


def overlay(platform: str, deployment: Deployment, objects: Sequence[KubeObject]) -> tuple[dict[str, Any], str]:
    """Return the kustomization of a platform, and the comment at its top.

    Args:
        platform: one of `PLATFORMS`.
        deployment: the settings of the manifests.
        objects: the manifests.
    """
    make = {"kind": _kind, "gke": _gke, "eks": _eks}[platform]
    made: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../../{BASE}"],
    }
    patches = list(make(deployment, objects))
    return {**made, "patches": patches} if patches else made, _COMMENTS[platform]


def _kind(deployment: Deployment, objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    for kind in _ABSENT_ON_KIND:
        yield from _without(kind, objects)
    spec: dict[str, Any] = {"containers": [{"name": "server", "imagePullPolicy": "IfNotPresent"}]}
    if deployment.runtime_class is not None:
        spec["runtimeClassName"] = None
    yield from _merged("StatefulSet", {"spec": {"replicas": 1, "template": {"spec": spec}}}, objects)
    for servers in (each for each in objects if deployment.host is not None and each.kind == "StatefulSet"):
        # Nothing routes the host to a pod. A strategic merge would replace all arguments.
        given = servers.body["spec"]["template"]["spec"]["containers"][0]["args"]
        at = next(index for index, argument in enumerate(given) if argument.startswith("--public-url="))
        own = f"--public-url={public_url(replace(deployment, host=None))}"
        path = f"/spec/template/spec/containers/0/args/{at}"
        yield {
            "target": {"kind": "StatefulSet"},
            "patch": _text([{"op": "replace", "path": path, "value": own}]),
        }
    volume = {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard"}
    yield from _merged("PersistentVolumeClaim", {"spec": volume}, objects)


def _gke(deployment: Deployment, objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    if deployment.runtime_class in HANDLERS:
        yield from _without("RuntimeClass", objects)  # GKE Sandbox brings gvisor, and no other
    yield from _merged("PersistentVolumeClaim", _class_of(deployment, "standard-rwx"), objects)
    if not deployment.network and any(each.kind == "NetworkPolicy" for each in objects):
        address = {"ipBlock": {"cidr": _NODE_LOCAL_DNS}}
        added = {"op": "add", "path": "/spec/egress/0/to/-", "value": address}
        yield {"target": {"kind": "NetworkPolicy"}, "patch": _text([added])}


def _eks(deployment: Deployment, objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    yield from _merged("PersistentVolumeClaim", _class_of(deployment, "efs"), objects)


def _class_of(deployment: Deployment, usual: str) -> dict[str, Any]:
    return {"spec": {"storageClassName": deployment.storage_class or usual}}


def _merged(kind: str, change: dict[str, Any], objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    """Yield a strategic merge of each object of a kind."""
    for each in objects:
        if each.kind == kind:
            yield {"patch": _text({**_address_of(each), **change})}


def _without(kind: str, objects: Sequence[KubeObject]) -> Iterator[dict[str, Any]]:
    """Yield what deletes each object of a kind."""
    for each in objects:
        if each.kind == kind:
            yield {"patch": _text({"$patch": "delete", **_address_of(each)})}


def _address_of(each: KubeObject) -> dict[str, Any]:
    metadata = each.body["metadata"]
    known = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {"apiVersion": each.body["apiVersion"], "kind": each.kind, "metadata": known}


def _text(change: Any) -> str:
    text: str = yaml.safe_dump(change, sort_keys=False)
    return text
