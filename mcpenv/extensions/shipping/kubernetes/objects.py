"""The objects of a deployment: the templates of ``objects.yaml``, filled with its values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from .deployment import PRE_STOP_S, Deployment

METRIC = "mcpenv_sessions_taken"
"""The pods' metric from which autoscaling computes the number of pods."""

FULL = 0.7
"""The share of a pod's sessions above which pods are added."""

AGENTS_PORT, CONTROL_PORT, SERVICE_PORT = 8000, 8001, 80

HANDLERS = {"gvisor": "runsc", "kata": "kata"}
"""The handlers of RuntimeClasses that are written; any other class must exist in the cluster."""

ROLE = "mcpenv.role"
"""The label of pods that may connect to the control plane; its value is ``orchestrator``."""

RECORDS = "/records"
"""The folder of records in a container."""

STORE = "MCPENV_DURABLE"
"""The variable with the address of the store of durable episodes."""

COOKIE = "mcpenv_server"
BY_HANDLE = "By handle: the address of an episode begins with the name of its pod."
BY_EPISODE = "Agents of episodes: any pod, which continues the episode or forwards to the pod that has it."
BY_TOKEN = "By token: agents without an episode."
BY_COOKIE = "By cookie: sessions over HTTP, and the console of some pod."
BY_POD = "By pod: its console, and orchestrators that come back or fork."

_TEMPLATES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_PLACE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class KubeObject:
    """An object as written to a file.

    Attributes:
        body: its fields.
        comment: lines that explain its purpose.
    """

    body: dict[str, Any]
    comment: str = ""

    @property
    def kind(self) -> str:
        """The kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """The name."""
        return str(self.body["metadata"]["name"])


def server_objects(deployment: Deployment) -> list[KubeObject]:
    """Return the objects of servers with many sessions each."""
    write = _Writer(deployment)
    routes = write.gateway_routes if deployment.route == "gateway" else write.ingresses
    return [
        *write.runtime_class(),
        write("stateful_set"),
        write("headless_service"),
        write("agents_service", "-agents"),
        write("control_service", "-control"),
        *(write.pod_services() if deployment.has_pod_routes else ()),
        *write.record_claim(),
        write("disruption_budget"),
        *write.autoscaler(),
        write("network_policy"),
        *(routes() if deployment.host is not None else ()),
        *write.pre_pull(),
    ]


def sandboxes(deployment: Deployment) -> list[KubeObject]:
    """Return the objects of sandboxes, one pod for each claim."""
    write = _Writer(deployment)
    pod = {"public_url": f"http://$(POD_IP):{AGENTS_PORT}", "allowed_hosts": "$(POD_NAME),$(POD_IP)"}
    return [
        *write.runtime_class(),
        *write.record_claim(),
        write("sandbox_template", **pod),
        write("sandbox_pool"),
        *write.pre_pull(),
    ]


class _Writer:
    """Fills the templates with the values of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._values = _values_of(deployment)

    def __call__(self, template: str, suffix: str = "", **more: Any) -> KubeObject:
        """Return an object.

        Args:
            template: its name in ``objects.yaml``.
            suffix: the end of the object's name.
            more: values in addition to the deployment's.
        """
        values = {**self._values, "metadata": self._deployment.metadata(suffix), "said": "", **more}
        body = _filled(_TEMPLATES[template], values)
        return KubeObject(body, body.pop("comment"))

    def runtime_class(self) -> Iterator[KubeObject]:
        """Yield the RuntimeClass of gVisor or Kata; any other is the cluster's own."""
        handler = HANDLERS.get(self._deployment.runtime_class or "")
        if handler is not None:
            yield self("runtime_class", handler=handler)

    def pre_pull(self) -> Iterator[KubeObject]:
        """Yield the DaemonSet that makes every node pull the image, and keeps it there."""
        if self._deployment.pre_pull:
            selector = {**self._deployment.selector, "app.kubernetes.io/component": "pre-pull"}
            labels = {**self._deployment.labels, **selector}
            yield self("pre_pull", "-pre-pull", pre_pull_selector=selector, pre_pull_labels=labels)

    def pod_services(self) -> Iterator[KubeObject]:
        """Yield a service for each possible pod, for routes from outside."""
        for ordinal, pod in enumerate(self._pods()):
            said = self._later_pods(ordinal) if ordinal else "One pod, for its route; also one that drains."
            selector = {**self._deployment.selector, "statefulset.kubernetes.io/pod-name": pod}
            yield self("pod_service", f"-{ordinal}", said=said, pod_selector=selector)

    def record_claim(self) -> Iterator[KubeObject]:
        """Yield the claim of the volume for records, if they are kept."""
        if self._deployment.records is not None:
            yield self("record_claim", "-records")

    def autoscaler(self) -> Iterator[KubeObject]:
        """Yield the autoscaler and what reads its metric; none if a pod's sessions or the range of pods is unknown."""
        deployment = self._deployment
        if deployment.max_sessions is None or not deployment.is_scaled:
            return
        target = max(1, math.floor(deployment.max_sessions * FULL))
        template = "keda" if deployment.autoscaler == "keda" else "autoscaler"
        yield self(
            template,
            most_pods=deployment.most_pods,
            target=str(target),
            removal_s=min(1800, max(60, deployment.grace_s)),
            query=f'sum({METRIC}{{namespace="{deployment.namespace}",pod=~"{deployment.name}-[0-9]+"}})',
        )
        yield self("pod_monitor")

    def gateway_routes(self) -> Iterator[KubeObject]:
        """Yield the routes of the Gateway API: an episode's address to its pod, a session and a token to one each."""
        cut_off = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
        filters = [{"type": "URLRewrite", "urlRewrite": {"path": cut_off}}]
        if self._deployment.durable is not None:
            yield self._http_route("-episodes", "/episodes", f"{self._deployment.name}-agents", BY_EPISODE)
        else:
            for ordinal, pod in enumerate(self._pods()):
                said = self._later_pods(ordinal) if ordinal else BY_HANDLE
                yield self._http_route(f"-{ordinal}", f"/{pod}", pod, said, filters=filters)
        yield self._http_route("-agents", "/mcp", f"{self._deployment.name}-agents", BY_TOKEN)
        said = "Envoy Gateway's. Other Gateways need objects of their own kind."
        yield self._traffic_policy("-agents", {"type": "Header", "header": {"name": "Authorization"}}, said)
        if self._deployment.control_host is None:
            return
        outside = {"to_host": self._deployment.control_host, "port": CONTROL_PORT}
        service = f"{self._deployment.name}-control"
        for ordinal, pod in enumerate(self._pods()):
            yield self._http_route(f"-{ordinal}-control", f"/{pod}", pod, BY_POD, filters=filters, **outside)
        yield self._http_route("-sockets", "/ws", service, "By session: orchestrators.", match="Exact", **outside)
        yield self._traffic_policy("-sockets", {"type": "Header", "header": {"name": "Mcpenv-Session-Id"}})
        yield self._http_route("-http", "/", service, BY_COOKIE, **outside)
        yield self._traffic_policy("-http", {"type": "Cookie", "cookie": {"name": COOKIE, "ttl": "24h"}})

    def _http_route(self, suffix: str, path: str, service: str, said: str, **more: Any) -> KubeObject:
        usual = {"to_host": self._deployment.host, "port": SERVICE_PORT, "match": "PathPrefix", "filters": None}
        return self("http_route", suffix, path=path, service=service, said=said, **{**usual, **more})

    def _traffic_policy(self, suffix: str, by: dict[str, Any], said: str = "") -> KubeObject:
        return self("traffic_policy", suffix, route_name=f"{self._deployment.name}{suffix}", by=by, said=said)

    def ingresses(self) -> Iterator[KubeObject]:
        """Yield the objects of ingress-nginx that lead where the routes of the Gateway API lead."""
        name, host = self._deployment.name, self._deployment.host
        if self._deployment.durable is not None:
            yield self._ingress("-episodes", host, [("/episodes", f"{name}-agents", SERVICE_PORT)], BY_EPISODE, {})
        else:
            pods = [(f"/{pod}(/|$)(.*)", pod, SERVICE_PORT) for pod in self._pods()]
            later = self._later_pods(self._deployment.replicas)
            said = f"{BY_HANDLE}\n{later}" if later else BY_HANDLE
            yield self._ingress("-pods", host, pods, said, {"use-regex": "true", "rewrite-target": "/$2"})
        agents = [("/mcp", f"{name}-agents", SERVICE_PORT)]
        yield self._ingress("-agents", host, agents, BY_TOKEN, {"upstream-hash-by": "$http_authorization"})
        host = self._deployment.control_host
        if host is not None:
            said = "By session: orchestrators, which send the id that they chose."
            pods = [(f"/{pod}(/|$)(.*)", pod, CONTROL_PORT) for pod in self._pods()]
            yield self._ingress("-pods-control", host, pods, BY_POD, {"use-regex": "true", "rewrite-target": "/$2"})
            sockets, http = ([(path, f"{name}-control", CONTROL_PORT)] for path in ("/ws", "/"))
            yield self._ingress("-sockets", host, sockets, said, {"upstream-hash-by": "$http_mcpenv_session_id"})
            yield self._ingress("-http", host, http, BY_COOKIE, {"affinity": "cookie", "session-cookie-name": COOKIE})

    def _ingress(
        self, suffix: str, host: str | None, paths: list[tuple[str, str, int]], said: str, annotations: dict[str, str]
    ) -> KubeObject:
        match = "ImplementationSpecific" if "use-regex" in annotations else "Prefix"
        common = {"proxy-read-timeout": "3600", "proxy-send-timeout": "3600", "proxy-buffering": "off"}
        annotated = {f"nginx.ingress.kubernetes.io/{key}": value for key, value in {**common, **annotations}.items()}
        secret = self._deployment.tls_secret
        return self(
            "ingress",
            suffix,
            annotated_metadata={**self._deployment.metadata(suffix), "annotations": annotated},
            to_host=host,
            tls=None if secret is None else [{"hosts": [host], "secretName": secret}],
            paths=[
                _filled(_TEMPLATES["ingress_path"], {"path": path, "match": match, "service": service, "port": port})
                for path, service, port in paths
            ],
            said=said,
        )

    def _pods(self) -> list[str]:
        return [f"{self._deployment.name}-{ordinal}" for ordinal in range(self._deployment.most_pods)]

    def _later_pods(self, ordinal: int) -> str:
        """Return the comment for the first pod that does not exist from the start; an empty one for all others."""
        deployment = self._deployment
        if ordinal != deployment.replicas or ordinal >= deployment.most_pods:
            return ""
        last = deployment.most_pods - 1
        pods = f"pod {deployment.name}-{ordinal}" if ordinal == last else f"pods {deployment.name}-{ordinal} to -{last}"
        namespace = "" if deployment.namespace is None else f" --namespace {deployment.namespace}"
        by_hand = f"kubectl scale statefulset {deployment.name}{namespace} --replicas {deployment.most_pods}"
        adds = by_hand if deployment.max_sessions is None else "autoscaling"
        return f"For later: {adds} adds {pods}."


def _values_of(deployment: Deployment) -> dict[str, Any]:
    """Return the values for all templates."""
    gateway_namespace, slash, gateway_name = deployment.gateway.rpartition("/")
    millicores = max(1, round(deployment.cpu * 1000))
    sessions = [] if deployment.max_sessions is None else [f"--max-sessions={deployment.max_sessions}"]
    outside = deployment.control_host is not None
    proxies = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": deployment.proxies}}}
    records = {"name": "records", "persistentVolumeClaim": {"claimName": f"{deployment.name}-records"}}
    kept = deployment.records is not None
    durable, parts = deployment.durable is not None, _TEMPLATES["parts"]
    reaches = durable and not deployment.network
    store = " but the ports of stores (5432 and 6379)" if reaches else ""
    no_tools = f"Tools reach no other machine{store} (needs.network)."
    return {
        **vars(deployment),
        "labels": deployment.labels,
        "selector": deployment.selector,
        "pod_labels": {**deployment.labels, **deployment.selector},
        "agents_port": AGENTS_PORT,
        "control_port": CONTROL_PORT,
        "service_port": SERVICE_PORT,
        "grace_s": deployment.grace_s,
        "pre_stop_s": PRE_STOP_S,
        "drain_s": f"{deployment.drain_s:g}",
        "shutdown_timeout_s": f"{deployment.shutdown_timeout_s:g}",
        "requested_cpu": f"{millicores}m",
        "most_cpu": f"{2 * millicores}m",
        "tokens_secret": deployment.tokens_secret,
        "public_url": public_url(deployment),
        "allowed_hosts": ",".join(_names(deployment)),
        # $ begins a reference to a variable; $$ is one.
        "further_arguments": [
            *sessions,
            *([f"--record={RECORDS}"] if kept else []),
            *([f"--durable=$({STORE})"] if durable else []),
            *(f"--set={each.replace('$', '$$')}" for each in deployment.settings or ()),
        ],
        "secret_variables": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": deployment.values_secret, "key": name}}}
            for name in deployment.secrets
        ]
        + (
            [{"name": STORE, "valueFrom": {"secretKeyRef": {"name": deployment.durable, "key": "url"}}}]
            if durable
            else []
        ),
        "metric": METRIC,
        "prometheus": deployment.prometheus_url,
        "fixed_replicas": None if deployment.is_scaled else deployment.replicas,
        "pull_secrets": [{"name": name} for name in deployment.pull_secrets or ()] or None,
        "record_mount": {"name": "records", "mountPath": RECORDS} if kept else None,
        "record_volume": records if kept else None,
        "pod_control_port": {"name": "control", "port": CONTROL_PORT, "targetPort": "control"} if outside else None,
        "role": ROLE,
        "orchestrators": {ROLE: "orchestrator"},
        "outside_proxies": proxies if outside else None,
        "and_proxies": f" and for the proxies in {deployment.proxies}" if outside else "",
        "of_tools": "Tools reach all machines." if deployment.network else no_tools,
        "all_machines": {} if deployment.network else None,
        "only_dns": None if deployment.network else parts["dns"],
        "between_pods": _filled(parts["between_pods"], {"selector": deployment.selector}) if reaches else None,
        "to_store": parts["to_store"] if reaches else None,
        "kept": None if durable else parts["kept"],
        "update": "puts its episodes away, which other pods continue"
        if durable
        else f"has {deployment.drain_s:g} s for running episodes",
        "gateway_name": gateway_name,
        "gateway_namespace": gateway_namespace if slash else None,
    }


def public_url(deployment: Deployment) -> str:
    """Return the URL at which agents reach a pod, or any pod if episodes outlive theirs."""
    if deployment.durable is not None:
        inside = f"http://{deployment.name}-agents.$(POD_NAMESPACE).svc:{SERVICE_PORT}"
        return inside if deployment.host is None else f"https://{deployment.host}"
    if deployment.host is not None:
        return f"https://{deployment.host}/$(POD_NAME)"
    return f"http://$(POD_NAME).{deployment.name}.$(POD_NAMESPACE).svc:{AGENTS_PORT}"


def _names(deployment: Deployment) -> list[str]:
    """Return the names under which clients reach a pod, in all forms that the cluster's DNS resolves."""
    services = (f"$(POD_NAME).{deployment.name}", f"{deployment.name}-agents", f"{deployment.name}-control")
    ends = ("", ".$(POD_NAMESPACE)", ".$(POD_NAMESPACE).svc", ".$(POD_NAMESPACE).svc.cluster.local")
    outside = [host for host in (deployment.host, deployment.control_host) if host is not None]
    return [*(f"{service}{end}" for service in services for end in ends), *outside]


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with values. A key without a value is left out, and a list in a list is joined to it."""
    if isinstance(template, dict):
        made = {key: _filled(item, values) for key, item in template.items()}
        return {key: item for key, item in made.items() if item is not None}
    if isinstance(template, list):
        items = [_filled(item, values) for item in template]
        return [each for item in items if item is not None for each in (item if isinstance(item, list) else [item])]
    if not isinstance(template, str):
        return template
    place = _PLACE.fullmatch(template)
    return values[place[1]] if place else _PLACE.sub(lambda found: str(values[found[1]]), template)
