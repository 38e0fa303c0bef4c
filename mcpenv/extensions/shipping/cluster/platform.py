"""The platforms of ``mcpenv up``: the programs that each needs, and its commands."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcpenv.errors import ConfigurationError

PlatformName = Literal["kind", "gke", "eks"]

WHERE = {
    "kind": "https://kind.sigs.k8s.io",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "aws": "https://aws.amazon.com/cli",
}
"""Where each program comes from."""


@dataclass(frozen=True)
class Command:
    """A command of a step.

    Attributes:
        words: the program and its arguments.
        reads: a command whose output is its input.
    """

    words: tuple[str, ...]
    reads: tuple[str, ...] | None = None

    def __str__(self) -> str:
        before = "" if self.reads is None else f"{shlex.join(self.reads)} | "
        return before + shlex.join(self.words)


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of cluster.

    Attributes:
        name: its name.
        cluster: the name of the cluster.
        registry: the registry of images that the cluster reaches; None loads them into the nodes.
        project, region: where the cluster is, on GKE and EKS.
    """

    name: PlatformName
    cluster: str
    registry: str | None = None
    project: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        needed = {"kind": (), "gke": ("registry", "region", "project"), "eks": ("registry", "region")}[self.name]
        without = [f"--{each}" for each in needed if getattr(self, each) is None]
        if without:
            example = {
                "gke": "--registry REGION-docker.pkg.dev/PROJECT/REPOSITORY --region REGION --project PROJECT",
                "eks": "--registry ACCOUNT.dkr.ecr.REGION.amazonaws.com --region REGION",
            }[self.name]
            raise ConfigurationError(f"up {self.name} needs {', '.join(without)}; such as {example}")

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that it needs, beside an engine."""
        return {"kind": ("kind", "kubectl"), "gke": ("gcloud", "kubectl"), "eks": ("aws", "kubectl")}[self.name]

    @property
    def context(self) -> str:
        """The context of kubectl."""
        return {
            "kind": f"kind-{self.cluster}",
            "gke": f"gke_{self.project}_{self.region}_{self.cluster}",
            "eks": self.cluster,
        }[self.name]

    @property
    def absent(self) -> list[str]:
        """The programs that are not installed here, each with its origin."""
        return [f"{each} ({WHERE[each]})" for each in self.programs if shutil.which(each) is None]

    def image(self, name: str, tag: str) -> str:
        """Return the reference of an image."""
        return f"{self.registry or 'localhost'}/{name}:{tag}"

    def connect(self) -> list[Command]:
        """Return the commands that make the cluster known to kubectl. On kind, they do not make the cluster."""
        if self.name == "gke":
            place = ("--region", str(self.region), "--project", str(self.project))
            return [Command(("gcloud", "container", "clusters", "get-credentials", self.cluster, *place))]
        if self.name == "eks":
            names = ("--name", self.cluster, "--alias", self.cluster, "--region", str(self.region))
            return [Command(("aws", "eks", "update-kubeconfig", *names))]
        return [Command(("kind", "export", "kubeconfig", "--name", self.cluster))]

    def create(self) -> Command:
        """Return the command that makes a cluster of kind."""
        return Command(("kind", "create", "cluster", "--name", self.cluster, "--wait", "180s"))

    def deliver(self, image: str, engine: str, archive: str) -> list[Command]:
        """Return the commands that bring an image to the cluster.

        Args:
            image: its reference.
            engine: docker, podman or buildah.
            archive: a file for the image, which engines other than docker need on kind.
        """
        host = (self.registry or "").partition("/")[0]
        if self.name == "gke":
            login = Command(
                (engine, "login", "--username", "oauth2accesstoken", "--password-stdin", host),
                reads=("gcloud", "auth", "print-access-token"),
            )
            return [login, Command((engine, "push", image))]
        if self.name == "eks":
            login = Command(
                (engine, "login", "--username", "AWS", "--password-stdin", host),
                reads=("aws", "ecr", "get-login-password", "--region", str(self.region)),
            )
            return [login, Command((engine, "push", image))]
        to = ("--name", self.cluster)
        if engine == "docker":
            return [Command(("kind", "load", "docker-image", image, *to))]
        saved: Sequence[str] = ("save", "-o", archive, image)
        if engine == "buildah":
            saved = ("push", image, f"docker-archive:{archive}:{image}")
        return [Command((engine, *saved)), Command(("kind", "load", "image-archive", archive, *to))]
