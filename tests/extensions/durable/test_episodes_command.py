"""``mcpenv episodes``: the durable episodes of a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines
from durable_worlds import Clock, Saved, Walk

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, SessionLost


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def test_episodes_are_listed_shown_and_deleted(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(Walk, ServerConfig(durable=str(store))) as url, EnvClient(url, resume=True).sync() as client:
        client.reset(seed=1, episode_id="first-episode")
        client.call_tool("walk", {"by": 3})
        listed = cli("episodes", "list", str(store), "--json")
        (row,) = json.loads(listed.out)["episodes"]
        assert (row["episode_id"], row["environment"], row["steps"], row["state"]) == (
            "first-episode",
            "Walk",
            1,
            "running",
        )
        sums = json.loads(listed.out)
        table = cli("episodes", "list", str(store)).out
        assert "first-episode" in table
        assert table.endswith(f"\n1 session, {sums['bytes']:,} bytes\n")
        assert (sums["sessions"], sums["bytes"] > 500) == (1, True)
        shown = cli("episodes", "show", str(store), "first")
        assert 'walk {"by": 3}' in shown.out
        document = json.loads(cli("episodes", "show", str(store), "first", "--json").out)
        assert document["trajectory"]["steps"][0]["call"]["name"] == "walk"
        refused = cli("episodes", "discard", str(store), "first")
        assert (refused.status, "a server has first-episode" in refused.err) == (2, True)
        assert cli("episodes", "discard", str(store), "first", "--force").out == "deleted 1 episode\n"
        with pytest.raises(SessionLost):
            client.call_tool("walk")


def test_a_server_continues_an_episode_on_request(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    config = ServerConfig(durable=store)
    first = serving(Walk, config)
    url = first.__enter__()
    with serving(Walk, config) as second, EnvClient([url, second]).sync() as client:
        client.reset(seed=1, episode_id="an-episode")
        client.call_tool("walk")
        first.__exit__(None, None, None)
        (row,) = json.loads(cli("episodes", "list", store, "--json").out)["episodes"]
        assert (row["owner"], row["address"]) == (None, None)
        with serving(Walk) as plain, serving(Clock, config) as clock:
            for at, why in (
                (plain, "it has no --durable"),
                (clock, "the episode is one of Walk 0.1.0, and it has Clock 0.1.0"),
                ("http://127.0.0.1:1", "cannot connect"),
            ):
                other = cli("episodes", "resume", store, "an-ep", "--at", at)
                assert (other.status, why in other.err) == (2, True), other.err
        resumed = json.loads(cli("episodes", "resume", store, "an-ep", "--at", second, "--json").out)
        assert (resumed["state"], resumed["steps"], resumed["resumed"]) == ("running", 1, True)
        again = cli("episodes", "resume", store, "an-ep", "--at", second).out
        assert again == f"{second} had, and keeps, the episode an-episode, after 1 steps\n"
        (row,) = json.loads(cli("episodes", "list", store, "--json").out)["episodes"]
        assert row["address"] == second and second in cli("episodes", "list", store).out
        assert client.state().step_count == 1
    refused = cli("episodes", "resume", store, "an-ep", "--at", "nowhere")
    assert (refused.status, "that is no URL" in refused.err) == (2, True)


def test_an_episode_that_cannot_be_continued_is_said_to_be_lost(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    config = ServerConfig(durable=store)
    with serving(Clock, config) as url:
        client = EnvClient(url, resume=True).sync()
        client.__enter__()
        client.reset(episode_id="of-the-clock")
        client.call_tool("now")
    with serving(Clock, config) as url:
        failed = cli("episodes", "resume", store, "of", "--at", url)
        assert (failed.status, "does not continue it, and its log says why" in failed.err) == (2, True)
    client.close()


def test_snapshots_elsewhere_are_deleted_with_their_episode(cli: Cli, tmp_path: Path) -> None:
    store, objects = str(tmp_path / "store"), tmp_path / "objects"
    with serving(Saved, ServerConfig(durable=f"{store}?snapshots=file://{objects}")) as url:
        client = EnvClient(url, resume=True).sync()
        client.__enter__()
        client.reset(episode_id="of-a-test")
    for which in (["of-a"], ["--older-than-s", "0"]):
        refused = cli("episodes", "discard", store, *which)
        assert (refused.status, "with snapshots=" in refused.err) == (2, True)
    negative = cli("episodes", "discard", f"{store}?snapshots=file://{objects}", "--older-than-s", "-5")
    assert (negative.status, negative.err) == (2, "error: --older-than-s -5 is no number of seconds\n")
    assert len([*objects.glob("*/*")]) == 1
    assert cli("episodes", "discard", f"{store}?snapshots=file://{objects}", "of-a").out == "deleted 1 episode\n"
    assert [*objects.glob("*")] == []
    client.close()


def test_a_store_and_an_episode_must_exist(cli: Cli, tmp_path: Path) -> None:
    missing = cli("episodes", "list", str(tmp_path / "nothing"))
    assert (missing.status, "there is no store" in missing.err) == (2, True)
    assert not (tmp_path / "nothing").exists()
