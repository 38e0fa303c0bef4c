"""The command ``mcpenv deploy k8s``: write the manifests of an environment on Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.output import Page, note, number_of, print_json
from mcpenv.errors import ConfigurationError
from mcpenv.targets.target import manifest_of

from .kubernetes.deployment import Deployment, Flag, Pods, Routes
from .kubernetes.manifests import KUSTOMIZATION, SUFFIXES, secret_commands, text_of, write
from .kubernetes.objects import METRIC, KubeObject, sandboxes, server_objects
from .kubernetes.overlays import OVERLAYS


def k8s(
    target: str | None = None,
    /,
    *,
    image: str | None = None,
    name: str | None = None,
    namespace: str | None = None,
    out: Path | None = None,
    overlays: Flag = False,
    force: Flag = False,
    sandbox: Flag = False,
    pods: Pods = Pods(),  # noqa: B008 - frozen
    routes: Routes = Routes(),  # noqa: B008 - frozen
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
        overlays: Write the objects to the folder base in --out, and overlays of Kustomize for kind, GKE and EKS.
        force: Overwrite files.
        sandbox: Write a SandboxTemplate and a SandboxWarmPool of kubernetes-sigs/agent-sandbox instead.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    if target is None:
        raise ConfigurationError("the TARGET is missing; write mcpenv deploy k8s TARGET --image IMAGE")
    deployment = _deployment(target, image, name, namespace, pods, routes)
    if sandbox and deployment.durable is not None:
        raise ConfigurationError("--durable: a sandbox is the only server of its episodes; leave out --sandbox")
    objects = sandboxes(deployment) if sandbox else server_objects(deployment)
    header = _header(deployment, sandbox)
    if overlays and (out is None or out.suffix in SUFFIXES):
        raise ConfigurationError("--overlays: name a folder for them, by --out")
    kept = deployment if overlays else None
    written = [] if out is None else write(objects, out, header, force=force, overlays_of=kept)
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
    return Deployment.of(manifest, given)


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
    applied = out / OVERLAYS / "kind" if out / OVERLAYS / "kind" / KUSTOMIZATION in written else out
    for command in (*secret_commands(deployment), f"kubectl apply {how} {applied}"):
        page.line((command, "cyan"), indent=2)
    if deployment.is_scaled and any(each.kind == "PodMonitor" for each in objects):
        page.line()
        page.line(
            f"Autoscaling needs Prometheus with its operator, and {deployment.autoscaler}, which reads {METRIC}.",
        )
