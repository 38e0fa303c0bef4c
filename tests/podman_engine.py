"""Podman for tests: its settings on machines with limits, a base image, and the API that Docker's SDK speaks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

BASE = "localhost/mcpenv-test-base:1"
"""An image with python3, as Debian's minbase has it."""

TIMEOUT_S = 600
START_S = 30.0
SETTINGS = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
BUILD_OPTIONS = ("--isolation=chroot", "--network=host", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro")


def build_options() -> list[str]:
    """The options of a build: without a network of its own, and with this machine's settings of pip."""
    config = Path("/etc/pip.conf")
    files = [config] if config.is_file() else []
    return [*BUILD_OPTIONS, *(f"--volume={file}:{file}:ro" for file in files)]


@contextlib.contextmanager
def podman_settings(folder: Path) -> Iterator[None]:
    """Set podman's settings for this process and those that it starts."""
    file = folder / "containers.conf"
    file.write_text(SETTINGS, encoding="utf-8")
    before = os.environ.get("CONTAINERS_CONF")
    os.environ["CONTAINERS_CONF"] = str(file)
    try:
        yield
    finally:
        del os.environ["CONTAINERS_CONF"]
        if before is not None:
            os.environ["CONTAINERS_CONF"] = before


def podman(*arguments: str) -> str:
    """Run a command of podman, and return its output."""
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def import_base(folder: Path) -> None:
    """Make the base image, unless this machine has it."""
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode == 0:
        return
    archive = folder / "base.tar"
    packages = "python3,python3-venv,ca-certificates"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", str(archive)],
        check=True,
        timeout=TIMEOUT_S,
    )
    podman("import", str(archive), BASE)
    archive.unlink()


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run a registry of images on loopback, which podman trusts without TLS. Yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings, trusted = folder / "registry.json", folder / "registries.conf"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    settings.write_text(json.dumps({"version": "0.1", "storage": storage, "http": {"addr": address}}), encoding="utf-8")
    trusted.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n', encoding="utf-8")
    process = subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(trusted)
    try:
        end = time.monotonic() + START_S
        while not _listens(address):
            assert process.poll() is None and time.monotonic() < end, "the registry does not start"
            time.sleep(0.05)
        yield address
    finally:
        del os.environ["CONTAINERS_REGISTRIES_CONF"]
        process.terminate()
        process.wait(START_S)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def podman_service(folder: Path) -> Iterator[str]:
    """Run podman's API, and yield its address for ``DOCKER_HOST``."""
    socket = folder / "podman.sock"
    address = f"unix://{socket}"
    process = subprocess.Popen(["podman", "system", "service", "--time=0", address], stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_S
        while not socket.exists():
            assert process.poll() is None and time.monotonic() < end, "podman's service does not start"
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(START_S)
