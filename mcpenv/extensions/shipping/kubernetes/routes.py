"""The routes from outside to pods: an episode's address to its pod, a session and a token to one pod each."""

from __future__ import annotations

from typing import Any

from .deployment import CONTROL_PORT, Deployment
from .kube_object import KubeObject
from .workload import AGENTS_SERVICE_PORT, later_pods

SESSION, TOKEN = "Mcpenv-Session-Id", "Authorization"
"""The headers that route requests to one pod: of a returning orchestrator, and of an agent."""

COOKIE = "mcpenv_server"
BY_HANDLE = "By handle: the address of an episode begins with the name of its pod."
_CUT_OFF = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}


def routes(deployment: Deployment) -> list[KubeObject]:
    """Return the routes; none if only the cluster reaches the servers."""
    make = _gateway_routes if deployment.route == "gateway" else _ingresses
    return make(deployment) if deployment.host is not None else []


# -- Gateway API


def _gateway_routes(deployment: Deployment) -> list[KubeObject]:
    made = []
    for ordinal in range(deployment.most_pods):
        pod = f"{deployment.name}-{ordinal}"
        rule = {
            "matches": [{"path": {"type": "PathPrefix", "value": f"/{pod}"}}],
            "filters": [{"type": "URLRewrite", "urlRewrite": {"path": _CUT_OFF}}],
            **_backend(pod, AGENTS_SERVICE_PORT),
        }
        comment = BY_HANDLE if ordinal == 0 else later_pods(deployment, ordinal)
        made.append(_http_route(deployment, f"-{ordinal}", deployment.host, rule, comment))
    agents = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/mcp"}}],
        **_backend(f"{deployment.name}-agents", AGENTS_SERVICE_PORT),
    }
    made += [
        _http_route(deployment, "-agents", deployment.host, agents, "By token: agents without an episode."),
        _sticky(deployment, "-agents", {"type": "Header", "header": {"name": TOKEN}}),
    ]
    if deployment.control_host is None:
        return made
    for suffix, path, comment, by in (
        ("-sockets", "/ws", "By session: orchestrators.", {"type": "Header", "header": {"name": SESSION}}),
        (
            "-http",
            "/",
            "By cookie: sessions over HTTP.",
            {"type": "Cookie", "cookie": {"name": COOKIE, "ttl": "24h"}},
        ),
    ):
        rule = {
            "matches": [{"path": {"type": "Exact" if path == "/ws" else "PathPrefix", "value": path}}],
            **_backend(f"{deployment.name}-control", CONTROL_PORT),
        }
        made += [
            _http_route(deployment, suffix, deployment.control_host, rule, comment),
            _sticky(deployment, suffix, by),
        ]
    return made


def _http_route(
    deployment: Deployment, suffix: str, host: str | None, rule: dict[str, Any], comment: str
) -> KubeObject:
    namespace, slash, name = deployment.gateway.rpartition("/")
    body = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": deployment.metadata(suffix),
        "spec": {
            "parentRefs": [{"name": name, **({"namespace": namespace} if slash else {})}],
            "hostnames": [host],
            "rules": [rule],
        },
    }
    return KubeObject(body, comment)


def _backend(service: str, port: int) -> dict[str, Any]:
    # 0s: no limit for the request, which may be a WebSocket or an event stream.
    return {"backendRefs": [{"name": service, "port": port}], "timeouts": {"request": "0s"}}


def _sticky(deployment: Deployment, suffix: str, by: dict[str, Any]) -> KubeObject:
    body = {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": deployment.metadata(suffix),
        "spec": {
            "targetRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "HTTPRoute",
                    "name": f"{deployment.name}{suffix}",
                }
            ],
            "loadBalancer": {"type": "ConsistentHash", "consistentHash": by},
        },
    }
    comment = "Envoy Gateway's. Other Gateways need objects of their own kind." if suffix == "-agents" else ""
    return KubeObject(body, comment)


# -- Ingress, with the annotations of ingress-nginx


def _ingresses(deployment: Deployment) -> list[KubeObject]:
    name = deployment.name
    pods = [
        (f"/{name}-{ordinal}(/|$)(.*)", f"{name}-{ordinal}", AGENTS_SERVICE_PORT)
        for ordinal in range(deployment.most_pods)
    ]
    made = [
        _ingress(
            deployment,
            "-pods",
            deployment.host,
            pods,
            {"use-regex": "true", "rewrite-target": "/$2"},
            "\n".join(filter(None, (BY_HANDLE, later_pods(deployment, deployment.replicas)))),
        ),
        _ingress(
            deployment,
            "-agents",
            deployment.host,
            [("/mcp", f"{name}-agents", AGENTS_SERVICE_PORT)],
            {"upstream-hash-by": "$http_authorization"},
            "By token: agents without an episode.",
        ),
    ]
    if deployment.control_host is not None:
        control = f"{name}-control"
        made += [
            _ingress(
                deployment,
                "-sockets",
                deployment.control_host,
                [("/ws", control, CONTROL_PORT)],
                {"upstream-hash-by": "$http_mcpenv_session_id"},
                "By session: orchestrators, which send the id that they chose.",
            ),
            _ingress(
                deployment,
                "-http",
                deployment.control_host,
                [("/", control, CONTROL_PORT)],
                {"affinity": "cookie", "session-cookie-name": COOKIE},
                "By cookie: sessions over HTTP.",
            ),
        ]
    return made


def _ingress(
    deployment: Deployment,
    suffix: str,
    host: str | None,
    paths: list[tuple[str, str, int]],
    annotations: dict[str, str],
    comment: str,
) -> KubeObject:
    seconds = "3600"
    common = {"proxy-read-timeout": seconds, "proxy-send-timeout": seconds, "proxy-buffering": "off"}
    is_pattern = "use-regex" in annotations
    tls = {} if deployment.tls_secret is None else {"tls": [{"hosts": [host], "secretName": deployment.tls_secret}]}
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            **deployment.metadata(suffix),
            "annotations": {
                f"nginx.ingress.kubernetes.io/{key}": value for key, value in {**common, **annotations}.items()
            },
        },
        "spec": {
            "ingressClassName": "nginx",
            **tls,
            "rules": [
                {
                    "host": host,
                    "http": {
                        "paths": [
                            {
                                "path": path,
                                "pathType": "ImplementationSpecific" if is_pattern else "Prefix",
                                "backend": {"service": {"name": service, "port": {"number": port}}},
                            }
                            for path, service, port in paths
                        ]
                    },
                }
            ],
        },
    }
    return KubeObject(body, comment)
