"""The settings of an environment's servers on Kubernetes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The servers of one environment.

    Attributes:
        name: the name of all objects, a DNS label.
        image: the image; its entrypoint takes options of ``mcpenv run``.
        namespace: the namespace that the objects name; None leaves it to ``kubectl``.
        replicas: pods; with autoscaling, the minimum.
        max_replicas: the maximum with autoscaling, or scaled by hand; None: 4 with autoscaling, else ``replicas``.
        max_sessions: sessions of one pod; None leaves it to the environment, and disables autoscaling by sessions.
        mode: ``simulation`` or ``production``.
        settings: ``name=value`` for the environment's constructor.
        host: the name under which agents of other networks reach the servers; None: only the cluster does.
        control_host: the same for orchestrators; None keeps the control plane in the cluster.
        route: the kind of objects that lead from these names to pods.
        gateway: the Gateway of these routes, as ``namespace/name`` or ``name``.
        tls_secret: the Secret with the certificate of an Ingress.
        memory: memory of a pod, requested and the limit.
        cpu: processors that a pod requests; it may use twice as many.
        network: True if tools connect to other machines.
        secrets: names of environment variables, which a Secret has as keys.
        drain_s: seconds that running episodes have to end.
        shutdown_timeout_s: seconds that running steps have then.
        runtime_class: the RuntimeClass of pods, such as ``gvisor`` or ``kata``.
        pre_pull: True to make every node pull the image beforehand.
        proxy_namespace: the namespace of the proxies that the routes configure; None for the namespace of the usual
            installation.
        monitoring_namespace: the namespace from which metrics are read.
        warm: sandboxes that are kept ready.
    """

    name: str
    image: str
    namespace: str | None = None
    replicas: int = 2
    max_replicas: int | None = None
    max_sessions: int | None = None
    mode: ModeName = "simulation"
    settings: tuple[str, ...] = ()
    host: str | None = None
    control_host: str | None = None
    route: Literal["gateway", "ingress"] = "gateway"
    gateway: str = "gateway"
    tls_secret: str | None = None
    memory: str = "1Gi"
    cpu: float = 0.5
    network: bool = False
    secrets: tuple[str, ...] = ()
    drain_s: float = 30.0
    shutdown_timeout_s: float = 30.0
    runtime_class: str | None = None
    pre_pull: bool = False
    proxy_namespace: str | None = None
    monitoring_namespace: str = "monitoring"
    warm: int = 2

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
        for option, name in (("--runtime-class", self.runtime_class), ("--tls-secret", self.tls_secret)):
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
