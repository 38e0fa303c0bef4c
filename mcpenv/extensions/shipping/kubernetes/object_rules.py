"""Rules for one object: names, labels, quantities, and the parts of pods that refer to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .names import (
    is_dns_label,
    is_dns_subdomain,
    is_label_key,
    is_label_value,
    is_port_name,
    is_service_name,
    quantity,
)
from .pods import CONTAINER
from .port_rules import check_server_ports
from .problem import Found, Problem, containers, items, mapping, ports_of

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_OPTION = re.compile(r"--(drain-s|shutdown-timeout-s)=([0-9]+(?:\.[0-9]+)?)$")


def check_object(found: Found) -> Iterator[Problem]:
    """Yield the mistakes of one object that its schema does not show."""
    yield from _check_metadata(found)
    template = found.template
    if template is not None:
        path, value = template
        yield from _check_labels(found, f"{path}.metadata", mapping(value, "metadata"))
    pod = found.pod
    if pod is not None:
        yield from _check_pod(found, *pod)
    if found.kind == "Service":
        yield from _check_ports(found, "spec", found.spec, ("port", "nodePort"))
    if found.kind == "HorizontalPodAutoscaler":
        yield from _check_autoscaler(found)


# -- metadata


def _check_metadata(found: Found) -> Iterator[Problem]:
    for field in ("apiVersion", "kind"):
        if not isinstance(found.body.get(field), str):
            yield found.problem(field, "is missing")
    if not found.name:
        yield found.problem("metadata.name", "is missing")
    elif found.kind == "Service" and not is_service_name(found.name):
        yield found.problem(
            "metadata.name", "is no RFC 1035 name: at most 63 small letters, digits and -, beginning with a letter"
        )
    elif not is_dns_subdomain(found.name):
        yield found.problem(
            "metadata.name", "is no RFC 1123 name: small letters, digits, - and ., with a letter or digit at both ends"
        )
    elif found.kind == "StatefulSet" and len(found.name) > 52:
        yield found.problem("metadata.name", "has more than 52 characters; names of its revisions would be too long")
    if found.namespace and not is_dns_label(found.namespace):
        yield found.problem("metadata.namespace", "is no RFC 1123 label: small letters, digits and -")
    yield from _check_labels(found, "metadata", mapping(found.body, "metadata"))


def _check_labels(found: Found, path: str, metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in mapping(metadata, "labels").items():
        if not is_label_key(str(key)):
            yield found.problem(f"{path}.labels", f"{key!r} is no key of a label")
        if not isinstance(value, str) or not is_label_value(value):
            yield found.problem(f"{path}.labels.{key}", f"{value!r} is no value of a label; quote numbers and true")
    for key, value in mapping(metadata, "annotations").items():
        if not is_label_key(str(key)):
            yield found.problem(f"{path}.annotations", f"{key!r} is no key of an annotation")
        if not isinstance(value, str):
            yield found.problem(f"{path}.annotations.{key}", f"{value!r} is no text; put it in quotes")


# -- pods


def _check_pod(found: Found, path: str, pod: Mapping[str, Any]) -> Iterator[Problem]:
    volumes = {str(volume.get("name")) for _, volume in items(pod, "volumes")}
    ports, names = ports_of(pod), set[str]()
    for index, volume in items(pod, "volumes"):
        limit = mapping(volume, "emptyDir").get("sizeLimit")
        if limit is not None and quantity(limit) is None:
            yield found.problem(f"{path}.volumes[{index}].emptyDir.sizeLimit", f"{limit!r} is no quantity, such as 1Gi")
    if not list(items(pod, "containers")):
        yield found.problem(f"{path}.containers", "there is none")
    for place, container in containers(path, pod):
        name = str(container.get("name", ""))
        if not is_dns_label(name):
            yield found.problem(f"{place}.name", f"{name!r} is no RFC 1123 label")
        if name in names:
            yield found.problem(f"{place}.name", f"there is another container {name!r}")
        names.add(name)
        yield from _check_ports(found, place, container, ("containerPort", "hostPort"))
        yield from _check_resources(found, f"{place}.resources", mapping(container, "resources"))
        for probe in PROBES:
            yield from _check_probe(found, f"{place}.{probe}", mapping(container, probe), ports)
        for index, mount in items(container, "volumeMounts"):
            if str(mount.get("name")) not in volumes:
                yield found.problem(f"{place}.volumeMounts[{index}].name", f"there is no volume {mount.get('name')!r}")
        yield from _check_references(found, place, container)
        yield from check_server_ports(found, place, container)
        if name == CONTAINER:
            yield from _check_grace(found, path, pod, container)


def _check_ports(found: Found, path: str, owner: Mapping[str, Any], fields: tuple[str, str]) -> Iterator[Problem]:
    """Yield the mistakes in the ports of a container or a service; the first of the fields has the port itself."""
    names, taken = set[str](), set[tuple[int, str]]()
    ports = list(items(owner, "ports"))
    for index, port in ports:
        place = f"{path}.ports[{index}]"
        for field in fields:
            number = port.get(field)
            if (field == fields[0] or number is not None) and not _is_port(number):
                yield found.problem(f"{place}.{field}", f"{number!r} is no port; write a number from 1 to 65535")
        number, protocol = port.get(fields[0]), str(port.get("protocol", "TCP"))
        if isinstance(number, int):
            if (number, protocol) in taken:
                yield found.problem(f"{place}.{fields[0]}", f"there is another port {number}")
            taken.add((number, protocol))
        name = port.get("name")
        if name is None:
            if found.kind == "Service" and len(ports) > 1:
                yield found.problem(f"{place}.name", "is missing; each of several ports of a service needs one")
            continue
        if not is_port_name(str(name)):
            yield found.problem(
                f"{place}.name", f"{name!r} is no name of a port: at most 15 small letters, digits and -, with a letter"
            )
        if str(name) in names:
            yield found.problem(f"{place}.name", f"there is another port {name!r}")
        names.add(str(name))


def _is_port(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 65535


def _check_resources(found: Found, path: str, resources: Mapping[str, Any]) -> Iterator[Problem]:
    amounts: dict[tuple[str, str], Any] = {}
    for part in ("requests", "limits"):
        for name, value in mapping(resources, part).items():
            amount = quantity(value)
            if amount is None or amount < 0:
                yield found.problem(f"{path}.{part}.{name}", f"{value!r} is no quantity, such as 500m or 2Gi")
            elif name == "memory" and str(value).endswith("m"):
                yield found.problem(f"{path}.{part}.{name}", f"{value!r} is thousandths of a byte; write Mi")
            else:
                amounts[part, str(name)] = amount
    for name in _RESOURCES:
        request, limit = amounts.get(("requests", name)), amounts.get(("limits", name))
        if request is not None and limit is not None and request > limit:
            yield found.problem(f"{path}.requests.{name}", "is more than the limit")


def _check_probe(
    found: Found, path: str, probe: Mapping[str, Any], ports: Mapping[str | int, int]
) -> Iterator[Problem]:
    for kind in ("httpGet", "tcpSocket", "grpc"):
        if kind in probe:
            port = mapping(probe, kind).get("port")
            if not isinstance(port, int | str) or port not in ports:
                yield found.problem(f"{path}.{kind}.port", f"no container has a port {port!r}")


def _check_references(found: Found, path: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    defined = {str(variable.get("name")) for _, variable in items(container, "env")}
    if container.get("envFrom"):
        return  # their names are not known here
    for field in ("command", "args"):
        texts = container.get(field)
        for text in texts if isinstance(texts, list) else []:
            for name in _REFERENCE.findall(str(text)):
                if name not in defined:
                    yield found.problem(f"{path}.{field}", f"$({name}) is not among env, and would stay as it is")


def _check_grace(found: Found, path: str, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem if a server is killed before it has drained."""
    texts = container.get("args")
    seconds = {
        option: float(value)
        for text in (texts if isinstance(texts, list) else [])
        for option, value in _OPTION.findall(str(text))
    }
    if not seconds:
        return
    sleep = mapping(container, "lifecycle", "preStop", "sleep").get("seconds", 0)
    needed = sum(seconds.values()) + (sleep if isinstance(sleep, int) else 0)
    grace = pod.get("terminationGracePeriodSeconds", 30)
    if isinstance(grace, int) and grace < needed:
        options = " and ".join(f"--{option}" for option in seconds)
        yield found.problem(
            f"{path}.terminationGracePeriodSeconds",
            f"is {grace}, and preStop, {options} take {needed:g}: episodes would be killed",
        )


# -- autoscaling


def _check_autoscaler(found: Found) -> Iterator[Problem]:
    least, most = found.spec.get("minReplicas", 1), found.spec.get("maxReplicas")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield found.problem("spec.minReplicas", f"is {least}, more than maxReplicas, {most}")
    for index, metric in items(found.spec, "metrics"):
        for kind in ("pods", "resource", "object", "external"):
            for field, value in mapping(metric, kind, "target").items():
                if field in ("averageValue", "value") and quantity(value) is None:
                    yield found.problem(f"spec.metrics[{index}].{kind}.target.{field}", f"{value!r} is no quantity")


__all__ = ["check_object"]
