"""The manifests that `mcpenv deploy k8s` writes, against the schemas of Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from kubernetes_objects import EVERYTHING, INGRESS, deployment, one

from mcpenv.extensions.shipping.kubernetes.deployment import Deployment
from mcpenv.extensions.shipping.kubernetes.manifests import write
from mcpenv.extensions.shipping.kubernetes.objects import sandboxes, server_objects
from mcpenv.extensions.shipping.kubernetes.overlays import PLATFORMS
from mcpenv_client.providers.kubernetes import KubernetesProvider
from mcpenv_client.providers.pod import pod_body, secret_body

PATIENCE_S = 120.0
CUSTOM = (
    *("gateway.networking.k8s.io", "gateway.envoyproxy.io", "extensions.agents.x-k8s.io"),
    *("monitoring.coreos.com", "keda.sh"),
)
"""The groups of custom resources, which kubernetes-validate does not know."""

pytestmark = pytest.mark.world


def validated(objects: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    program = Path(sys.executable).with_name("kubernetes-validate")
    assert program.exists(), "there is no kubernetes-validate; .ci/run installs it"
    return subprocess.run(
        [str(program), "--strict", str(file)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def known(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects of Kubernetes' own kinds, and for each sandbox a pod of its template."""
    own = [each for each in objects if each["apiVersion"].split("/")[0] not in CUSTOM]
    templates = [each["spec"]["podTemplate"] for each in objects if each["kind"] == "SandboxTemplate"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"}, "spec": template["spec"]}
        for template in templates
    ]
    return [*own, *pods]


@pytest.mark.parametrize("given", [{}, EVERYTHING, INGRESS, {"durable": "shop-store", "host": "shop.example.org"}])
@pytest.mark.parametrize("make", [server_objects, sandboxes])
def test_manifests_fit_the_schemas(make: Any, given: dict[str, Any], tmp_path: Path) -> None:
    made = make(Deployment(name="shop", image="registry.example/team/shop:1.2", **given))
    done = validated(known([each.body for each in made]), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pods_of_the_provider_fit_the_schemas(tmp_path: Path) -> None:
    provider = KubernetesProvider(
        "registry.example/team/shop:1.2",
        options=["--set=size=3"],
        env={"SHOP": "open"},
        env_from=["shop-secrets"],
        runtime_class="gvisor",
        labels={"team": "a"},
    )
    pod = pod_body(provider, "mcpenv-1", "envs")
    secret = secret_body(provider, "mcpenv-1", "control-of-the-shop", {"metadata": {"uid": "u-1"}})
    done = validated([pod, secret], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def built(overlay: Path) -> list[dict[str, Any]]:
    """The objects of an overlay, as kubectl's own Kustomize merges them; it asks no cluster for that."""
    program = Path(sys.executable).with_name("kubectl")
    assert program.exists(), "there is no kubectl; .ci/run installs it"
    done = subprocess.run(
        [str(program), "kustomize", str(overlay)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("given", [{}, EVERYTHING, INGRESS])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_kustomize_builds_the_overlays_and_they_fit_the_schemas(
    platform: str, given: dict[str, Any], tmp_path: Path
) -> None:
    settings = deployment(**given)
    objects = server_objects(settings)
    write(objects, tmp_path, "the head", overlays_of=settings)
    made = built(tmp_path / "overlays" / platform)
    done = validated(known(made), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds, base = {each["kind"] for each in made}, {each.kind for each in objects}
    servers = one(made, "StatefulSet")["spec"]
    if platform == "kind":
        (container,) = servers["template"]["spec"]["containers"]
        assert servers["replicas"] == 1 and container["imagePullPolicy"] == "IfNotPresent" and container["args"]
        inside = "http://$(POD_NAME).shop.$(POD_NAMESPACE).svc:8000"
        assert [each for each in container["args"] if "public-url" in each] == [f"--public-url={inside}"]
        assert "runtimeClassName" not in servers["template"]["spec"]
        own = {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "PersistentVolumeClaim"}
        assert kinds == base & own
    else:
        assert base - kinds == ({"RuntimeClass"} & base if platform == "gke" else set())
        assert servers == one([each.body for each in objects], "StatefulSet")["spec"]
    modes = {"kind": "ReadWriteOnce", "gke": "ReadWriteMany", "eks": "ReadWriteMany"}
    for claim in (each for each in made if each["kind"] == "PersistentVolumeClaim"):
        assert claim["spec"]["accessModes"] == [modes[platform]]
        assert claim["spec"]["storageClassName"] == ("standard" if platform == "kind" else "shared")
    cached = [{"ipBlock": {"cidr": "169.254.20.10/32"}}] if platform == "gke" and "network" not in given else []
    assert [to for to in one(made, "NetworkPolicy")["spec"]["egress"][0].get("to", []) if "ipBlock" in to] == cached


def test_a_misspelt_field_does_not_fit(tmp_path: Path) -> None:
    objects = [each.body for each in server_objects(Deployment(name="shop", image="shop:1"))]
    objects[0]["spec"]["replica"] = 2
    assert validated(objects, tmp_path).returncode != 0
