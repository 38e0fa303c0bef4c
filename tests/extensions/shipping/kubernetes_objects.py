"""Deployments and their objects, as tests take them apart. As a program: write the golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcpenv.extensions.shipping.kubernetes.deployment import Deployment
from mcpenv.extensions.shipping.kubernetes.manifests import text_of
from mcpenv.extensions.shipping.kubernetes.objects import sandboxes, server_objects

IMAGE = "registry.example/team/shop:1.2"
EVERYTHING: dict[str, Any] = {
    "namespace": "envs",
    "max_sessions": 64,
    "host": "shop.example.org",
    "control_host": "control.example.org",
    "runtime_class": "gvisor",
    "pre_pull": True,
    "secrets": ("SHOP_API_TOKEN",),
    "pull_secrets": ["registry-login"],
    "records": "20Gi",
    "storage_class": "shared",
}
INGRESS: dict[str, Any] = {
    "mode": "production",
    "host": "shop.example.org",
    "control_host": "control.example.org",
    "route": "ingress",
    "tls_secret": "shop-tls",
    "network": True,
    "runtime_class": "kata",
    "namespace": "envs",
    "max_sessions": 64,
    "autoscaler": "keda",
}
GOLDEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "gateway": (server_objects, {**EVERYTHING, "replicas": 1, "max_replicas": 2}),
    "ingress": (server_objects, {**INGRESS, "replicas": 1, "max_replicas": 2}),
    "sandboxes": (sandboxes, EVERYTHING),
    "durable": (server_objects, {"host": "shop.example.org", "durable": "shop-store", "namespace": "envs"}),
}
"""By the name of its file: what makes the manifests, and the settings."""

GOLDEN_FOLDER = Path(__file__).with_name("golden")


def deployment(**given: Any) -> Deployment:
    return Deployment(**{"name": "shop", "image": IMAGE, **given})


def bodies(**given: Any) -> list[dict[str, Any]]:
    """The objects of servers."""
    return [each.body for each in server_objects(deployment(**given))]


def everything() -> list[dict[str, Any]]:
    """The objects of servers with all that there may be."""
    return bodies(**EVERYTHING)


def golden(name: str) -> str:
    """The text of the manifests of a golden file."""
    make, given = GOLDEN[name]
    return text_of(make(deployment(**given)))


def one(objects: list[dict[str, Any]], kind: str, name: str = "shop") -> dict[str, Any]:
    """The object of a kind and a name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(container)


if __name__ == "__main__":
    for each in GOLDEN:
        (GOLDEN_FOLDER / f"{each}.yaml").write_text(golden(each), encoding="utf-8")
