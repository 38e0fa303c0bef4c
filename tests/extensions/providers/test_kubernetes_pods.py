"""`KubernetesProvider` and `SandboxProvider` with their real clients, against kmock's API server over HTTP."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import threading
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster import (
    CLAIMS,
    NAMESPACE,
    PODS,
    SECRETS,
    Controller,
    Kubelet,
    Processes,
    api_server,
    make_pool,
    url_in,
)
from fastmcp import Client

from mcpenv_client import EnvClient, InstanceFailed, ProviderUnavailable, Unauthorized
from mcpenv_client.providers.kubernetes import KubernetesProvider
from mcpenv_client.providers.owned import MACHINE, owner_annotations
from mcpenv_client.providers.owner import HOST, MARK
from mcpenv_client.providers.sandbox import SandboxProvider

WORLD = f"{Path(__file__).resolve().parents[2] / 'cluster_world.py'}:World"
LIMIT_S = 100.0

pytestmark = [pytest.mark.world, pytest.mark.timeout(200)]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **kwargs), LIMIT_S)

        asyncio.run(bounded())

    return run


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    with api_server(tmp_path) as file:
        yield file


def objects(kubeconfig: str, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(url_in(kubeconfig) + path, timeout=LIMIT_S).json()["items"]
    return found


# -- pods


@in_loop
async def test_two_pods_serve_episodes_at_once_and_are_gone_after_their_blocks(kubeconfig: str, tmp_path: Path) -> None:
    provider = KubernetesProvider("shop:1", kubeconfig=kubeconfig, port=8765, env={"SHOP": "open"}, labels={"app": "x"})
    with Processes(WORLD, tmp_path) as processes, Kubelet(url_in(kubeconfig), processes.run) as kubelet:

        async def one() -> int:
            async with provider.instance() as instance, EnvClient(instance.url, headers=instance.headers) as env:
                assert await instance.is_alive()
                mcp_url = (await env.reset()).info["mcp_url"]
                assert mcp_url.startswith(f"{instance.url}/episodes/")
                async with Client(mcp_url) as agent:
                    await agent.call_tool("add", {})
                with pytest.raises(Unauthorized):
                    await EnvClient(instance.url).connect()
                assert (await env.call_tool("add")).text == "2"
                assert await instance.logs() == "the last line of the log"
                return int((await env.call_tool("process")).text)

        assert len(set(await asyncio.gather(one(), one()))) == 2
        assert objects(kubeconfig, PODS) == objects(kubeconfig, SECRETS) == []
    tokens = {secret["control-token"] for secret in kubelet.secrets.values()}
    assert len(tokens) == 2
    assert not any(token in text for token in tokens for texts in processes.arguments.values() for text in texts)


@in_loop
async def test_a_pod_has_the_options_of_its_provider(kubeconfig: str) -> None:
    seen: list[dict[str, Any]] = []

    def failed(pod: dict[str, Any], secret: dict[str, str]) -> dict[str, Any]:
        seen.append(pod)
        return {"phase": "Failed", "reason": "Evicted", "message": "the node had no memory"}

    provider = KubernetesProvider(
        "shop:1",
        kubeconfig=kubeconfig,
        options=["--set=price=5$"],
        env={"SHOP": "open"},
        env_from=["shop-secrets"],
        memory="2Gi",
        cpu=0.25,
        runtime_class="gvisor",
        labels={"team": "a"},
        spec={"nodeSelector": {"pool": "sandboxes"}},
        lifetime_s=60,
    )
    with Kubelet(url_in(kubeconfig), failed):
        with pytest.raises(InstanceFailed, match=r"the pod has ended \(Evicted, the node had no memory\)") as error:
            async with provider.instance():
                pass
    assert error.value.log == "the last line of the log"
    (pod,) = seen
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["runtimeClassName"] == "gvisor" and pod["spec"]["nodeSelector"] == {"pool": "sandboxes"}
    assert pod["spec"]["activeDeadlineSeconds"] == 60
    assert container["args"][-1] == "--set=price=5$$"
    assert container["envFrom"] == [{"secretRef": {"name": "shop-secrets"}}]
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "2Gi"}


@in_loop
async def test_what_the_api_server_refuses_is_told_with_its_reason(kubeconfig: str) -> None:
    with pytest.raises(InstanceFailed, match=r"the cluster refused: 403 Forbidden: exceeded quota: pods"):
        async with KubernetesProvider("shop:1", kubeconfig=kubeconfig, namespace="full").instance():
            pass
    assert objects(kubeconfig, PODS.replace(NAMESPACE, "full")) == []


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
                ],
            },
            r"its container cannot start \(ImagePullBackOff, no such image\)",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 2, "reason": "Error"}}}],
            },
            r"its container ended with status 2 \(Error\)",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ],
            },
            r"it had no address after 1 s: it is not scheduled \(Unschedulable, 0/3 nodes\)",
        ),
    ],
)
@in_loop
async def test_a_pod_that_does_not_start_says_why_and_is_deleted(
    status: dict[str, Any], says: str, kubeconfig: str
) -> None:
    with Kubelet(url_in(kubeconfig), lambda pod, secret: status):
        with pytest.raises(InstanceFailed, match=says):
            async with KubernetesProvider("shop:1", kubeconfig=kubeconfig, start_timeout_s=1.0).instance():
                pass
    assert objects(kubeconfig, PODS) == objects(kubeconfig, SECRETS) == []


@in_loop
async def test_a_cancelled_start_leaves_nothing(kubeconfig: str) -> None:
    there = threading.Event()

    def pending(pod: dict[str, Any], secret: dict[str, str]) -> dict[str, Any]:
        there.set()
        return {"phase": "Pending"}

    async def start() -> None:
        async with KubernetesProvider("shop:1", kubeconfig=kubeconfig).instance():
            pass

    with Kubelet(url_in(kubeconfig), pending):
        starting = asyncio.ensure_future(start())
        assert await asyncio.to_thread(there.wait, LIMIT_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert objects(kubeconfig, PODS) == objects(kubeconfig, SECRETS) == []


def _own(pipe: Connection) -> None:
    pipe.send(owner_annotations())
    pipe.recv()


@in_loop
async def test_pods_of_a_killed_owner_are_deleted_and_others_stay(kubeconfig: str) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_own, args=(there,))
    process.start()
    killed = here.recv()
    label = {"mcpenv.provider": "kubernetes"}
    pods: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any]]] = {
        "of-killed": (label, killed, {}),
        "past-lifetime": (label, owner_annotations(), {"phase": "Failed", "reason": "DeadlineExceeded"}),
        "of-this-process": (label, owner_annotations(), {}),
        "of-elsewhere": (label, {HOST: "elsewhere", MARK: "/any"}, {}),
        "of-a-machine-of-this-name": (label, {**killed, MACHINE: "0242ac110002"}, {}),
        "of-somebody": ({}, killed, {}),
    }
    async with httpx.AsyncClient(base_url=url_in(kubeconfig), timeout=LIMIT_S) as http:
        for name, (labels, owner, status) in pods.items():
            metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": owner}
            (await http.post(PODS, json={"metadata": metadata, "status": status})).raise_for_status()
    process.kill()
    process.join()
    provider = KubernetesProvider("shop:1", kubeconfig=kubeconfig)
    assert sorted(await provider.remove_orphans()) == ["of-killed", "past-lifetime"]
    left = sorted(pod["metadata"]["name"] for pod in objects(kubeconfig, PODS))
    assert left == ["of-a-machine-of-this-name", "of-elsewhere", "of-somebody", "of-this-process"]


@in_loop
async def test_what_is_missing_is_said_before_anything_is_created(kubeconfig: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="may not create pods in the namespace forbidden; give it a Role"):
        async with KubernetesProvider("shop:1", kubeconfig=kubeconfig, context="forbidden").instance():
            pass
    assert objects(kubeconfig, PODS) == []
    for broken in (
        KubernetesProvider("shop:1", context="none", kubeconfig=kubeconfig),
        KubernetesProvider("shop:1", kubeconfig=str(tmp_path / "none")),
    ):
        (missing,) = await broken.missing()
        assert missing.startswith("no cluster answers (") and "set KUBECONFIG" in missing


# -- sandboxes


@in_loop
async def test_a_sandbox_is_claimed_from_its_pool_and_given_up(kubeconfig: str, tmp_path: Path) -> None:
    make_pool(kubeconfig)
    token = tmp_path / "control-token"
    token.write_text("control-of-the-shop", encoding="utf-8")
    pod = {
        "metadata": {"name": "warm"},
        "spec": {
            "containers": [{"name": "server", "env": [], "args": ["--port=8766", f"--control-token-file={token}"]}]
        },
    }
    provider = SandboxProvider(
        "shop",
        namespace=NAMESPACE,
        kubeconfig=kubeconfig,
        control_token="control-of-the-shop",
        url="http://{pod_ip}:8766",
        lifetime_s=600,
    )
    with Processes(WORLD, tmp_path) as processes:
        ip = processes.run(pod, {})["podIP"]
        with Controller(url_in(kubeconfig), lambda: ip):
            async with provider.instance() as instance, EnvClient(instance.url, headers=instance.headers) as env:
                (claim,) = objects(kubeconfig, f"{CLAIMS}/sandboxclaims")
                assert claim["spec"]["warmPoolRef"] == {"name": "shop"}
                assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
                await env.reset()
                assert (await env.call_tool("add")).text == "1"
                assert await instance.is_alive()
            assert objects(kubeconfig, f"{CLAIMS}/sandboxclaims") == []


@in_loop
async def test_a_sandbox_that_cannot_be_claimed_says_why_and_leaves_no_claim(kubeconfig: str) -> None:
    provider = SandboxProvider("shop", namespace=NAMESPACE, kubeconfig=kubeconfig)
    with pytest.raises(ProviderUnavailable, match="there is no SandboxWarmPool shop in the namespace envs; write"):
        async with provider.instance():
            pass
    make_pool(kubeconfig)
    with Controller(url_in(kubeconfig), lambda: "127.0.0.2", reason="WarmPoolNotFound"):
        with pytest.raises(InstanceFailed, match=r"no sandbox could be claimed: .*no such pool"):
            async with provider.instance():
                pass
    assert objects(kubeconfig, f"{CLAIMS}/sandboxclaims") == []
