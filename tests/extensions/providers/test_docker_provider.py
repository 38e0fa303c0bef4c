"""Containers as servers: what is refused before anything starts. Containers are run by tests/world."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from provider_bench import in_loop

from mcpenv_client import EnvClient, ProviderUnavailable
from mcpenv_client.launched import provider_named
from mcpenv_client.providers import docker_engine, owner
from mcpenv_client.providers.docker import DockerProvider, space_image

NOBODY = 65534
"""The number of a user without rights."""


@in_loop
async def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ProviderUnavailable, match=r"pip install 'mcpenv-client\[docker\]'"):
        async with EnvClient.from_docker_image("any"):
            pass


def test_providers_are_found_by_name_and_an_unknown_one_is_refused() -> None:
    assert provider_named("docker") is DockerProvider
    hub = provider_named("hub")("someone/echo")
    assert isinstance(hub, DockerProvider) and hub.image == space_image("someone/echo")
    with pytest.raises(ProviderUnavailable, match=r"there are: .*docker, hub, kubernetes, local"):
        provider_named("unknown")


@in_loop
async def test_without_an_engine_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (missing,) = await DockerProvider("any").missing()
    assert missing.startswith("no engine answers (") and "set DOCKER_HOST to the socket of Podman" in missing


@in_loop
async def test_an_engine_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("tcp://192.0.2.1:2375", "ssh://somebody@192.0.2.1"):
        monkeypatch.setenv("DOCKER_HOST", address)
        (missing,) = await DockerProvider("any").missing()
        assert "192.0.2.1" in missing and "is not on this machine" in missing


def test_the_image_of_a_space_is_named_after_it() -> None:
    assert space_image("Some-Org/My_Env.v2") == "registry.hf.space/some-org-my-env-v2:latest"
    for name in ("org", "org/", "/env", "a/b/c", "org/env@main"):
        with pytest.raises(ValueError, match="is no Space; write OWNER/NAME"):
            space_image(name)


def _own(pipe: Connection) -> None:
    pipe.send(owner.labels())
    pipe.recv()


def test_an_owner_is_gone_when_its_process_has_ended_in_any_way() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_own, args=(there,))
    process.start()
    labels = here.recv()
    assert not owner.is_gone(labels)
    assert process.pid is not None
    process.kill()
    process.join()
    assert owner.is_gone(labels)
    assert owner.is_gone(labels), "and stays so for its other containers"
    assert not Path(labels[owner.MARK]).exists()


def test_what_this_process_owns_is_its_own_and_of_other_machines_is_left_alone() -> None:
    assert not owner.is_gone(owner.labels())
    assert not owner.is_gone({**owner.labels(), owner.HOST: "elsewhere", owner.MARK: os.devnull})
    assert not owner.is_gone({})


def test_an_owner_whose_mark_was_cleaned_up_is_not_gone_while_it_runs() -> None:
    labels = {**owner.labels(), owner.MARK: f"{owner.labels()[owner.MARK]}-removed"}
    assert not owner.is_gone(labels)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert owner.is_gone({**labels, owner.PROCESS: str(ended.pid)})


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Be a user to whom permissions apply, for checks of the real user."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_an_engine_that_this_user_may_not_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0)
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(folder.stat().st_mode | 0o011)  # not the folders, the socket is what is closed
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        with ordinary_user():
            reason = docker_engine.barred()
        assert reason is not None
        assert reason.startswith(f"this user may not use the engine at {path}; join the group that owns it")
        path.chmod(0o777)
        with ordinary_user():
            assert docker_engine.barred() is None
