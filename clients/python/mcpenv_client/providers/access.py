"""The cluster that a provider uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """The access to a cluster.

    By default: the cluster of the pod in which this process runs, or of the current context.

    Attributes:
        context: a context of the kubeconfig.
        kubeconfig: the path of a kubeconfig; ``KUBECONFIG``, or ``~/.kube/config``, by default.
    """

    context: str | None = None
    kubeconfig: str | None = None
