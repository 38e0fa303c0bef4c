"""`mcpenv deploy k8s`: manifests that are printed or written, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    assert "kubectl apply -k k8s" in done.out and "needs an adapter" in done.out
    again = cli("deploy", "k8s", target, "--image", IMAGE, "--out", "k8s")
    assert again.status == 2 and "would be overwritten; give another --out, or --force" in again.err
    assert cli("deploy", "k8s", target, "--image", IMAGE, "--out", "k8s", "--force").status == 0


def test_json_has_the_objects_and_the_commands(cli: Cli, target: str) -> None:
    report: dict[str, Any] = json.loads(cli("deploy", "k8s", target, "--image", IMAGE, "--sandbox", "--json").out)
    assert report["objects"] == [
        {"kind": "SandboxTemplate", "name": "corner-shop"},
        {"kind": "SandboxWarmPool", "name": "corner-shop"},
    ]
    assert [each["kind"] for each in report["manifests"]] == ["SandboxTemplate", "SandboxWarmPool"]
    assert len(report["secrets"]) == 2 and report["files"] == []


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
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cli: Cli, target: str, arguments: list[str], says: str) -> None:
    done = cli("deploy", "k8s", *arguments)
    assert done.status == 2 and done.out == ""
    assert says in done.err and done.err.count("\n") == 1


@pytest.mark.slow
def test_the_arguments_of_the_container_start_a_server(cli: Cli, target: str, tmp_path: Path) -> None:
    done = cli("deploy", "k8s", target, "--image", IMAGE)
    (servers,) = (each for each in yaml.safe_load_all(done.out) if each["kind"] == "StatefulSet")
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "control-token").write_text("control-of-the-shop\n", encoding="utf-8")
    (tokens / "metrics-token").write_text("metrics-of-the-shop\n", encoding="utf-8")
    (tokens / "agent-tokens").write_text("ada=agent-of-the-shop\n", encoding="utf-8")
    here = {
        "$(POD_NAME)": "corner-shop-0",
        "$(POD_NAMESPACE)": "envs",
        "/run/mcpenv": str(tokens),
        "--port=8000": "--port=0",
        "--control-port=8001": "--control-port=0",
        "--control-host=0.0.0.0": "--control-host=127.0.0.1",
    }
    arguments = []
    for argument in container["args"]:
        for written, ours in here.items():
            argument = argument.replace(written, ours)
        arguments.append(argument)
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
