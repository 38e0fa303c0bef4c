"""The documented fields of custom resources that are written here, as small schemas.

Offline validators know no custom resources, and pass everything in them. These schemas have the fields of the versions
named in their ``apiVersion``, so that a misspelt field is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .problem import Found, Problem

Duration = Annotated[str, Field(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Object(_Part):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]


# -- Gateway API: gateway.networking.k8s.io/v1


class _ParentRef(_Part):
    name: str
    namespace: str | None = None
    group: str | None = None
    kind: str | None = None
    sectionName: str | None = None
    port: Port | None = None


class _PathMatch(_Part):
    type: Literal["Exact", "PathPrefix", "RegularExpression"] = "PathPrefix"
    value: Annotated[str, Field(pattern=r"^/", max_length=1024)] = "/"


class _HeaderMatch(_Part):
    name: str
    value: str
    type: Literal["Exact", "RegularExpression"] = "Exact"


class _RouteMatch(_Part):
    path: _PathMatch | None = None
    headers: list[_HeaderMatch] | None = None
    queryParams: list[_HeaderMatch] | None = None
    method: str | None = None


class _PathModifier(_Part):
    type: Literal["ReplaceFullPath", "ReplacePrefixMatch"]
    replaceFullPath: str | None = None
    replacePrefixMatch: str | None = None


class _Rewrite(_Part):
    hostname: str | None = None
    path: _PathModifier | None = None


class _RouteFilter(_Part):
    type: str
    urlRewrite: _Rewrite | None = None
    requestHeaderModifier: dict[str, Any] | None = None
    responseHeaderModifier: dict[str, Any] | None = None
    requestRedirect: dict[str, Any] | None = None
    requestMirror: dict[str, Any] | None = None
    extensionRef: dict[str, Any] | None = None
    cors: dict[str, Any] | None = None


class _BackendRef(_Part):
    name: str
    port: Port | None = None
    namespace: str | None = None
    group: str | None = None
    kind: str | None = None
    weight: Count | None = None
    filters: list[_RouteFilter] | None = None


class _Timeouts(_Part):
    request: Duration | None = None
    backendRequest: Duration | None = None


class _RouteRule(_Part):
    name: str | None = None
    matches: list[_RouteMatch] | None = None
    filters: list[_RouteFilter] | None = None
    backendRefs: list[_BackendRef] | None = None
    timeouts: _Timeouts | None = None
    retry: dict[str, Any] | None = None
    sessionPersistence: dict[str, Any] | None = None


class _RouteSpec(_Part):
    parentRefs: Annotated[list[_ParentRef], Field(max_length=32)]
    hostnames: Annotated[list[str], Field(max_length=16)] = []
    rules: Annotated[list[_RouteRule], Field(max_length=16)]


class _HTTPRoute(_Object):
    spec: _RouteSpec


# -- Envoy Gateway: gateway.envoyproxy.io/v1alpha1


class _PolicyTarget(_Part):
    group: str
    kind: str
    name: str
    sectionName: str | None = None


class _HashHeader(_Part):
    name: str


class _HashCookie(_Part):
    name: str
    ttl: Duration | None = None
    attributes: dict[str, str] | None = None


class _Hash(_Part):
    type: Literal["SourceIP", "Header", "Headers", "Cookie", "QueryParams"]
    header: _HashHeader | None = None
    headers: list[_HashHeader] | None = None
    queryParams: list[_HashHeader] | None = None
    cookie: _HashCookie | None = None
    tableSize: int | None = None


class _LoadBalancer(_Part):
    type: Literal["BackendUtilization", "ConsistentHash", "DynamicModule", "LeastRequest", "Random", "RoundRobin"]
    consistentHash: _Hash | None = None
    backendUtilization: dict[str, Any] | None = None
    dynamicModule: dict[str, Any] | None = None
    endpointOverride: dict[str, Any] | None = None
    slowStart: dict[str, Any] | None = None
    zoneAware: dict[str, Any] | None = None


class _TrafficSpec(_Part):
    targetRef: _PolicyTarget | None = None
    targetRefs: Annotated[list[_PolicyTarget], Field(min_length=1)] | None = None
    targetSelectors: list[dict[str, Any]] | None = None
    loadBalancer: _LoadBalancer | None = None
    # Not written here; their own fields are not checked.
    admissionControl: Any = None
    bandwidthLimit: Any = None
    circuitBreaker: Any = None
    compression: Any = None
    compressor: Any = None
    connection: Any = None
    dns: Any = None
    faultInjection: Any = None
    healthCheck: Any = None
    http2: Any = None
    httpUpgrade: Any = None
    mergeType: Any = None
    proxyProtocol: Any = None
    rateLimit: Any = None
    requestBuffer: Any = None
    responseOverride: Any = None
    retry: Any = None
    routingType: Any = None
    tcpKeepalive: Any = None
    telemetry: Any = None
    timeout: Any = None
    useClientProtocol: Any = None


class _BackendTrafficPolicy(_Object):
    spec: _TrafficSpec


# -- Agent Sandbox: extensions.agents.x-k8s.io/v1beta1


class _PodTemplate(_Part):
    metadata: dict[str, Any] = {}
    spec: dict[str, Any]


class _SandboxPolicy(_Part):
    ingress: list[dict[str, Any]] = []
    egress: list[dict[str, Any]] = []


class _TemplateSpec(_Part):
    podTemplate: _PodTemplate
    volumeClaimTemplates: list[dict[str, Any]] | None = None
    volumeClaimTemplatesPolicy: str | None = None
    service: bool | None = None
    networkPolicy: _SandboxPolicy | None = None
    networkPolicyManagement: Literal["Managed", "Unmanaged"] = "Managed"
    envVarsInjectionPolicy: Literal["Allowed", "Overrides", "Disallowed"] = "Disallowed"


class _SandboxTemplate(_Object):
    spec: _TemplateSpec


class _Named(_Part):
    name: str


class _UpdateStrategy(_Part):
    type: Literal["Recreate", "OnReplenish"] = "OnReplenish"


class _PoolSpec(_Part):
    replicas: Count = 1
    sandboxTemplateRef: _Named
    updateStrategy: _UpdateStrategy | None = None


class _SandboxWarmPool(_Object):
    spec: _PoolSpec


class _Lifecycle(_Part):
    shutdownTime: str | None = None
    ttlSecondsAfterFinished: Count | None = None
    shutdownPolicy: Literal["Delete", "DeleteForeground", "Retain"] = "Retain"


class _ClaimSpec(_Part):
    warmPoolRef: _Named
    lifecycle: _Lifecycle | None = None
    additionalPodMetadata: dict[str, Any] | None = None
    env: list[dict[str, str]] | None = None
    volumeClaimTemplates: list[dict[str, Any]] | None = None


class _SandboxClaim(_Object):
    spec: _ClaimSpec


SCHEMAS: dict[tuple[str, str], type[_Object]] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _HTTPRoute,
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"): _BackendTrafficPolicy,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate"): _SandboxTemplate,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool"): _SandboxWarmPool,
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"): _SandboxClaim,
}
"""The custom resources that are known, by ``apiVersion`` and kind."""


def check_custom(found: Found) -> Iterator[Problem]:
    """Yield the mistakes of a custom resource that is known; nothing for other objects."""
    schema = SCHEMAS.get((str(found.body.get("apiVersion")), found.kind))
    if schema is None:
        return
    try:
        schema.model_validate(dict(found.body))
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
            text = "is no field of it" if fault["type"] == "extra_forbidden" else str(fault["msg"])
            yield found.problem(path.lstrip("."), text)


__all__ = ["SCHEMAS", "check_custom"]
