"""The command ``mcpenv up``: build an environment, bring it to a cluster, and play an episode there."""

from __future__ import annotations

import base64
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from mcpenv.cli.output import Page, print_json
from mcpenv.errors import ConfigurationError
from mcpenv.targets.manifest_file import manifest_in
from mcpenv_client.errors import McpenvError

from .build import build_image, engine_of, write_files
from .cluster.platform import Command, Platform, PlatformName
from .cluster.smoke import Smoke, smoke_episode
from .image.dockerfile import tag_of
from .image.engine import cause_in
from .image.files import files_of
from .image.plan import ImagePlan, plan_image
from .kubernetes.deployment import Deployment, Flag
from .kubernetes.manifests import write
from .kubernetes.objects import CONTROL_PORT, server_objects
from .kubernetes.overlays import OVERLAYS

WAIT_S = 300.0
FORWARDING_S = 60.0

_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


class StepFailed(McpenvError):
    """Raised if a step failed after the first was begun."""


def up(
    platform: PlatformName,
    target: str = ".",
    /,
    *,
    cluster: str = "mcpenv",
    registry: str | None = None,
    region: str | None = None,
    project: str | None = None,
    namespace: str | None = None,
    tag: str | None = None,
    records: str | None = None,
    engine: Literal["docker", "podman", "buildah"] | None = None,
    base: str | None = None,
    build_options: Annotated[
        list[str] | None, Parameter(name="--build-option", negative=(), allow_leading_hyphen=True)
    ] = None,
    timeout_s: float = WAIT_S,
    dry_run: Flag = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Flag = False,
) -> int:
    """Serve an environment on a cluster: build, push or load, apply, wait, and play one episode.

    Uses kind, kubectl, gcloud or aws as they are installed and signed in here. A cluster of kind is made if there is
    none of that name; GKE and EKS must have one. Tokens are made once, and kept in a Secret. One pod, without routes
    and autoscaling: mcpenv deploy k8s has all options. Exit status 0: the episode was played. 1: a step failed. 2:
    refused before the first step.

    Args:
        platform: kind, gke or eks.
        target: Folder with mcpenv.yaml.
        cluster: Name of the cluster.
        registry: Registry that the cluster reaches, such as REGION-docker.pkg.dev/PROJECT/REPOSITORY. Not for kind.
        region: Region of the cluster, on GKE and EKS.
        project: Project of the cluster, on GKE.
        namespace: Namespace, which is made if there is none. Default: default.
        tag: Tag of the image. Default: the time, so that each run replaces the pod.
        records: Size of a volume for the episodes, such as 20Gi. Default: episodes are not kept.
        engine: Program that builds and pushes. Default: the first of docker, podman and buildah that works here.
        base: Base image, instead of the Dockerfile's.
        build_options: Further option of the engine's build; may be given several times.
        timeout_s: Maximum seconds to wait for the pod.
        dry_run: Show the steps with their commands, and run none. Needs none of the programs.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    plan = plan_image(target)
    manifest = manifest_in(plan.folder)
    where = Platform(name=platform, cluster=cluster, registry=registry, region=region, project=project)
    image = where.image(tag_of(plan.name), tag or datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    name = None if manifest is not None else tag_of(plan.name).replace("_", "-")
    given = {"image": image, "name": name, "namespace": namespace or "default", "records": records}
    deployment = Deployment.of(manifest, {**given, "replicas": 1, "max_replicas": 1})
    if deployment.mode != "simulation":
        raise ConfigurationError("up ends in an episode, which production mode has not; use mcpenv deploy k8s")
    if not dry_run:
        _refuse_missing(where, deployment)
    program = None if dry_run else engine_of(engine)
    with tempfile.TemporaryDirectory(prefix="mcpenv-up-") as place:
        run = _Run(plan, where, deployment, Path(place), engine or (program.name if program else "docker"), timeout_s)
        steps = run.steps(lambda: _build(plan, image, engine, base, build_options or [], show=not as_json))
        done: list[dict[str, Any]] = []
        page = Page(sys.stdout)
        for title, commands, action in steps:
            began = time.monotonic()
            if not as_json:
                page.line((title, "bold cyan"))
                for command in commands:
                    page.line((str(command), "dim"), indent=2)
                sys.stdout.flush()
            if not dry_run:
                try:
                    action()
                except McpenvError as error:
                    raise StepFailed(f"{title}: {error}") from error
            shown = {"step": title, "commands": [str(command) for command in commands]}
            done.append({**shown, "seconds": None if dry_run else round(time.monotonic() - began, 1)})
    _report(page, run, deployment, done, as_json)
    return 0


Step = tuple[str, list[Command], Callable[[], None]]


class _Run:
    """The steps of one run, and what they found.

    Attributes:
        smoke: the episode that was played; None before it.
    """

    def __init__(
        self, plan: ImagePlan, where: Platform, deployment: Deployment, place: Path, engine: str, timeout_s: float
    ) -> None:
        self._plan = plan
        self._where = where
        self._deployment = deployment
        self._place = place
        self._engine = engine
        self._timeout_s = timeout_s
        self._namespace = ("--namespace", str(deployment.namespace))
        self.smoke: Smoke | None = None

    def steps(self, build: Callable[[], None]) -> list[Step]:
        """Return the steps in their order, each with its commands and what runs them."""
        where, deployment = self._where, self._deployment
        delivered = where.deliver(deployment.image, self._engine, str(self._place / "image.tar"))
        connected = where.connect()
        made = [where.create(), *connected] if where.name == "kind" else connected
        folder = self._place / "k8s" / OVERLAYS / where.name
        apply = self.kubectl("apply", "--kustomize", str(folder), in_namespace=False)
        rollout = ("rollout", "status", f"statefulset/{deployment.name}", f"--timeout={self._timeout_s:g}s")
        create = self.kubectl("create", "secret", "generic", deployment.tokens_secret, "--from-file=...")
        forward = self.kubectl("port-forward", f"pod/{deployment.name}-0", f":{CONTROL_PORT}")
        wait = self.kubectl(*rollout)
        return [
            ("build", [Command(("mcpenv", "build", str(self._plan.folder), "--tag", deployment.image))], build),
            ("cluster", made, self._connect),
            ("load" if where.name == "kind" else "push", delivered, lambda: _run_all(delivered)),
            ("secrets", [create], self._make_secrets),
            ("apply", [apply], lambda: self._apply(apply)),
            ("wait", [wait], lambda: self._wait(wait)),
            ("smoke episode", [forward], lambda: self._play(forward)),
        ]

    def kubectl(self, *words: str, in_namespace: bool = True) -> Command:
        """Return a command of kubectl for this cluster."""
        namespace = self._namespace if in_namespace else ()
        return Command(("kubectl", "--context", self._where.context, *namespace, *words))

    def _connect(self) -> None:
        if self._where.name == "kind":
            # It says on stderr that there are none.
            clusters = _run(Command(("kind", "get", "clusters"))).split()
            if self._where.cluster not in clusters:
                _run(self._where.create())
        _run_all(self._where.connect())

    def _make_secrets(self) -> None:
        """Make the namespace and the Secrets, unless they are there. Values are in files, and not on command lines."""
        namespace = str(self._deployment.namespace)
        if not _run(
            self.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "name", in_namespace=False)
        ):
            _run(self.kubectl("create", "namespace", namespace, in_namespace=False))
        tokens = {name: secrets.token_hex(32) for name in ("control-token", "metrics-token")}
        tokens["agent-tokens"] = f"agent={secrets.token_hex(32)}"
        own = {name: os.environ[name] for name in self._deployment.secrets}
        for secret, values in ((self._deployment.tokens_secret, tokens), (self._deployment.values_secret, own)):
            if values and not _run(self.kubectl("get", "secret", secret, "--ignore-not-found", "-o", "name")):
                files = []
                for name, value in values.items():
                    file = self._place / name
                    file.touch(0o600)
                    file.write_text(value, encoding="utf-8")
                    files.append(f"--from-file={name}={file}")
                _run(self.kubectl("create", "secret", "generic", secret, *files))

    def _apply(self, apply: Command) -> None:
        objects = server_objects(self._deployment)
        write(objects, self._place / "k8s", "", overlays_of=self._deployment)
        _run(apply)

    def _wait(self, wait: Command) -> None:
        try:
            _run(wait)
        except StepFailed as failed:
            pod = f"pod/{self._deployment.name}-0"
            seen = "; ".join(
                _run(self.kubectl(*words), may_fail=True)
                for words in (("get", pod, "-o", "wide"), ("logs", pod, "--tail=5"))
            )
            raise StepFailed(f"{failed}. {seen}") from failed

    def _play(self, forward: Command) -> None:
        read = ("get", "secret", self._deployment.tokens_secret, "-o", "jsonpath={.data.control-token}")
        token = base64.b64decode(_run(self.kubectl(*read))).decode().strip()
        with _forwarded(forward) as url:
            self.smoke = smoke_episode(url, token)


def _refuse_missing(where: Platform, deployment: Deployment) -> None:
    """Raise if a program or the value of a secret is missing.

    Raises:
        ConfigurationError: with all that is missing.
    """
    if absent := where.absent:
        raise ConfigurationError(f"up {where.name} needs {', '.join(absent)}, not installed here; see --dry-run")
    if unset := [name for name in deployment.secrets if not os.environ.get(name)]:
        raise ConfigurationError(f"the environment needs secrets; set the environment variables {', '.join(unset)}")


def _build(
    plan: ImagePlan, image: str, engine: str | None, base: str | None, options: list[str], *, show: bool
) -> None:
    write_files(plan)
    files = files_of(plan)
    files.refuse()
    build_image(plan, files, engine_of(engine), image, (), options, base, show=show)


def _run_all(commands: list[Command]) -> None:
    for command in commands:
        _run(command)


def _run(command: Command, *, may_fail: bool = False) -> str:
    """Run a command, and return its output without the blanks around it.

    Raises:
        StepFailed: it failed, and may not. The text ends with what it said.
    """
    given = None if command.reads is None else _run(Command(command.reads))
    done = subprocess.run(
        command.words, input=given or "", capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 and not may_fail:
        cause = cause_in((done.stdout + done.stderr).splitlines())
        raise StepFailed(f"{command} failed with status {done.returncode}: {cause}")
    return done.stdout.strip()


@contextmanager
def _forwarded(command: Command) -> Iterator[str]:
    """Yield the URL at which a port of a pod is reached while the block runs.

    Raises:
        StepFailed: kubectl ended without forwarding.
    """
    with subprocess.Popen(
        command.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:  # it ends with the process
                lines.append(line)
                if found := _FORWARDED.search(line):
                    yield f"http://127.0.0.1:{found[1]}"
                    return
            raise StepFailed(f"{command} ended: {cause_in(lines)}")
        finally:
            process.terminate()


def _report(page: Page, run: _Run, deployment: Deployment, steps: list[dict[str, Any]], as_json: bool) -> None:
    console = str(run.kubectl("port-forward", f"pod/{deployment.name}-0", str(CONTROL_PORT)))
    secret = run.kubectl("get", "secret", deployment.tokens_secret, "-o", "jsonpath={.data.control-token}")
    token, smoke = f"{secret} | base64 -d", run.smoke
    if as_json:
        played = None if smoke is None else smoke.to_plain()
        print_json({"image": deployment.image, "steps": steps, "smoke": played, "console": console, "token": token})
        return
    page.line()
    if smoke is None:
        page.line("Nothing was run.")
        return
    task = "" if smoke.task is None else f" of task {smoke.task}"
    page.line((smoke.environment, "bold"), f" is up: an episode{task}, calls {smoke.calls}, return {smoke.reward}")
    page.line("Console: ", (console, "cyan"), f", then http://localhost:{CONTROL_PORT}/console")
    page.line("Its token: ", (token, "cyan"))
