"""The settings of an environment's servers on Kubernetes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from mcpenv.errors import ConfigurationError
from mcpenv.targets.manifest import Manifest, ModeName

from .names import is_dns_label, is_dns_subdomain, is_service_name, name_from, quantity

MAX_NAME = 48
"""Maximum characters of a name: pods, services and revisions of it must not have more than 63."""

MOST_PODS = 4
"""The default maximum of pods with autoscaling."""

PRE_STOP_S = 5
"""Seconds between the end of new traffic and SIGTERM, in which proxies and endpoints are updated."""

MARGIN_S = 15
"""Seconds beyond a server's own limits until Kubernetes kills it."""

PROXIES = {"gateway": "envoy-gateway-system", "ingress": "ingress-nginx"}
"""The namespaces in which Envoy Gateway and ingress-nginx run their proxies, by the kind of routes."""

_PODS = Group("Pods", sort_key=10)
_ROUTES = Group("Routes", sort_key=11)

Several = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=_PODS)
@dataclass(frozen=True, kw_only=True)
class Pods:
    """The options for pods. The manifest provides defaults.

    Attributes:
        replicas: Pods; with autoscaling, the minimum. Default: 2.
        max_replicas: Maximum pods, with autoscaling or scaled by hand. Default: 4 with autoscaling, else --replicas.
        max_sessions: Sessions of one pod. Autoscaling needs it.
        mode: simulation for orchestrators, production for live clients.
        settings: name=value for the environment's constructor; may be given several times.
        memory: Memory of a pod, such as 2Gi. Default: 1Gi.
        cpu: Processors that a pod requests; it may use twice as many. Default: 0.5.
        drain_s: Seconds that running episodes have to end when a pod is replaced.
        runtime_class: RuntimeClass of pods: gvisor, kata (both are written), or one that the cluster has.
        pre_pull: Make every node pull the image beforehand.
        pull_secrets: Secret with which the image is pulled; may be given several times.
        records: Size of a volume for the episodes of all pods, such as 20Gi. Default: episodes are not kept.
        durable: Secret whose key url is the address of a store: episodes outlive their pod, and any pod answers their
            agents. Default: an episode ends with its pod.
        storage_class: Storage class of that volume, which several nodes mount at once. Default: the cluster's.
        autoscaler: What reads the metric: prometheus-adapter, or keda. Both need Prometheus and its operator.
            Default: prometheus-adapter.
        prometheus: Address of Prometheus in the cluster, for keda.
            Default: http://prometheus-operated.NAMESPACE.svc:9090 with --monitoring-namespace.
        warm: Sandboxes that are kept ready, with --sandbox. Default: 2.
    """

    replicas: int | None = None
    max_replicas: int | None = None
    max_sessions: int | None = None
    mode: Literal["simulation", "production"] | None = None
    settings: Several = None
    memory: str | None = None
    cpu: float | None = None
    drain_s: float | None = None
    runtime_class: str | None = None
    pre_pull: Flag = False
    pull_secrets: Annotated[list[str] | None, Parameter(name="--pull-secret", negative=())] = None
    records: str | None = None
    durable: str | None = None
    storage_class: str | None = None
    autoscaler: Literal["prometheus-adapter", "keda"] | None = None
    prometheus: str | None = None
    warm: int | None = None


@Parameter(name="*", group=_ROUTES)
@dataclass(frozen=True, kw_only=True)
class Routes:
    """The options for reaching pods.

    Attributes:
        host: Host name under which agents outside of the cluster reach the servers. Default: the cluster only.
        control_host: Another host name, for orchestrators outside of the cluster. Default: the cluster only.
        route: Write routes of the Gateway API, or an Ingress of ingress-nginx. Default: gateway.
        gateway: The Gateway, as NAMESPACE/NAME or NAME. Default: gateway.
        tls_secret: Secret with the certificate of an Ingress.
        proxy_namespace: Namespace of the proxies of these routes, which reach the control plane with --control-host.
            Default: envoy-gateway-system, or ingress-nginx with --route ingress.
        monitoring_namespace: Namespace of Prometheus, which may read metrics. Default: monitoring.
    """

    host: str | None = None
    control_host: str | None = None
    route: Literal["gateway", "ingress"] | None = None
    gateway: str | None = None
    tls_secret: str | None = None
    proxy_namespace: str | None = None
    monitoring_namespace: str | None = None


@dataclass(frozen=True, kw_only=True)
class Deployment(Pods, Routes):
    """The servers of one environment: options with their defaults, and the facts of the manifest.

    Attributes:
        name: the name of all objects, a DNS label.
        image: the image; its entrypoint takes options of ``mcpenv run``.
        namespace: the namespace that the objects name; None leaves it to ``kubectl``.
        network: True if tools connect to other machines.
        secrets: names of environment variables, which a Secret has as keys.
        shutdown_timeout_s: seconds that running steps have after those of ``drain_s``.
    """

    name: str
    image: str
    namespace: str | None = None
    replicas: int = 2
    mode: ModeName = "simulation"
    memory: str = "1Gi"
    cpu: float = 0.5
    drain_s: float = 30.0
    warm: int = 2
    autoscaler: Literal["prometheus-adapter", "keda"] = "prometheus-adapter"
    route: Literal["gateway", "ingress"] = "gateway"
    gateway: str = "gateway"
    monitoring_namespace: str = "monitoring"
    network: bool = False
    secrets: tuple[str, ...] = ()
    shutdown_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not is_service_name(self.name) or len(self.name) > MAX_NAME:
            raise ConfigurationError(
                f"the name {self.name!r} cannot be that of Kubernetes objects; give --name with at most {MAX_NAME} "
                "small letters, digits and -, beginning with a letter"
            )
        if not self.image or any(char.isspace() for char in self.image):
            raise ConfigurationError(f"--image {self.image!r} is no image; write such as registry.example/team/env:1.2")
        if self.replicas < 1 or self.most_pods < self.replicas:
            raise ConfigurationError(
                f"--replicas {self.replicas} and --max-replicas {self.most_pods}: at least 1, the second not less"
            )
        if self.warm < 0:
            raise ConfigurationError(f"--warm is {self.warm}; it must be 0 or more")
        if self.max_sessions is not None and self.max_sessions < 1:
            raise ConfigurationError(f"--max-sessions is {self.max_sessions}; it must be 1 or more")
        memory = quantity(self.memory)
        if memory is None or memory < 2**20:
            raise ConfigurationError(f"--memory {self.memory}: write an amount such as 512Mi or 2Gi")
        if not 0 < self.cpu < math.inf:
            raise ConfigurationError(f"--cpu is {self.cpu:g}; it must be a number above 0")
        for option, host in (("--host", self.host), ("--control-host", self.control_host)):
            if host is not None and (not is_dns_subdomain(host) or "." not in host):
                raise ConfigurationError(f"{option} {host}: it must be a host name such as env.example.org")
        if self.host is not None and self.host == self.control_host:
            raise ConfigurationError("--host and --control-host are the same; agents would reach the control plane")
        for part in self.gateway.split("/", 1):
            if not is_dns_subdomain(part):
                raise ConfigurationError(f"--gateway {self.gateway}: write NAME, or NAMESPACE/NAME")
        if self.records is not None and ((size := quantity(self.records)) is None or size < 2**20):
            raise ConfigurationError(f"--records {self.records}: write an amount such as 20Gi")
        if self.records is not None and self.mode == "production":
            raise ConfigurationError("--records: there are no episodes to record in production mode")
        if self.durable is not None and self.mode == "production":
            raise ConfigurationError("--durable: there are no episodes to keep in production mode")
        if self.records is None and self.storage_class is not None:
            raise ConfigurationError("--storage-class is for the volume of --records; give its size as well")
        if self.autoscaler == "keda" and self.namespace is None:
            raise ConfigurationError("--autoscaler keda: give --namespace as well, which its query names")
        if self.prometheus is not None and self.autoscaler != "keda":
            raise ConfigurationError("--prometheus is for --autoscaler keda; prometheus-adapter has its own address")
        for option, name in (
            ("--runtime-class", self.runtime_class),
            ("--tls-secret", self.tls_secret),
            ("--storage-class", self.storage_class),
            ("--durable", self.durable),
            *(("--pull-secret", name) for name in self.pull_secrets or ()),
        ):
            if name is not None and not is_dns_subdomain(name):
                raise ConfigurationError(f"{option} {name}: use small letters, digits, - and .")
        for option, namespace in (
            ("--namespace", self.namespace),
            ("--proxy-namespace", self.proxy_namespace),
            ("--monitoring-namespace", self.monitoring_namespace),
        ):
            if namespace is not None and not is_dns_label(namespace):
                raise ConfigurationError(f"{option} {namespace}: use small letters, digits and -")

    @classmethod
    def of(cls, manifest: Manifest | None, given: Mapping[str, Any]) -> Deployment:
        """Return the settings of a manifest, where the given ones win. None counts as not given.

        Raises:
            ConfigurationError: a value cannot be used, the image is missing, or the mode is not allowed.
        """
        stated: dict[str, Any] = {}
        if manifest is not None:
            limits, needs = manifest.limits, manifest.needs
            stated = {
                "name": name_from(manifest.name),
                "max_sessions": limits.max_sessions,
                "drain_s": limits.drain_s,
                "shutdown_timeout_s": limits.shutdown_timeout_s,
                "memory": needs.memory,
                "cpu": needs.cpu,
                "network": needs.network,
                "secrets": tuple(manifest.secrets),
                "mode": manifest.modes[0] if len(manifest.modes) == 1 else None,
            }
        values = {name: value for name, value in (*stated.items(), *given.items()) if value is not None}
        if "image" not in values:
            raise ConfigurationError(
                "--image is missing: the image that mcpenv build made, at a registry that the cluster reaches, "
                "such as registry.example/team/env:1.2"
            )
        made = cls(**values)
        if manifest is not None and made.mode not in manifest.modes:
            raise ConfigurationError(f"--mode {made.mode}: the manifest allows {' and '.join(manifest.modes)} only")
        return made

    @property
    def most_pods(self) -> int:
        """The maximum number of pods. With a host, each of them has a service and a route."""
        if self.max_replicas is not None:
            return self.max_replicas
        return self.replicas if self.max_sessions is None else max(MOST_PODS, self.replicas)

    @property
    def has_pod_routes(self) -> bool:
        """True if each pod has an address outside of the cluster."""
        return self.host is not None and (self.durable is None or self.control_host is not None)

    @property
    def is_scaled(self) -> bool:
        """True if an autoscaler sets the number of pods."""
        return self.max_sessions is not None and self.most_pods != self.replicas

    @property
    def prometheus_url(self) -> str:
        """The address that KEDA asks."""
        return self.prometheus or f"http://prometheus-operated.{self.monitoring_namespace}.svc:9090"

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which its pods are found."""
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/component": "server"}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its objects."""
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/managed-by": "mcpenv"}

    @property
    def grace_s(self) -> int:
        """Seconds from the end of new traffic until Kubernetes kills a pod."""
        return math.ceil(PRE_STOP_S + self.drain_s + self.shutdown_timeout_s + MARGIN_S)

    @property
    def proxies(self) -> str:
        """The namespace of the proxies that the routes configure."""
        return self.proxy_namespace or PROXIES[self.route]

    @property
    def tokens_secret(self) -> str:
        """The Secret with the tokens of both planes and of scrapers."""
        return f"{self.name}-tokens"

    @property
    def values_secret(self) -> str:
        """The Secret with the values of the manifest's secrets."""
        return f"{self.name}-secrets"

    def metadata(self, suffix: str = "") -> dict[str, Any]:
        """Return the metadata of an object, with a suffix appended to its name."""
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": f"{self.name}{suffix}", **namespace, "labels": self.labels}
