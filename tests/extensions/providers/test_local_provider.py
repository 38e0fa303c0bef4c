"""Providers, by the one of local processes: a server for a block, its end, and what refusals say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from provider_bench import WORLDS, in_loop

from mcpenv_client import (
    ConnectionFailed,
    EnvClient,
    InstanceFailed,
    ProviderUnavailable,
    SessionLost,
    StepResult,
    Unauthorized,
)
from mcpenv_client.providers.local import LocalInstance, LocalProvider
from mcpenv_client.providers.provider import Instance, Provider

WAIT_S = 60.0
OWNER = """
import asyncio, sys
from mcpenv_client.providers.local import LocalProvider

async def main():
    async with LocalProvider(sys.argv[1]).instance() as instance:
        print(instance.url, instance.name.split()[-1], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

pytestmark = pytest.mark.slow


def sound(**options: object) -> LocalProvider:
    return LocalProvider(f"{WORLDS}:Sound", **options)  # type: ignore[arg-type]


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def data_of(step: StepResult[Any]) -> object:
    assert step.result is not None
    return step.result.data


def environ_of(process: str) -> str:
    return Path(f"/proc/{process}/environ").read_text()


async def wait_until_ended(process: int) -> None:
    async def wait() -> None:
        while not ended(process):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), WAIT_S)


@in_loop
async def test_a_client_gets_a_server_of_its_own() -> None:
    launched = EnvClient.from_provider(sound(options=["--set", "start=3"]))
    async with launched as env:
        await env.reset()
        assert data_of(await env.call_tool("add", {"by": 2})) == 5
        instance = launched.instance
        assert instance is not None and await instance.is_alive()
    assert launched.instance is None
    assert not await instance.is_running() and not await instance.is_alive()


def test_a_blocking_client_gets_one_too() -> None:
    with EnvClient.from_provider(sound()).sync() as env:
        env.reset()
        assert env.state().count == 0
        url = env.base_url
    with pytest.raises(ConnectionFailed), EnvClient(url).sync():
        pass


@in_loop
async def test_the_control_plane_wants_the_token_which_tools_cannot_read() -> None:
    async with sound(env={"COLOUR": "blue"}).instance() as instance:
        assert instance.control_token is not None and instance.control_token not in repr(instance)
        with pytest.raises(Unauthorized):
            await EnvClient(instance.url).connect()
        async with EnvClient(instance.url, headers=instance.headers) as env:
            await env.reset()
            found = [await env.call_tool("environ", {"name": name}) for name in ("COLOUR", "MCPENV_CONTROL_TOKEN")]
            assert [data_of(step) for step in found] == ["blue", None]
        assert instance.control_token not in environ_of(instance.name.split()[-1])


@in_loop
async def test_the_error_of_a_server_that_ends_at_its_start_quotes_its_output() -> None:
    with pytest.raises(InstanceFailed, match="ended while it started") as raised:
        async with LocalProvider(f"{WORLDS}:Missing").instance():
            pass
    assert "provider_worlds.py:Missing: there is no 'Missing' in the file" in raised.value.log


@in_loop
async def test_a_server_that_is_not_ready_in_time_is_ended() -> None:
    with pytest.raises(InstanceFailed, match=r"was not ready after 0\.01 s"):
        async with sound(start_timeout_s=0.01).instance():
            pass


@in_loop
async def test_a_server_that_has_ended_is_not_alive_and_its_block_ends_as_usual() -> None:
    async with sound().instance() as instance:
        async with EnvClient(instance.url, headers=instance.headers) as env:
            await env.reset()
            with pytest.raises(SessionLost):
                await env.call_tool("leave")
        async with asyncio.timeout(WAIT_S):
            while await instance.is_running():  # its last thread may end after the first one
                await asyncio.sleep(0.05)
        assert not await instance.is_alive()


@in_loop
async def test_a_cancelled_block_ends_its_server() -> None:
    begun: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with sound().instance() as instance:
            begun.set_result(instance)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(use())
    instance = await asyncio.wait_for(begun, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await instance.is_running()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@in_loop
async def test_the_server_ends_with_an_owner_that_is_killed() -> None:
    command = [sys.executable, "-c", OWNER, f"{WORLDS}:Sound"]
    owner = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, start_new_session=True)
    assert owner.stdout is not None
    try:
        url, process = (await owner.stdout.readline()).decode().split()
        assert not ended(int(process))
    finally:
        owner.kill()
        await owner.wait()
    await wait_until_ended(int(process))
    with pytest.raises(ConnectionFailed):
        await EnvClient(url).connect()


@in_loop
async def test_what_is_missing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    started: list[str] = []

    class Counting(LocalProvider):
        @asynccontextmanager
        async def launch(self) -> AsyncIterator[LocalInstance]:
            started.append(self.python)
            async with super().launch() as instance:
                yield instance

    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    for provider, said in (
        (Counting(WORLDS, python="no-such-python"), "there is no program no-such-python; give python="),
        (Counting(WORLDS, python=bare), f"{bare} has no mcpenv; run: {bare} -m pip install CLONE/clients/python CLONE"),
        (Counting(WORLDS, folder=tmp_path / "gone"), "there is no folder"),
    ):
        with pytest.raises(ProviderUnavailable) as raised:
            async with provider.instance():
                pass
        assert said in raised.value.missing[0]
        assert str(raised.value).startswith("Counting cannot start a server: ")
    assert started == []


def test_a_provider_says_what_its_instances_can() -> None:
    assert LocalProvider.capabilities.ends_with_owner and not LocalProvider.capabilities.isolated
    assert issubclass(LocalProvider, Provider)
