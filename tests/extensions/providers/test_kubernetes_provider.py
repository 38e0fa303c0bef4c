"""Pods as servers: what is refused without a cluster, and the pod that is asked for. tests/world has an API server."""

from __future__ import annotations

import sys

import pytest
from provider_bench import in_loop

from mcpenv_client import ProviderUnavailable
from mcpenv_client.providers.kubernetes import KubernetesProvider
from mcpenv_client.providers.pod import TOKEN, TOKENS, pod_body, secret_body
from mcpenv_client.providers.sandbox import SandboxProvider


@in_loop
async def test_without_the_clients_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "k8s_agent_sandbox", None)
    with pytest.raises(ProviderUnavailable, match=r"pip install 'mcpenv-client\[kubernetes\]'"):
        async with KubernetesProvider("any").instance():
            pass
    with pytest.raises(ProviderUnavailable, match=r"pip install 'mcpenv-client\[agent-sandbox\]'"):
        async with SandboxProvider("any").instance():
            pass


def test_an_address_has_the_fields_of_a_pod_and_no_others() -> None:
    provider = KubernetesProvider("any", url="https://env.example.org/{namespace}/{name}")
    assert provider.address("mcpenv-1", "envs", "10.1.2.3") == "https://env.example.org/envs/mcpenv-1"
    assert KubernetesProvider("any").address("a", "b", "10.1.2.3") == "http://10.1.2.3:8000"
    assert KubernetesProvider("any").address("a", "b", "fd00::1") == "http://[fd00::1]:8000"
    assert SandboxProvider("any").address("a", "10.1.2.3") == "http://10.1.2.3:8001"
    for make in (KubernetesProvider, SandboxProvider):
        with pytest.raises(ValueError, match="'host' is none of pod_ip, name"):
            make("any", url="http://{host}")
        with pytest.raises(ValueError, match="is none of pod_ip, name"):
            make("any", url="http://{}")


def test_the_control_token_is_in_a_file_and_nowhere_else() -> None:
    provider = KubernetesProvider("any")
    pod = pod_body(provider, "mcpenv-1", "envs")
    secret = secret_body(provider, "mcpenv-1", "control-of-the-shop", {"metadata": {"uid": "u-1"}})
    assert "control-of-the-shop" not in str(pod)
    (container,) = pod["spec"]["containers"]
    assert f"--control-token-file={TOKENS}/{TOKEN}" in container["args"]
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == secret["metadata"]["name"]
    assert secret["stringData"] == {TOKEN: "control-of-the-shop"}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1", "it goes with its pod"
    assert "ownerReferences" not in secret_body(provider, "mcpenv-1", "any", {})["metadata"]


def test_a_pod_is_confined() -> None:
    spec = pod_body(KubernetesProvider("any"), "mcpenv-1", "envs")["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "--require-handle" in container["args"]
