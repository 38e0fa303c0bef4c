"""`mcpenv up`: its steps in their order, by stand-ins of kind, kubectl, gcloud, aws and docker, as no cluster is here.

The episode is played against a real server, which the stand-in of ``kubectl port-forward`` starts with the token that
was put into the Secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcpenv.extensions.shipping.scaffold import make_scaffold

TIMEOUT_S = 120

pytestmark = pytest.mark.slow
STAND_IN = """#!{python}
import base64, json, os, pathlib, shutil, signal, subprocess, sys

state = pathlib.Path({state!r})
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
given = sys.stdin.read() if "--password-stdin" in words else ""
with (state / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
said = " ".join(words)
if said == (state / "fails").read_text():
    sys.exit("it was told to fail")
if name == "kind" and words[:2] == ["get", "clusters"] and (state / "cluster").exists():
    print("mcpenv")
elif name == "kind" and words[:2] == ["create", "cluster"]:
    (state / "cluster").touch()
elif name in ("gcloud", "aws") and ("print-access-token" in words or "get-login-password" in words):
    print("password-of-the-registry")
elif "--password-stdin" in words and given.strip() != "password-of-the-registry":
    sys.exit("no password")
elif name == "docker" and words[:2] == ["image", "inspect"]:
    print('[{{"Size": 1}}]')
elif name == "kubectl":
    words = words[2:]  # --context NAME
    if words[0] == "--namespace":
        words = words[2:]
    if words[:2] == ["create", "secret"]:
        folder = state / "secrets" / words[3]
        folder.mkdir(parents=True)
        for word in words[4:]:
            key, file = word.removeprefix("--from-file=").split("=")
            shutil.copy(file, folder / key)
    elif words[:2] == ["get", "secret"] and (state / "secrets" / words[2]).exists():
        token = (state / "secrets" / words[2] / "control-token").read_bytes()
        print(base64.b64encode(token).decode() if "jsonpath" in said else "secret/" + words[2])
    elif words[0] == "apply":
        shutil.copytree(pathlib.Path(words[2]).parents[1], state / "applied", dirs_exist_ok=True)
    elif words[0] == "logs":
        print("the log of the pod")
    elif words[0] == "port-forward":
        ready, token = state / "ready.json", next((state / "secrets").glob("*-tokens")) / "control-token"
        command = [sys.executable, "-m", "mcpenv", "run", {shop!r}, "--port", "0", "--control-token-file", str(token)]
        server = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while not ready.exists() and server.poll() is None:
            signal.sigtimedwait([], 0.05)
        port = json.loads(ready.read_text())["url"].rpartition(":")[2]
        print(f"Forwarding from 127.0.0.1:{{port}} -> 8001", flush=True)
        server.wait()
"""


@dataclass
class Bench:
    """A folder of an environment, and stand-ins that keep what they were asked."""

    shop: Path
    state: Path
    environ: dict[str, str]

    def up(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mcpenv", "up", *arguments]
        given = {**self.environ, **environ}
        return subprocess.run(
            command, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    def calls(self) -> list[list[str]]:
        """The commands of the last run."""
        file = self.state / "calls.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    state, bin_ = tmp_path / "state", tmp_path / "bin"
    state.mkdir()
    bin_.mkdir()
    (state / "fails").touch()
    shop = make_scaffold("corner_shop", "tasks", tmp_path / "shop").folder
    # A wheel of mcpenv is not needed by an engine that builds nothing.
    for name in ("mcpenv", "mcpenv_client"):
        (shop / "wheels" / f"{name}-0.1.0-py3-none-any.whl").touch()
    for name in ("kind", "kubectl", "gcloud", "aws", "docker"):
        (bin_ / name).write_text(STAND_IN.format(python=sys.executable, state=str(state), shop=str(shop)))
        (bin_ / name).chmod(0o755)
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MCPENV_")}
    return Bench(shop, state, {**usual, "PATH": f"{bin_}:/usr/bin:/bin"})


def verbs(calls: list[list[str]]) -> list[str]:
    """Program and verb of each command that changes or waits."""
    known = {
        ("kind", "create"): "kind create",
        ("kind", "load"): "kind load",
        ("docker", "build"): "docker build",
        ("docker", "login"): "docker login",
        ("docker", "push"): "docker push",
        ("gcloud", "container"): "gcloud container",
        ("aws", "eks"): "aws eks",
    }
    found = []
    for name, *words in calls:
        bare = words[2:] if words[:1] == ["--context"] else words
        bare = bare[2:] if bare[:1] == ["--namespace"] else bare
        if name == "kubectl" and bare[0] != "get":
            found.append(f"kubectl {bare[0]}" + (f" {bare[1]}" if bare[0] == "create" else ""))
        elif (name, words[0]) in known:
            found.append(known[name, words[0]])
    return found


def test_up_ends_in_an_episode_and_makes_only_what_is_not_there(bench: Bench) -> None:
    done = bench.up("kind", str(bench.shop), "--records", "1Gi", "--namespace", "envs", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    names = ["build", "cluster", "load", "secrets", "apply", "wait", "smoke episode"]
    assert [step["step"] for step in report["steps"]] == names
    smoke = report["smoke"]
    assert smoke["environment"] == "corner_shop" and smoke["task"] and smoke["calls"] > 0 and smoke["reward"] == 1.0
    calls = bench.calls()
    assert verbs(calls) == [
        *("docker build", "kind create", "kind load"),
        *("kubectl create namespace", "kubectl create secret", "kubectl apply", "kubectl rollout"),
        "kubectl port-forward",
    ]
    assert all(call[1:3] == ["--context", "kind-mcpenv"] for call in calls if call[0] == "kubectl")
    token = (bench.state / "secrets" / "corner-shop-tokens" / "control-token").read_text(encoding="utf-8")
    assert len(token) == 64 and token not in done.stdout + done.stderr + json.dumps(calls)
    applied = (bench.state / "applied" / "base" / "statefulset.yaml").read_text(encoding="utf-8")
    assert f"image: {report['image']}" in applied and "--record=/records" in applied
    again = bench.up("kind", str(bench.shop), "--namespace", "envs")
    assert again.returncode == 0, again.stderr
    assert "is up: an episode of task" in again.stdout and "/console" in again.stdout
    kept = verbs(bench.calls())
    assert "kind create" not in kept and "kubectl create secret" not in kept and "kubectl apply" in kept


@pytest.mark.parametrize(
    ("platform", "given", "image", "signed_in"),
    [
        (
            "gke",
            ("--registry", "r-docker.pkg.dev/p/envs", "--region", "r", "--project", "p"),
            "r-docker.pkg.dev/p/envs/corner_shop:7",
            "gcloud container",
        ),
        (
            "eks",
            ("--registry", "1.dkr.ecr.r.amazonaws.com", "--region", "r"),
            "1.dkr.ecr.r.amazonaws.com/corner_shop:7",
            "aws eks",
        ),
    ],
)
def test_a_cloud_gets_the_image_by_its_registry(
    bench: Bench, platform: str, given: tuple[str, ...], image: str, signed_in: str
) -> None:
    done = bench.up(platform, str(bench.shop), *given, "--tag", "7", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == image
    calls = bench.calls()
    assert verbs(calls)[:5] == ["docker build", signed_in, "docker login", "docker push", "kubectl create namespace"]
    assert ["docker", "push", image] in calls
    contexts = {call[2] for call in calls if call[0] == "kubectl"}
    assert contexts == {"gke_p_r_mcpenv" if platform == "gke" else "mcpenv"}


def test_a_step_that_fails_ends_it_with_what_the_pod_said(bench: Bench) -> None:
    context = "--context kind-mcpenv --namespace default"
    (bench.state / "fails").write_text(f"{context} rollout status statefulset/corner-shop --timeout=9s")
    done = bench.up("kind", str(bench.shop), "--timeout-s", "9")
    assert done.returncode == 1
    assert "it was told to fail" in done.stderr and "the log of the pod" in done.stderr
    assert "kubectl port-forward" not in verbs(bench.calls())


def test_an_episode_that_does_not_reach_its_reward_fails(bench: Bench) -> None:
    tasks = bench.shop / "corner_shop" / "tasks.jsonl"
    first, *others = tasks.read_text(encoding="utf-8").splitlines()
    task = json.loads(first)
    task["oracle"] = task["oracle"][:-1]
    tasks.write_text("\n".join([json.dumps(task), *others, ""]), encoding="utf-8")
    done = bench.up("kind", str(bench.shop))
    assert done.returncode == 1 and "the oracle of" in done.stderr and "and not 1" in done.stderr


def test_a_dry_run_needs_no_program_and_runs_none(bench: Bench) -> None:
    registry = "1.dkr.ecr.r.amazonaws.com"
    done = bench.up("eks", str(bench.shop), "--registry", registry, "--region", "r", "--dry-run", PATH="")
    assert (done.returncode, done.stderr) == (0, "")
    commands = [
        "aws eks update-kubeconfig --name mcpenv --alias mcpenv --region r",
        f"aws ecr get-login-password --region r | docker login --username AWS --password-stdin {registry}",
        "kubectl --context mcpenv --namespace default rollout status statefulset/corner-shop --timeout=300s",
    ]
    assert all(command in done.stdout for command in commands) and "Nothing was run." in done.stdout
    assert bench.calls() == []


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (("kind",), {"PATH": ""}, "up kind needs kind (https://kind.sigs.k8s.io), kubectl (https://"),
        (("gke",), {}, "up gke needs --registry, --region, --project; such as --registry REGION-docker.pkg.dev"),
        (("eks", "--region", "r"), {}, "up eks needs --registry; such as"),
        (("minikube",), {}, "minikube"),
        (("kind", "--records", "much"), {}, "--records much: write an amount"),
    ],
)
def test_what_cannot_begin_is_refused_before_the_first_step(
    bench: Bench, arguments: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    platform, *options = arguments
    done = bench.up(platform, str(bench.shop), *options, **environ)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert verbs(bench.calls()) == []


def test_a_secret_of_the_manifest_without_a_value_is_refused(bench: Bench) -> None:
    manifest = bench.shop / "mcpenv.yaml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(f"{text}\nsecrets: {{SHOP_API_TOKEN: the token of the shop}}\n", encoding="utf-8")
    done = bench.up("kind", str(bench.shop))
    assert done.returncode == 2 and "set the environment variables SHOP_API_TOKEN" in done.stderr
