"""A mistake in a manifest, and the objects of manifests as rules see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WORKLOADS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}
"""The kinds with a pod template at ``spec.template``."""


@dataclass(frozen=True, order=True)
class Problem:
    """A mistake.

    Attributes:
        where: the object, as ``Kind/name``.
        field: the path of the field in it; empty if it is the whole object.
        text: what is wrong, and what to do.
    """

    where: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.text}" if self.field else f"{self.where}: {self.text}"


class Found:
    """An object of a manifest, read with care: a field that is not there, or is of another type, is empty.

    Attributes:
        body: its fields.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body

    @property
    def kind(self) -> str:
        """The kind."""
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        """The name."""
        return str(mapping(self.body, "metadata").get("name", ""))

    @property
    def namespace(self) -> str:
        """The namespace; empty if it is left to kubectl."""
        return str(mapping(self.body, "metadata").get("namespace", ""))

    @property
    def where(self) -> str:
        """The object for a message."""
        return f"{self.kind or 'object'}/{self.name or '?'}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec."""
        return mapping(self.body, "spec")

    @property
    def template(self) -> tuple[str, Mapping[str, Any]] | None:
        """The path and the value of its pod template; None if it has none."""
        if self.kind in WORKLOADS:
            return "spec.template", mapping(self.spec, "template")
        if self.kind == "SandboxTemplate":
            return "spec.podTemplate", mapping(self.spec, "podTemplate")
        return None

    @property
    def pod(self) -> tuple[str, Mapping[str, Any]] | None:
        """The path and the value of the spec of its pods; None if it has none."""
        if self.kind == "Pod":
            return "spec", self.spec
        template = self.template
        return None if template is None else (f"{template[0]}.spec", mapping(template[1], "spec"))

    @property
    def pod_labels(self) -> Mapping[str, Any] | None:
        """The labels of its pods; None if it has none."""
        if self.kind == "Pod":
            return mapping(mapping(self.body, "metadata"), "labels")
        template = self.template
        return None if template is None else mapping(mapping(template[1], "metadata"), "labels")

    def problem(self, field: str, text: str) -> Problem:
        """Return a problem of this object."""
        return Problem(self.where, field, text)


def mapping(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty one if there is none."""
    value: Any = body
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(body: Mapping[str, Any], field: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the mappings of a list, each with its index."""
    value = body.get(field)
    for index, each in enumerate(value if isinstance(value, list) else []):
        if isinstance(each, Mapping):
            yield index, each


def containers(path: str, pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the value of each container of a pod."""
    for field in ("initContainers", "containers"):
        for index, each in items(pod, field):
            yield f"{path}.{field}[{index}]", each


def ports_of(pod: Mapping[str, Any]) -> dict[str | int, int]:
    """Return the ports of a pod's containers by number, and by name where they have one."""
    ports: dict[str | int, int] = {}
    for _, container in containers("", pod):
        for _, port in items(container, "ports"):
            number = port.get("containerPort")
            if isinstance(number, int):
                ports[number] = number
                if isinstance(port.get("name"), str):
                    ports[port["name"]] = number
    return ports


__all__ = ["WORKLOADS", "Found", "Problem", "containers", "items", "mapping", "ports_of"]
