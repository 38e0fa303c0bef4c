"""The command ``mcpenv deploy k8s``: write the manifests of an environment on Kubernetes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from mcpenv.cli.output import Page, note, number_of, print_json
from mcpenv.errors import ConfigurationError
from mcpenv.targets.target import manifest_of

from .kubernetes.deployment import Deployment
from .kubernetes.manifests import secret_commands, text_of, write
from .kubernetes.objects import METRIC, KubeObject, sandboxes, server_objects

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


def k8s(
    target: str | None = None,
    /,
    *,
    image: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    out: Path | None = None,
    force: Flag = False,
    sandbox: Flag = False,
    pods: Pods = Pods(),
    routes: Routes = Routes(),
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Flag = False,
) -> int:
    """Write the manifests that serve an environment on Kubernetes.

    They are printed, so that they can be piped to kubectl, or written with --out. Nothing is sent to a cluster. Exit
    status 0: written. 2: refused.

    Args:
        target: Folder with mcpenv.yaml, which provides limits, needs and secrets; or any other target with --name.
        image: Image of the environment, as mcpenv build makes it, at a registry that the cluster reaches.
        name: Name of all objects. Default: the manifest's, with - for _.
        namespace: Namespace to write into the objects. Default: none, so that kubectl decides.
        out: File that ends with .yaml, or folder for kubectl apply -k. Default: print.
        force: Overwrite files.
        sandbox: Write a SandboxTemplate and a SandboxWarmPool of kubernetes-sigs/agent-sandbox instead.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    if target is None:
        raise ConfigurationError("the TARGET is missing; write mcpenv deploy k8s TARGET --image IMAGE")
    deployment = _deployment(target, image, name, namespace, pods, routes)
    objects = sandboxes(deployment) if sandbox else server_objects(deployment)
    header = _header(deployment, sandbox)
    written = [] if out is None else write(objects, out, header, force=force)
    if as_json:
        print_json(_as_json(deployment, objects, written, out))
    elif out is None:
        print(text_of(objects, header), end="")
    else:
        _show(deployment, objects, written, out)
    if not sandbox and deployment.max_sessions is None:
        note("No autoscaling: say how many sessions a pod has (limits.max_sessions in mcpenv.yaml, or --max-sessions).")
    return 0


def _deployment(
    target: str, image: str | None, name: str | None, namespace: str | None, pods: Pods, routes: Routes
) -> Deployment:
    manifest = manifest_of(target)
    if manifest is None and name is None:
        raise ConfigurationError(f"{target} has no mcpenv.yaml; give the objects a --name, such as my-env")
    given = {"image": image, "name": name, "namespace": namespace, **vars(pods), **vars(routes)}
    return Deployment.of(manifest, {**given, "settings": tuple(pods.settings or ()) or None})


# -- output


def _header(deployment: Deployment, sandbox: bool) -> str:
    """Return the comment at the top of the manifests."""
    kind = "in sandboxes of agent-sandbox" if sandbox else "as servers of many sessions"
    lines = [
        f"{deployment.name} {kind}, written by: mcpenv deploy k8s",
        "Before it, make the Secrets. The file agent-tokens has one name=token a line.",
        *(f"  {command}" for command in secret_commands(deployment)),
    ]
    return "\n".join(lines)


def _as_json(
    deployment: Deployment, objects: list[KubeObject], written: list[Path], out: Path | None
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": deployment.name,
        "namespace": deployment.namespace,
        "objects": [{"kind": each.kind, "name": each.name} for each in objects],
        "files": [str(path) for path in written],
        "secrets": secret_commands(deployment),
    }
    if out is None:
        described["manifests"] = [each.body for each in objects]
    return described


def _show(deployment: Deployment, objects: list[KubeObject], written: list[Path], out: Path) -> None:
    page = Page(sys.stdout)
    page.line((deployment.name, "bold"), f": {number_of(len(objects), 'object')} in {number_of(len(written), 'file')}")
    page.line()
    for each in objects:
        page.line(f"{each.kind:24}", (each.name, "cyan"), indent=2)
    page.line()
    page.line("Next:")
    page.line()
    how = "-k" if out not in written else "-f"
    for command in (*secret_commands(deployment), f"kubectl apply {how} {out}"):
        page.line((command, "cyan"), indent=2)
    if any(each.kind == "HorizontalPodAutoscaler" for each in objects):
        page.line()
        page.line(f"Autoscaling needs an adapter that gives Kubernetes the metric {METRIC}.")
