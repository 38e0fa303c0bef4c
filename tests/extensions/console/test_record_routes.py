"""The record of a server, as the console reads it."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from worlds import World

from mcpenv.extensions.records import record_index
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient


async def play(url: str, *steps: int) -> str:
    async with EnvClient(url) as client:
        result = await client.reset()
        for by in steps:
            await client.call_tool("add", {"by": by})
        return str(result.info["episode_id"])


def played(url: str, *steps: int) -> str:
    return asyncio.run(asyncio.wait_for(play(url, *steps), 30))


@pytest.mark.parametrize("workers", [1, 2])
def test_recorded_episodes_are_listed_newest_first_and_as_they_are_asked_for(tmp_path: Path, workers: int) -> None:
    with serving(World, ServerConfig(record=tmp_path), max_concurrent_envs=4, workers=workers) as url:

        def rows(**query: Any) -> list[str]:
            answer = httpx.get(f"{url}/records", params=query)
            assert answer.status_code == 200, answer.text
            return [row["id"] for row in answer.json()["rows"]]

        assert rows() == []
        first, second = played(url, 1), played(url, 1, 41)
        third = played(url)
        assert set(rows()) == {first, second, third}
        assert rows(text='"by":41') == [second]
        assert set(rows(tool="add")) == {first, second}
        assert rows(tool="add", text="nowhere in it") == []
        worth = httpx.get(f"{url}/records").json()["rows"][0]["return"]
        if worth is not None:
            assert rows(return_min=math.nextafter(worth, math.inf)) == rows(return_min=worth) != []
        assert rows(task="none such") == [] and rows(return_min=1e6) == []
        page = httpx.get(f"{url}/records", params={"offset": 1, "limit": 1}).json()
        assert (page["total"], len(page["rows"]), page["damaged"]) == (3, 1, 0)
        assert page["rows"][0]["id"] == rows()[1]


def test_the_page_of_a_run_while_it_trains_names_the_episodes_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_index, "MAX_INDEXED", 2)
    with serving(World, ServerConfig(record=tmp_path)) as url:

        def notes() -> list[str]:
            found: dict[str, Any] = httpx.get(f"{url}/records/training").json()
            assert found["total"] == 2
            return [note for note in found["notes"] if "left out" in note]

        played(url), played(url)
        assert notes() == []
        played(url)
        assert notes()[0].startswith("The oldest episodes of the record (1) are left out")


def test_equal_steps_of_two_episodes_have_equal_hashes(tmp_path: Path) -> None:
    with serving(World, ServerConfig(record=tmp_path)) as url:
        one, other = played(url, 1, 2), played(url, 1, 3)
        bodies = [httpx.get(f"{url}/records/{each}").json() for each in (one, other)]
        assert [body["episode"]["trajectory"]["episode_id"] for body in bodies] == [one, other]
        mine, theirs = (body["hashes"]["steps"] for body in bodies)
        assert mine[0] == theirs[0] and mine[1] != theirs[1]
        assert httpx.get(f"{url}/records/nothing").status_code == 404


def test_an_episode_that_a_dying_writer_left_half_written_is_not_shown(tmp_path: Path) -> None:
    with serving(World, ServerConfig(record=tmp_path)) as url:
        whole = played(url, 1)
        (segment,) = tmp_path.glob("episodes-*.jsonl.gz")
        (tmp_path / "episodes-99990101T000000Z-1-aaaaaaaa-000001.jsonl.gz").write_bytes(segment.read_bytes()[:-9])
        (tmp_path / "episodes-99990102T000000Z-1-aaaaaaaa-000001.jsonl.gz").write_bytes(b"not a segment")
        body = httpx.get(f"{url}/records").json()
        assert ([row["id"] for row in body["rows"]], body["damaged"]) == ([whole], 1)
        torn, damaged = body["left_out"]
        assert "whose writer died" in torn["why"] and "no episode can be read" in damaged["why"]
        assert str(tmp_path) not in json.dumps(body)


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fsecret",
        "a" * 64 + ".png",
        "b" * 64 + ".png",
        "c" * 64 + ".png",
        "%2e%2e",
        "A" * 64 + ".png",
        "a" * 64 + ".png%00",
    ],
)
def test_only_blobs_of_the_record_are_served(tmp_path: Path, name: str) -> None:
    blobs = tmp_path / "record" / "blobs"
    blobs.mkdir(parents=True)
    (tmp_path / "secret").write_text("not yours")
    (blobs / f"{'a' * 64}.png").symlink_to(tmp_path / "secret")
    (blobs / f"{'b' * 64}.png").symlink_to(f"{'b' * 64}.png")
    os.mkfifo(blobs / f"{'c' * 64}.png")
    with serving(World, ServerConfig(record=tmp_path / "record")) as url:
        answer = httpx.get(f"{url}/records/x/blobs/{name}")
        assert answer.status_code == 404 and b"not yours" not in answer.content


def test_a_pipe_a_bomb_and_links_among_the_segments_cost_neither_the_records_nor_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpenv.trajectories.segments.MAX_MEMBER_BYTES", 1_000_000)
    folder = tmp_path / "record"
    folder.mkdir()
    os.mkfifo(folder / "episodes-pipe.jsonl.gz")
    (folder / "episodes-link.jsonl.gz").symlink_to("episodes-link.jsonl.gz")
    (folder / "episodes-folder.jsonl.gz").mkdir()
    (folder / "episodes-bomb.jsonl.gz").write_bytes(gzip.compress(b" " * 200_000_000))
    with serving(World, ServerConfig(record=folder)) as url:
        episode = played(url, 1)
        tracemalloc.start()
        try:
            for _ in range(2):
                listed = httpx.get(f"{url}/records", timeout=30).json()
                assert [row["id"] for row in listed["rows"]] == [episode] and listed["damaged"] >= 1
                assert httpx.get(f"{url}/metrics", timeout=30).status_code == 200
            assert tracemalloc.get_traced_memory()[1] < 50_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "return_min=nan", "tusk=x"])
def test_a_condition_that_is_none_is_named(tmp_path: Path, query: str) -> None:
    with serving(World, ServerConfig(record=tmp_path)) as url:
        answer = httpx.get(f"{url}/records?{query}")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == [query.partition("=")[0]]


def test_there_are_no_records_where_none_are_made_and_none_without_the_token(tmp_path: Path) -> None:
    with serving(World) as url:
        assert httpx.get(f"{url}/records").status_code == 404
        assert "/records" not in httpx.get(f"{url}/openapi.json").json()["paths"]
    with serving(World, ServerConfig(record=tmp_path, control_token="the-control-token")) as url:
        for path in ("/records", "/records/x", "/records/x/blobs/y", "/records/x/page.html"):
            assert httpx.get(url + path).status_code == 401
        described = httpx.get(f"{url}/openapi.json").json()["paths"]
        at = "/records/{episode_id}"
        for path in ("/records", at, f"{at}/page.html", f"{at}/blobs/{{name}}"):
            assert described[path]["get"]["security"] == [{"controlToken": []}]


def test_sessions_of_the_console_are_told_apart_in_the_record(tmp_path: Path) -> None:
    with serving(World, ServerConfig(record=tmp_path), max_concurrent_envs=4) as url:
        other = played(url, 1)
        address = url.replace("http", "ws") + "/ws?agent="
        with connect(f"{address}console") as socket:
            socket.send(json.dumps({"type": "reset", "data": {}}))
            assert json.loads(socket.recv(20))["type"] == "observation"
        with connect(f"{address}con%20sole") as socket:
            refused = json.loads(socket.recv(20))
            assert (refused["type"], refused["data"]["code"]) == ("error", "VALIDATION_ERROR")
        # A socket that closes is answered before its episode is on disk.
        limit = time.monotonic() + 20
        while len(rows := httpx.get(f"{url}/records").json()["rows"]) < 2:
            assert time.monotonic() < limit, rows
        assert {row["agent"] for row in rows} == {None, "console"}
        (row,) = httpx.get(f"{url}/records", params={"not_agent": "console"}).json()["rows"]
        assert row["id"] == other
        assert len(httpx.get(f"{url}/records", params={"agent": "console"}).json()["rows"]) == 1
