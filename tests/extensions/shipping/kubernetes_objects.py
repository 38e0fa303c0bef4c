"""Deployments and their objects, as tests take them apart."""

from __future__ import annotations

from typing import Any

from mcpenv.extensions.shipping.kubernetes.deployment import Deployment
from mcpenv.extensions.shipping.kubernetes.manifests import server_objects

IMAGE = "registry.example/team/shop:1.2"


def deployment(**given: Any) -> Deployment:
    return Deployment(**{"name": "shop", "image": IMAGE, **given})


def bodies(**given: Any) -> list[dict[str, Any]]:
    """The objects of servers."""
    return [each.body for each in server_objects(deployment(**given))]


def everything() -> list[dict[str, Any]]:
    """The objects of servers with all that there may be."""
    return bodies(
        namespace="envs",
        max_sessions=64,
        host="shop.example.org",
        control_host="control.example.org",
        runtime_class="gvisor",
        pre_pull=True,
        secrets=("SHOP_API_TOKEN",),
    )


def one(objects: list[dict[str, Any]], kind: str, name: str = "shop") -> dict[str, Any]:
    """The object of a kind and a name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(container)
