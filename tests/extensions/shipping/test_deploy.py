"""`mcpenv deploy k8s`: manifests that are printed or written, and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from command_line import TIMEOUT_S, Cli, command_lines, started, write

from mcpenv_client import EnvClient

IMAGE = "registry.example/team/shop:1.2"
MANIFEST = """
schema_version: 1
name: corner_shop
entry: shop/environment.py:Shop
limits: {max_sessions: 8, drain_s: 120}
needs: {memory: 512Mi, network: true}
secrets: {SHOP_API_TOKEN: the token of the shop}
"""
SHOP = """
from mcpenv import MCPEnvironment


class Shop(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def price() -> int:
            return 5
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


@pytest.fixture
def target(tmp_path: Path) -> str:
    folder = tmp_path / "corner"
    folder.mkdir()
    (folder / "mcpenv.yaml").write_text(MANIFEST, encoding="utf-8")
    write(folder, "shop", SHOP)
    return "corner"


def test_manifests_are_printed_for_kubectl_and_values_come_from_the_manifest(cli: Cli, target: str) -> None:
    done = cli("deploy", "k8s", target, "--image", IMAGE)
    assert (done.status, done.err) == (0, "")
    objects = list(yaml.safe_load_all(done.out))
    (servers,) = (each for each in objects if each["kind"] == "StatefulSet")
    assert servers["metadata"]["name"] == "corner-shop"
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["resources"]["limits"]["memory"] == "512Mi"
    assert {"--max-sessions=8", "--drain-s=120"} <= set(container["args"])
    assert "# Before it, make the Secrets." in done.out
    assert "kubectl create secret generic corner-shop-secrets" in done.out


def test_a_folder_is_written_and_not_overwritten(cli: Cli, target: str, tmp_path: Path) -> None:
    done = cli("deploy", "k8s", target, "--image", IMAGE, "--host", "shop.example.org", "--out", "k8s")
    assert done.status == 0
    assert "kubectl apply -k k8s" in done.out and "Autoscaling needs Prometheus" in done.out
    again = cli("deploy", "k8s", target, "--image", IMAGE, "--out", "k8s")
    assert again.status == 2 and "would be overwritten; give another --out, or --force" in again.err
    assert cli("deploy", "k8s", target, "--image", IMAGE, "--out", "k8s", "--force").status == 0


def test_overlays_are_written_beside_the_manifests(cli: Cli, target: str, tmp_path: Path) -> None:
    done = cli("deploy", "k8s", target, "--image", IMAGE, "--out", "k8s", "--overlays")
    assert done.status == 0 and "kubectl apply -k k8s/overlays/kind" in done.out
    written = {file.relative_to(tmp_path / "k8s").as_posix() for file in (tmp_path / "k8s").rglob("*.yaml")}
    assert {f"overlays/{platform}/kustomization.yaml" for platform in ("kind", "gke", "eks")} < written
    assert "base/kustomization.yaml" in written and "kustomization.yaml" not in written
    for platform in ("gke", "eks"):
        text = (tmp_path / "k8s" / "overlays" / platform / "kustomization.yaml").read_text(encoding="utf-8")
        assert "# " in text and "On paper: no cluster of" in text.replace("\n# ", " ")


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ([], "http://$(POD_NAME).corner-shop.$(POD_NAMESPACE).svc:8000"),
        (["--durable", "store"], "http://corner-shop-agents.$(POD_NAMESPACE).svc:80"),
    ],
)
def test_the_overlay_without_routes_gives_agents_an_address_in_the_cluster(
    cli: Cli, target: str, tmp_path: Path, more: list[str], address: str
) -> None:
    options = ["--host", "env.example.org", "--out", "k8s", "--overlays", *more]
    assert cli("deploy", "k8s", target, "--image", IMAGE, *options).status == 0
    text = (tmp_path / "k8s" / "overlays" / "kind" / "kustomization.yaml").read_text(encoding="utf-8")
    patches = [each for each in yaml.safe_load(text)["patches"] if "target" in each]
    ((change,),) = (yaml.safe_load(each["patch"]) for each in patches)
    assert change["value"] == f"--public-url={address}"
    (servers,) = (
        each
        for file in (tmp_path / "k8s" / "base").glob("*.yaml")
        for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if each["kind"] == "StatefulSet"
    )
    found: Any = servers
    for key in change["path"].split("/")[1:]:
        found = found[int(key) if isinstance(found, list) else key]
    assert found.startswith("--public-url=https://env.example.org")


def test_json_has_the_objects_and_the_commands(cli: Cli, target: str) -> None:
    report: dict[str, Any] = json.loads(cli("deploy", "k8s", target, "--image", IMAGE, "--sandbox", "--json").out)
    assert report["objects"] == [
        {"kind": "SandboxTemplate", "name": "corner-shop"},
        {"kind": "SandboxWarmPool", "name": "corner-shop"},
    ]
    assert [each["kind"] for each in report["manifests"]] == ["SandboxTemplate", "SandboxWarmPool"]
    assert len(report["secrets"]) == 5 and report["files"] == []


def test_without_a_number_of_sessions_it_says_that_there_is_no_autoscaling(cli: Cli, tmp_path: Path) -> None:
    done = cli("deploy", "k8s", write(tmp_path, "shop", SHOP), "--name", "shop", "--image", IMAGE)
    assert done.status == 0
    assert done.err.startswith("No autoscaling: say how many sessions a pod has")
    assert "HorizontalPodAutoscaler" not in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the TARGET is missing"),
        (["corner"], "--image is missing: the image that mcpenv build made"),
        (["corner", "--image", IMAGE, "--host", "shop"], "--host shop: it must be a host name"),
        (["corner/shop", "--image", IMAGE], "corner/shop has no mcpenv.yaml; give the objects a --name"),
        (["corner", "--image", IMAGE, "--route", "proxy"], "--route"),
        (["corner", "--image", IMAGE, "--durable", "store", "--sandbox"], "--durable: a sandbox is the only server"),
        (["corner", "--image", IMAGE, "--overlays"], "--overlays: name a folder for them, by --out"),
        (["corner", "--image", IMAGE, "--overlays", "--out", "k8s.yaml"], "--overlays: name a folder"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cli: Cli, target: str, arguments: list[str], says: str) -> None:
    done = cli("deploy", "k8s", *arguments)
    assert done.status == 2 and done.out == ""
    assert says in done.err and done.err.count("\n") == 1


def arguments_here(cli: Cli, target: str, place: Path, pod: str, *options: str) -> list[str]:
    """The arguments of the container in a pod of the manifests, with folders and ports of this machine."""
    done = cli("deploy", "k8s", target, "--image", IMAGE, *options)
    (servers,) = (each for each in yaml.safe_load_all(done.out) if each["kind"] == "StatefulSet")
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    tokens = place / "tokens"
    tokens.mkdir(exist_ok=True)
    (tokens / "control-token").write_text("control-of-the-shop\n", encoding="utf-8")
    (tokens / "metrics-token").write_text("metrics-of-the-shop\n", encoding="utf-8")
    (tokens / "agent-tokens").write_text("ada=agent-of-the-shop\n", encoding="utf-8")
    here = {
        "$(POD_NAME)": pod,
        "$(POD_NAMESPACE)": "envs",
        "/run/mcpenv": str(tokens),
        "=/records": f"={place / 'records'}",
        "--port=8000": "--port=0",
        "--control-port=8001": "--control-port=0",
        "--control-host=0.0.0.0": "--control-host=127.0.0.1",
    }
    arguments = []
    for argument in container["args"]:
        for written, ours in here.items():
            argument = argument.replace(written, ours)
        arguments.append(argument)
    return arguments


@pytest.mark.slow
def test_the_arguments_of_the_container_start_a_server(cli: Cli, target: str, tmp_path: Path) -> None:
    arguments = arguments_here(cli, target, tmp_path, "corner-shop-0")
    with started(tmp_path, "run", target, *arguments, SHOP_API_TOKEN="any") as process:
        agents = process.url()
        control = process.wait_for(r"ws://(\S+)/ws")[1]
        assert httpx.get(f"{agents}/ready", timeout=TIMEOUT_S).status_code == 200
        named = {"Host": "corner-shop-0.corner-shop.envs.svc:8000"}
        for host in (named, {"Host": "corner-shop-control.envs.svc.cluster.local"}, {"Host": "corner-shop-control"}):
            assert httpx.get(f"http://{control}/metadata", headers=host, timeout=TIMEOUT_S).status_code == 200
        headers = {"Authorization": "Bearer control-of-the-shop"}
        with EnvClient(f"http://{control}", headers=headers).sync() as env:
            mcp_url = env.reset().info["mcp_url"]
            assert mcp_url.startswith("http://corner-shop-0.corner-shop.envs.svc:8000/episodes/")
        scraped = {"Authorization": "Bearer metrics-of-the-shop"}
        metrics = httpx.get(f"http://{control}/metrics", headers=scraped, timeout=TIMEOUT_S).text
        assert "mcpenv_sessions_taken " in metrics and "mcpenv_sessions_max 8" in metrics
        assert httpx.get(f"{agents}/sessions", headers=headers, timeout=TIMEOUT_S).status_code == 404


@pytest.mark.slow
def test_the_console_of_each_pod_shows_the_episodes_of_all(cli: Cli, target: str, tmp_path: Path) -> None:
    options = ("--records", "20Gi", "--host", "shop.example.org", "--control-host", "control.example.org")
    with ExitStack() as stack:
        pods = []
        for pod in ("corner-shop-0", "corner-shop-1"):
            arguments = arguments_here(cli, target, tmp_path, pod, *options)
            process = stack.enter_context(started(tmp_path, "run", target, *arguments, SHOP_API_TOKEN="any"))
            pods.append("http://" + process.wait_for(r"ws://(\S+)/ws")[1])
        headers = {"Authorization": "Bearer control-of-the-shop"}
        episodes = set()
        for pod in pods:
            with EnvClient(pod, headers=headers).sync() as env:
                episodes.add(env.reset().info["episode_id"])
                env.call_tool("price", {})
                env.end()
        # As a browser sends it through a route of the control host.
        outside = {"Host": "control.example.org", "Origin": "https://control.example.org"}
        for pod in pods:
            with httpx.Client(base_url=pod, headers=outside, timeout=TIMEOUT_S) as browser:
                assert "<title>" in browser.get("/console/").text
                signed_in = browser.post("/console/api/sign-in", json={"token": "control-of-the-shop"})
                name, _, value = signed_in.headers["Set-Cookie"].partition(";")[0].partition("=")
                shown = set[str]()
                end = time.monotonic() + TIMEOUT_S
                while shown != episodes and time.monotonic() < end:  # an episode is written after its end
                    rows = browser.get("/records", headers={"Cookie": f"{name}={value}"}).json()
                    shown = {row["id"] for row in rows["rows"]}
                assert shown == episodes
