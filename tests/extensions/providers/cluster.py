"""A cluster as far as tests need one: the stand-in of an API server, and a kubelet that runs pods as processes here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

PROGRAM = Path(__file__).with_name("kube_api_program.py")
NAMESPACE = "envs"
CLAIMS = f"/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"
SANDBOXES = f"/apis/agents.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/sandboxes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LOOK_S = 0.05
PATIENCE_S = 60.0


@contextmanager
def api_server(folder: Path) -> Iterator[str]:
    """The path of a kubeconfig for the stand-in of an API server."""
    python = os.environ.get("MCPENV_KMOCK")
    assert python, "MCPENV_KMOCK names no Python with kmock; .ci/run installs it and sets it"
    with subprocess.Popen([python, str(PROGRAM)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the stand-in did not start"
            yield kubeconfig(folder / "kubeconfig", url)
        finally:
            process.terminate()


def kubeconfig(file: Path, url: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}},
            {"name": "forbidden", "context": {"cluster": "here", "user": "me", "namespace": "forbidden"}},
        ],
        "clusters": [{"name": "here", "cluster": {"server": url.rstrip("/")}}],
        "users": [{"name": "me", "user": {"token": "any"}}],
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(file)


def url_in(kubeconfig: str) -> str:
    document = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))
    return str(document["clusters"][0]["cluster"]["server"])


@dataclass
class Kubelet:
    """The thread that looks for new pods and claims, and lets ``on_pod`` and ``on_claim`` set their status.

    Attributes:
        url: the API server.
        on_pod: returns the status of a new pod.
        secrets: what pods' Secrets had, by the name of the pod.
        failures: exceptions of the thread.
    """

    url: str
    on_pod: Callable[[dict[str, Any], dict[str, str]], dict[str, Any]]
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._seen: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert self.failures == []

    def _run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as http:
            while not self._over.wait(LOOK_S):
                try:
                    self._look(http)
                except httpx.HTTPError as error:
                    self.failures.append(error)

    def _look(self, http: httpx.Client) -> None:
        for pod in http.get(PODS).json()["items"]:
            name = pod["metadata"]["name"]
            found = http.get(f"{SECRETS}/{name}")
            if name in self._seen or found.status_code == 404:  # a pod waits for its Secret
                continue
            self._seen.add(name)
            self.secrets[name] = found.json()["stringData"]
            set_status(http, f"{PODS}/{name}", self.on_pod(pod, self.secrets[name]))


def set_status(http: httpx.Client, path: str, status: dict[str, Any]) -> None:
    """Set the status of an object, if it is there."""
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = http.patch(path, json={"status": status}, headers=headers)
    if answer.status_code != 404:
        answer.raise_for_status()


class Processes:
    """The containers of pods as processes: ``mcpenv run`` of a target, with the arguments of the container.

    Each has an address of loopback of its own, as pods have addresses of their own.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.arguments: dict[str, list[str]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.terminate()
            process.wait(PATIENCE_S)

    def run(self, pod: dict[str, Any], secret: dict[str, str]) -> dict[str, Any]:
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        tokens = self._folder / name
        tokens.mkdir()
        for key, value in secret.items():
            (tokens / key).write_text(value, encoding="utf-8")
        ip = f"127.0.0.{len(self.running) + 2}"
        arguments = [
            text.replace("$(POD_IP)", ip).replace("/run/mcpenv", str(tokens)).replace("$$", "$")
            for text in container["args"]
        ]
        self.arguments[name] = arguments
        environ = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "mcpenv", "run", self._target, f"--host={ip}", *arguments],
            env={**os.environ, **environ},
            stdout=subprocess.DEVNULL,
        )
        return {
            "phase": "Running",
            "podIP": ip,
            "containerStatuses": [{"name": container["name"], "ready": False, "state": {"running": {}}}],
        }

    def stop(self, name: str) -> int:
        process = self.running[name]
        with suppress(ProcessLookupError):
            process.terminate()
        return process.wait(PATIENCE_S)


class Controller(threading.Thread):
    """The controller of agent-sandbox, as far as claims see it: each gets a sandbox, whose address ``ip`` returns."""

    def __init__(self, url: str, ip: Callable[[], str], reason: str | None = None) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_S)
        self._ip = ip
        self._reason = reason
        self._over = threading.Event()
        self._seen: set[str] = set()

    def __enter__(self) -> Controller:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(PATIENCE_S)
        self._http.close()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for claim in self._http.get(f"{CLAIMS}/sandboxclaims").json()["items"]:
                name = claim["metadata"]["name"]
                if name not in self._seen:
                    self._seen.add(name)
                    self._bind(name)

    def _bind(self, name: str) -> None:
        if self._reason is not None:
            refused = {"type": "Ready", "status": "False", "reason": self._reason, "message": "no such pool"}
            set_status(self._http, f"{CLAIMS}/sandboxclaims/{name}", {"conditions": [refused]})
            return
        ip = self._ip()
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "podIPs": [ip]}
        metadata = {"name": f"warm-{name}", "namespace": NAMESPACE}
        self._http.post(SANDBOXES, json={"metadata": metadata, "status": ready}).raise_for_status()
        bound = {"conditions": ready["conditions"], "sandbox": {"name": f"warm-{name}", "podIPs": [ip]}}
        set_status(self._http, f"{CLAIMS}/sandboxclaims/{name}", bound)


def make_pool(kubeconfig: str) -> None:
    """Make the warm pool ``shop``."""
    pool = {"metadata": {"name": "shop", "namespace": NAMESPACE}, "spec": {"replicas": 2}}
    httpx.post(f"{url_in(kubeconfig)}{CLAIMS}/sandboxwarmpools", json=pool, timeout=PATIENCE_S).raise_for_status()
