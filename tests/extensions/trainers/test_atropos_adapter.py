"""The adapter for Atropos, with the real trajectory API, in a virtual environment of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from interrupted import ends_at_ctrl_c
from trainer_worlds import Diary, Doors, FullDisk, Shop

from mcpenv_client import ConnectionFailed
from mcpenv_client.pool import EnvPool, Played
from mcpenv_client.samples import SampledTurn
from mcpenv_client.trainers.atropos import AtroposGroups, Sample
from mcpenv_client.types.model_turns import ModelTurn, TurnTokens

pytestmark = [pytest.mark.world, pytest.mark.timeout(120)]

TIMEOUT_S = 30.0
TRAINER = {
    "wandb_group": "g", "wandb_project": "p", "batch_size": 4, "max_token_len": 512, "checkpoint_dir": "",
    "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 9,
}  # fmt: skip


@pytest.fixture
def api() -> Iterator[str]:
    python = os.environ.get("MCPENV_ATROPOS")
    assert python, "MCPENV_ATROPOS names no Python that has atroposlib; .ci/run makes one and sets it"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(python).with_name("run-api")), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    httpx.get(url)
                    break
                except httpx.TransportError:
                    assert process.poll() is None and time.monotonic() < deadline, "run-api does not answer"
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def groups(url: str, **arguments: Any) -> AtroposGroups:
    return AtroposGroups(
        url, **{"name": "doors", "group_size": 4, "max_token_length": 512, "poll_s": 0.05, **arguments}
    )


def start_trainer(url: str, **settings: int) -> None:
    """Register a trainer, and ask for its first batch."""
    assert httpx.post(f"{url}/register", json={**TRAINER, **settings}).status_code == 200
    assert batch(url) is None


def batch(url: str) -> list[dict[str, Any]] | None:
    """Return a batch, as a trainer takes it."""
    found: list[dict[str, Any]] | None = httpx.get(f"{url}/batch").json()["batch"]
    return found


def take_one(url: str) -> int:
    """Return how many groups wait, and take a batch if there is one."""
    size: int = httpx.get(f"{url}/status").json()["queue_size"]
    if size:
        batch(url)
    return size


async def open_a_door(episode: Any) -> Sample:
    """Open another door in each episode of a group; break the verifier in the last, if it is asked to."""
    doors = ["red", "green", "blue", "red"]
    looked = await episode.call_tool("look")
    await episode.call_tool("open_door", {"colour": doors[episode.assignment.sample]})
    text = looked.text.encode()
    return Sample(
        [*text, 1, 2], [0] * len(text) + [1, 1], [0.0] * len(text) + [-0.5, -0.25], [{"role": "user", "content": "?"}]
    )


async def break_one(episode: Any) -> Sample:
    """Break the verifier in the last episode of each group."""
    if episode.assignment.sample == 3:
        await episode.call_tool("break_verifier")
        return Sample([1], [1])
    return await open_a_door(episode)


def test_a_trainer_gets_whole_groups_with_their_scores_masks_and_tasks(api: str) -> None:
    async def play() -> int:
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Doors, 4) as pool:
            registering = asyncio.ensure_future(groups(api).__aenter__())
            await asyncio.sleep(0)
            await asyncio.to_thread(start_trainer, api)
            sender = await registering
            try:
                return await sender.run(pool, open_a_door, ["red", "green"])
            finally:
                await sender.__aexit__()

    assert asyncio.run(play()) == 8
    found = [batch(api), batch(api)]
    by_task = {group["group_overrides"]["mcpenv"]["task"]["id"]: group for each in found for group in each or []}
    assert by_task.keys() == {"red", "green"}
    red = by_task["red"]
    assert sorted(red["scores"]) == [0.25, 0.25, 1.25, 1.25] and len(red["tokens"]) == 4
    tokens, masks, logprobs = red["tokens"][0], red["masks"][0], red["inference_logprobs"][0]
    assert masks == [-100] * (len(tokens) - 2) + [1, 2] and logprobs[-2:] == [-0.5, -0.25] and logprobs[0] == 1.0
    assert red["messages"][0] == [{"role": "user", "content": "?"}]


def test_an_episode_that_failed_is_not_sent_and_never_a_score_of_zero(api: str) -> None:
    async def play() -> int:
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Doors, 4) as pool, groups(api) as sender:
            return await sender.run(pool, break_one, ["green"], retries=0)

    start_trainer(api)
    assert asyncio.run(play()) == 3
    waiting = httpx.get(f"{api}/status").json()
    assert waiting["queue_size"] == 0  # the API keeps three of four until other groups fill them up


@pytest.mark.parametrize("mask", [None, False])
def test_an_episode_in_which_a_step_failed_is_not_sent(
    api: str, mask: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def save(episode: Any) -> Sample:
        await episode.call_tool("save")
        return Sample([1], [1])

    async def play() -> int:
        given = {} if mask is None else {"mask_failed_steps": mask}
        async with asyncio.timeout(TIMEOUT_S), EnvPool(FullDisk, 4) as pool, groups(api) as sender:
            return await sender.run(pool, save, ["save"], retries=0, **given)

    monkeypatch.setattr(FullDisk, "full", 1)
    start_trainer(api)
    assert asyncio.run(play()) == (3 if mask is None else 4)
    if mask is False:
        (group,) = batch(api) or []
        assert sorted(group["scores"]) == [0.0, 1.0, 1.0, 1.0]


def test_a_group_that_nothing_scored_is_not_sent(api: str, caplog: pytest.LogCaptureFixture) -> None:
    async def write(episode: Any) -> Sample:
        await episode.call_tool("write", {"text": "Dear diary"})
        return Sample([1], [1])

    async def play() -> int:
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Diary, 4) as pool, groups(api) as sender:
            return await sender.run(pool, write, ["write"])

    start_trainer(api)
    assert asyncio.run(play()) == 0
    assert httpx.get(f"{api}/status").json()["queue_size"] == 0
    assert caplog.text.count("its status is completed, nothing scored it") == 4


def test_tokens_are_given_as_for_samples_and_an_episode_of_several_pieces_is_sent_once(
    api: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def policy(episode: Any) -> Any:
        await episode.call_tool("open_door", {"colour": "red"})
        number = episode.assignment.sample
        if number == 0:
            episode.wrote([1], [2], [-0.5])
            episode.wrote([9], [8, 7], [-0.25, -0.125])  # its prompt has not what was before
        elif number == 1:
            return SampledTurn([1], [3], [-1.0])
        elif number == 2:
            return [ModelTurn("messages", "/v1", {}, status=200, prompt_ids=[1], tokens=[TurnTokens([4], [-2.0])])]
        return "nothing"

    async def play() -> int:
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Doors, 4) as pool, groups(api, group_size=4) as sender:
            first = await sender.run(pool, policy, ["red"])
            return first + await sender.run(pool, policy, ["red"])

    start_trainer(api, batch_size=3)
    assert asyncio.run(play()) == 6
    assert caplog.text.count("left episode 3 of group 0 out: the policy returned str") == 2
    assert httpx.get(f"{api}/status").json()["queue_size"] == 0  # groups of three wait for a whole one


def test_a_group_is_sent_without_its_straggler(api: str) -> None:
    async def play() -> int:
        sent = asyncio.Event()

        class Watched(AtroposGroups):
            async def send(self, group: Sequence[Played]) -> int:
                number = await super().send(group)
                sent.set()
                return number

        async def policy(episode: Any) -> Sample:
            if episode.assignment.sample == 3:
                await sent.wait()
            return await open_a_door(episode)

        sender = Watched(api, name="doors", group_size=4, max_token_length=512)
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Doors, 4) as pool, sender:
            return await sender.run(pool, policy, ["red"], group_timeout_s=0.2)

    start_trainer(api)
    assert asyncio.run(play()) == 3


def test_playing_waits_while_too_many_groups_wait_at_the_api(api: str) -> None:
    async def play() -> list[int]:
        sizes = []
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Doors, 4) as pool, groups(api, max_waiting=1) as sender:
            running = asyncio.ensure_future(sender.run(pool, open_a_door, ["red", "green", "blue"]))
            while not running.done():
                sizes.append(await asyncio.to_thread(take_one, api))
            assert running.result() == 12
        return sizes

    start_trainer(api)
    assert max(asyncio.run(play())) <= 2


def test_a_tools_schema_is_the_pools_and_nested_arguments_reach_it(api: str) -> None:
    async def buy(episode: Any) -> Sample:
        (tool,) = await episode.list_tools()
        assert {"Street", "Cash", "Card"} <= tool.input_schema["$defs"].keys()
        card = {"kind": "card", "digits": "1234"}
        await episode.call_tool("buy", {"to": {"name": "High Street", "number": 7}, "payment": card})
        return Sample([1, 2], [0, 1])

    async def play() -> int:
        async with asyncio.timeout(TIMEOUT_S), EnvPool(Shop, 4) as pool, groups(api) as sender:
            return await sender.run(pool, buy, ["buy"])

    start_trainer(api)
    assert asyncio.run(play()) == 4
    (group,) = batch(api) or []
    assert group["scores"] == [1.0] * 4 and group["inference_logprobs"] is None


def test_an_api_that_is_not_there_and_what_is_no_sample_are_errors() -> None:
    async def connect() -> None:
        async with groups("http://127.0.0.1:1"):
            pass

    with pytest.raises(ConnectionFailed, match="register-env of Atropos"):
        asyncio.run(connect())
    with pytest.raises(ValueError, match="one entry for each token"):
        Sample([1, 2], [1])


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_the_playing_and_its_sessions(api: str, stuck: str, by: str) -> None:
    start_trainer(api)
    ends_at_ctrl_c(sys.executable, "atropos", stuck, by, api)
