"""What backends of sandboxes need in tests: an image in podman's engine, a warm pool in the stand-in of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import NAMESPACE, Controller, api_server, make_pool, url_in
from container_image import PROGRAMS, import_image
from podman_engine import podman_service, podman_settings

from mcpenv.extensions.sandbox_world.bubblewrap import system_folders

IMAGE = "localhost/mcpenv-test-sandbox:1"

_MORE = (
    *("awk", "base64", "comm", "cut", "date", "env", "find", "git", "grep", "jq", "ln", "mkfifo", "mktemp", "mv", "ps"),
    *("readlink", "sed", "seq", "setsid", "sha256sum", "sort", "stat", "tail", "tar", "timeout", "touch", "tr", "uniq"),
    *("unzip", "wc", "xargs", "zip"),
)
_RUNTIME = Path(__file__).with_name("sandbox_runtime.py")


@contextlib.contextmanager
def container_options(folder: Path) -> Iterator[dict[str, Any]]:
    """Run podman's API where the Docker SDK finds it. Yield the options of a sandbox in a container."""
    with podman_settings(folder), podman_service(folder) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        import_image("podman", IMAGE, (*PROGRAMS, *_MORE))
        yield {"image": IMAGE}


@contextlib.contextmanager
def remote_options(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a cluster with a warm pool, as far as claims and runtimes see it. Yield the options of a remote sandbox."""
    with api_server(folder) as kubeconfig, contextlib.ExitStack() as pods:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        numbers = itertools.count(1)

        def pod() -> str:
            ip = f"127.0.77.{next(numbers)}"
            pods.enter_context(_pod(folder / ip, ip, port))
            return ip

        make_pool(kubeconfig)
        with Controller(url_in(kubeconfig), pod):
            yield {"pool": "shop", "namespace": NAMESPACE, "kubeconfig": kubeconfig, "port": port}


@contextlib.contextmanager
def _pod(folder: Path, ip: str, port: int) -> Iterator[None]:
    """Run the stand-in of a runtime with file and process namespaces of its own, as in a pod."""
    for name in ("work", "app"):
        (folder / name).mkdir(parents=True)
    words = (
        *("bwrap", "--die-with-parent", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"),
        *(
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
            "--unshare-pid",
            *system_folders(),
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
        ),
        *("--bind", str(folder / "work"), "/work", "--bind", str(folder / "app"), "/app"),
        *("--ro-bind", str(_RUNTIME), "/runtime.py", "--", "/usr/bin/python3", "/runtime.py", ip, str(port)),
    )
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the stand-in of a runtime did not start"
            yield
        finally:
            process.kill()
