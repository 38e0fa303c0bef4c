"""Rules between objects: what selects what, and whether what is named is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .problem import WORKLOADS, Found, Problem, items, mapping, ports_of
from .workload import POD_NAME

CONTROL = "control"
"""The name of the port of the control plane."""


def check_links(found: Sequence[Found]) -> Iterator[Problem]:
    """Yield the mistakes between objects of the same manifests.

    What other manifests have cannot be known: Secrets, RuntimeClasses, Gateways and the like are not asked for.
    """
    counts = Counter((each.kind, each.namespace, each.name) for each in found)
    for (kind, _, name), count in counts.items():
        if count > 1:
            yield Problem(f"{kind}/{name}", "", f"is there {count} times")
    namespaces = {each.namespace for each in found if each.kind != "RuntimeClass"}
    if len(namespaces) > 1 and "" in namespaces:
        yield Problem("manifests", "metadata.namespace", "is in some objects only; give it to all, or to none")
    for each in found:
        if each.kind in WORKLOADS and each.kind != "Job":
            yield from _check_own_selector(each)
        if each.kind == "StatefulSet":
            yield from _check_service_name(each, found)
        elif each.kind == "Service":
            yield from _check_service(each, found)
        elif each.kind == "PodDisruptionBudget":
            yield from _check_selected(each, "spec.selector", mapping(each.spec, "selector"), found)
        elif each.kind == "NetworkPolicy":
            yield from _check_policy(each, found)
        elif each.kind == "HorizontalPodAutoscaler":
            yield from _check_target(each, "spec.scaleTargetRef", mapping(each.spec, "scaleTargetRef"), found)
        elif each.kind == "SandboxWarmPool":
            reference = {"kind": "SandboxTemplate", **mapping(each.spec, "sandboxTemplateRef")}
            yield from _check_target(each, "spec.sandboxTemplateRef", reference, found)
        elif each.kind == "BackendTrafficPolicy":
            for index, target in items(each.spec, "targetRefs"):
                yield from _check_target(each, f"spec.targetRefs[{index}]", target, found)
        elif each.kind == "Ingress":
            yield from _check_ingress(each, found)
        elif each.kind == "HTTPRoute":
            yield from _check_route(each, found)


# -- selectors


def _check_own_selector(each: Found) -> Iterator[Problem]:
    wanted, labels = mapping(each.spec, "selector", "matchLabels"), each.pod_labels or {}
    if not wanted and not mapping(each.spec, "selector").get("matchExpressions"):
        yield each.problem("spec.selector", "is empty")
    for key, value in wanted.items():
        if labels.get(key) != value:
            yield each.problem(
                f"spec.selector.matchLabels.{key}",
                f"is {value!r}, and the pods have {labels.get(key)!r}; both must be the same",
            )


def _check_selected(each: Found, field: str, selector: Mapping[str, Any], found: Sequence[Found]) -> Iterator[Problem]:
    labels = mapping(selector, "matchLabels")
    if labels and not _pods_with(labels, each.namespace, found):
        yield each.problem(f"{field}.matchLabels", f"matches no pods of these manifests: {_shown(labels)}")


def _pods_with(labels: Mapping[str, Any], namespace: str, found: Sequence[Found]) -> list[Found]:
    """Return the objects whose pods have these labels. A StatefulSet names its pods by a label of its own."""
    matched = []
    for each in found:
        own = each.pod_labels
        if own is None or each.namespace != namespace:
            continue
        rest = {key: value for key, value in labels.items() if key != POD_NAME}
        pod = labels.get(POD_NAME)
        if not all(own.get(key) == value for key, value in rest.items()):
            continue
        if pod is None or (each.kind == "StatefulSet" and _is_pod_of(str(pod), each.name)):
            matched.append(each)
    return matched


def _is_pod_of(pod: str, stateful_set: str) -> bool:
    name, _, ordinal = pod.rpartition("-")
    return name == stateful_set and ordinal.isdecimal()


# -- services


def _check_service_name(each: Found, found: Sequence[Found]) -> Iterator[Problem]:
    name = each.spec.get("serviceName")
    services = [other for other in found if other.kind == "Service" and other.name == name]
    if not services:
        yield each.problem("spec.serviceName", f"there is no Service {name!r}; pods would have no names")
    elif services[0].spec.get("clusterIP") != "None":
        yield each.problem("spec.serviceName", f"the Service {name!r} is not headless; set its clusterIP to None")


def _check_service(each: Found, found: Sequence[Found]) -> Iterator[Problem]:
    selector = mapping(each.spec, "selector")
    if not selector:
        return  # its endpoints are made elsewhere
    matched = _pods_with(selector, each.namespace, found)
    if not matched:
        yield each.problem("spec.selector", f"matches no pods of these manifests: {_shown(selector)}")
        return
    for index, port in items(each.spec, "ports"):
        target = port.get("targetPort", port.get("port"))
        for other in matched:
            if not _has_port(other, target):
                yield each.problem(
                    f"spec.ports[{index}].targetPort", f"the pods of {other.where} have no port {target!r}"
                )


def _has_port(found: Found, port: object) -> bool:
    pod = found.pod
    return pod is not None and isinstance(port, int | str) and port in ports_of(pod[1])


# -- policies


def _check_policy(each: Found, found: Sequence[Found]) -> Iterator[Problem]:
    selector = mapping(each.spec, "podSelector")
    yield from _check_selected(each, "spec.podSelector", selector, found)
    matched = _pods_with(mapping(selector, "matchLabels"), each.namespace, found)
    for number, rule in items(each.spec, "ingress"):
        for index, port in items(rule, "ports"):
            for other in matched:
                if "port" in port and not _has_port(other, port["port"]):
                    yield each.problem(
                        f"spec.ingress[{number}].ports[{index}].port",
                        f"the pods of {other.where} have no port {port['port']!r}",
                    )
        if any(_opens_control(rule, other) for other in matched):
            yield each.problem(
                f"spec.ingress[{number}]",
                "lets every pod connect to the control plane; name the ports of agents, or say who may in from",
            )


def _opens_control(rule: Mapping[str, Any], found: Found) -> bool:
    """Return True if a rule lets all pods connect to the port of the control plane."""
    pod = found.pod
    control = None if pod is None else ports_of(pod[1]).get(CONTROL)
    if control is None:
        return False
    ports = [port.get("port", CONTROL) for _, port in items(rule, "ports")]
    if ports and CONTROL not in ports and control not in ports:
        return False
    peers = [peer for _, peer in items(rule, "from")]
    return not peers or any(_is_everyone(peer) for peer in peers)


def _is_everyone(peer: Mapping[str, Any]) -> bool:
    return (
        not any(mapping(peer, selector) for selector in ("podSelector", "namespaceSelector")) and "ipBlock" not in peer
    )


# -- references


def _check_target(each: Found, field: str, reference: Mapping[str, Any], found: Sequence[Found]) -> Iterator[Problem]:
    kind, name = reference.get("kind"), reference.get("name")
    if not any(other.kind == kind and other.name == name for other in found):
        yield each.problem(field, f"there is no {kind} {name!r} in these manifests")


def _check_ingress(each: Found, found: Sequence[Found]) -> Iterator[Problem]:
    for number, rule in items(each.spec, "rules"):
        for index, path in items(mapping(rule, "http"), "paths"):
            service = mapping(path, "backend", "service")
            port = mapping(service, "port")
            yield from _check_backend(
                each,
                f"spec.rules[{number}].http.paths[{index}].backend.service",
                service.get("name"),
                port.get("number", port.get("name")),
                found,
            )


def _check_route(each: Found, found: Sequence[Found]) -> Iterator[Problem]:
    for number, rule in items(each.spec, "rules"):
        for index, backend in items(rule, "backendRefs"):
            if backend.get("kind", "Service") == "Service":
                field = f"spec.rules[{number}].backendRefs[{index}]"
                yield from _check_backend(each, field, backend.get("name"), backend.get("port"), found)


def _check_backend(each: Found, field: str, name: object, port: object, found: Sequence[Found]) -> Iterator[Problem]:
    services = [other for other in found if other.kind == "Service" and other.name == name]
    if not services:
        yield each.problem(field, f"there is no Service {name!r} in these manifests")
        return
    ports = [port for _, port in items(services[0].spec, "ports")]
    known = [value for given in ports for value in (given.get("port"), given.get("name"))]
    if port not in known:
        yield each.problem(field, f"the Service {name!r} has no port {port!r}")


def _shown(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


__all__ = ["check_links"]
