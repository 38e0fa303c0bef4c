"""``mcpenv console``: a record in the browser, without its environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import Cli, command_lines

from mcpenv import Trajectory
from mcpenv.extensions.records.reviews import FILE, Reviews, review_of
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv.trajectories.blobs import FOLDER


def record(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    lines = [RecordedEpisode(Trajectory(name), RecordedEnvironment("Dice", "1")).line() for name in names]
    (folder / "episodes-a.jsonl").write_bytes(b"".join(lines))
    return folder


@contextmanager
def shown(directory: Path, *options: str) -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "mcpenv", "console", str(directory), "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_the_episodes_of_a_record_are_shown_without_their_environment(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with shown(record(tmp_path / "mine", "e1", "e2"), "--ready-file", str(ready)) as told:
        assert json.loads(ready.read_text(encoding="utf-8")) == told
        url = told["url"]
        assert url.startswith("http://127.0.0.1:") and told["console"] == f"{url}/console"
        page = httpx.get(told["console"], follow_redirects=True)
        assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
        session = httpx.get(f"{url}/console/api/session").json()
        assert (session["mode"], session["name"], session["records"]) == ("records", "mine", True)
        assert {row["id"] for row in httpx.get(f"{url}/records").json()["rows"]} == {"e1", "e2"}
        assert httpx.get(f"{url}/records/e1").json()["episode"]["trajectory"]["episode_id"] == "e1"
        # It has nothing else, and answers no page of another server.
        assert httpx.get(f"{url}/sessions").status_code == 404
        for path in ("/records", "/records/e1", "/console/", "/console/api/session", "/console/frame.html"):
            assert httpx.get(url + path, headers={"Host": "evil.example"}).status_code == 421
            assert httpx.get(url + path, headers={"Origin": "http://evil.example"}).status_code == 403
    assert not ready.exists()


def test_of_the_folder_of_an_evaluation_the_record_is_shown(tmp_path: Path) -> None:
    record(tmp_path / "run" / "record", "e1")
    (tmp_path / "run" / "settings.json").write_text("{}", encoding="utf-8")
    with shown(tmp_path / "run") as told:
        assert told["record"] == str(tmp_path / "run" / "record")
        assert [row["id"] for row in httpx.get(f"{told['url']}/records").json()["rows"]] == ["e1"]


def test_the_records_of_several_servers_below_a_folder_are_one(tmp_path: Path) -> None:
    for server in ("one", "two"):
        record(tmp_path / "fleet" / server, server)
    image = f"{'0' * 64}.png"
    (tmp_path / "fleet" / "two" / FOLDER).mkdir()
    (tmp_path / "fleet" / "two" / FOLDER / image).write_bytes(b"an image")
    with shown(tmp_path / "fleet") as told:
        assert {row["id"] for row in httpx.get(f"{told['url']}/records").json()["rows"]} == {"one", "two"}
        assert httpx.get(f"{told['url']}/records/two/blobs/{image}").content == b"an image"
        assert httpx.get(f"{told['url']}/records/one/blobs/{image}").status_code == 404
        training = httpx.get(f"{told['url']}/records/training").json()
        assert [row[0] for row in training["tables"][-1]["rows"]] == ["one", "two"]
        refused = httpx.get(f"{told['url']}/records/training", params={"where": "nothing"})
        assert refused.status_code == 422 and "column 1" in refused.json()["message"]


def test_a_review_of_a_record_below_a_folder_is_written_beside_that_record(tmp_path: Path) -> None:
    for server in ("one", "two"):
        record(tmp_path / "fleet" / server, server)
    Reviews(tmp_path / "fleet" / "one").write(review_of({"episode": "one", "rater": "Ann", "rating": 2}))
    with shown(tmp_path / "fleet") as told:
        assert [each["rating"] for each in httpx.get(f"{told['url']}/records/one").json()["reviews"]] == [2]
        found = httpx.get(f"{told['url']}/records", params={"where": "rating <= 2"}).json()["rows"]
        assert [row["id"] for row in found] == ["one"]
        written = httpx.put(f"{told['url']}/records/two/review", json={"rater": "Bob", "rating": 4}).json()
        assert [each["rater"] for each in written["reviews"]] == ["Bob"]
    assert Reviews(tmp_path / "fleet" / "two").said()["two"][0].rating == 4
    assert not (tmp_path / "fleet" / FILE).exists()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def test_what_is_no_record_is_refused_with_what_it_may_be(cli: Cli, tmp_path: Path) -> None:
    missing = cli("console", "gone")
    assert missing.status == 2 and "there is no such record" in missing.err
    record(tmp_path / "folder" / "mine", "e1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("none", encoding="utf-8")
    around = cli("console", "other")
    assert around.status == 2 and "this is no record" in around.err
    file = cli("console", "folder/mine/episodes-a.jsonl")
    assert file.status == 2 and "this is a file; name its folder" in file.err
    port = cli("console", "folder/mine", "--port", "70000")
    assert port.status == 2 and '"70000" for --port' in port.err
