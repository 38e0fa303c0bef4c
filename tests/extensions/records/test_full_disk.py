"""A record on a disk that is full for a while: a small tmpfs, mounted for the test."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from record_worlds import Dice

from mcpenv.extensions.records.check import check_record
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import Lost, RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv.trajectories.blobs import write_whole
from mcpenv.trajectories.writer import Job, Writer
from mcpenv_client import EnvClient
from mcpenv_client.types.records import Trajectory

SIZE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a file system of `SIZE` bytes."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"this machine refuses to mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Use up all space."""
    file = disk / "filler"
    with file.open("wb", buffering=0) as opened:
        for size in (1 << 16, 1):
            while True:
                try:
                    if opened.write(b"x" * size) < size:
                        break
                except OSError:
                    break
    return file


def episode(name: str, reason: str | None = None) -> RecordedEpisode:
    return RecordedEpisode(Trajectory(name, reason=reason), RecordedEnvironment("Dice", "1"))


def told(record: Path) -> list[Lost]:
    found: list[Lost] = []
    list(read_episodes(record, on_lost=lambda path, lost: found.append(lost)))
    return found


def ids(record: Path) -> list[str]:
    return [each.id for each in read_episodes(record)]


def command(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "mcpenv", "trajectories", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ran.stderr


@pytest.mark.process
def test_a_record_says_how_many_episodes_a_full_disk_took(disk: Path) -> None:
    record = disk / "record"
    with serving(Dice, ServerConfig(record=record)) as url, EnvClient(url).sync() as client:

        def play(steps: int) -> None:
            for _ in range(steps):
                client.call_tool("say", {"text": secrets.token_hex(8000)})  # more than what is left of a page
            client.reset()

        def lost() -> float:
            found = re.search(r"^mcpenv_records_dropped_total (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
            assert found is not None
            return float(found[1])

        client.reset()
        play(1)
        assert lost() == 0
        filler = fill(disk)
        play(2)
        play(2)
        assert lost() == 2
        filler.unlink()
        assert len(ids(record)) == 1 and not told(record)  # whole up to the gap
        play(1)
        (gap,) = told(record)
        assert (gap.episodes, gap.steps, gap.why) == (2, 4, "No space left on device")
        assert lost() == 2
        assert client.metadata()["recording"]["episodes_lost"] == 2
    kept = ids(record)
    assert "2 episodes with 4 steps lost before this place: No space left on device" in command("list", str(record))
    assert "2 episodes with 4 steps lost" in command("show", str(record), kept[0])
    page = RecordIndex(record).find()
    assert page.total == len(kept) and page.damaged == 0
    assert ["2 episodes with 4 steps lost" in each["why"] for each in page.left_out] == [True]
    assert [each.text for each in check_record(record).findings if each.kind == "lost"] == [str(gap)]


@pytest.mark.process
def test_losses_at_the_end_are_said_when_the_recorder_is_closed(disk: Path) -> None:
    with Recorder(disk / "record") as recorder:
        recorder.write(episode("kept"))
        recorder.flush()
        filler = fill(disk)
        recorder.write(episode("lost", reason=secrets.token_hex(8000)))
        recorder.flush()
        assert recorder.counts.lost == 1
        filler.unlink()
    assert ids(disk / "record") == ["kept"]
    assert [gap.episodes for gap in told(disk / "record")] == [1]


@pytest.mark.process
def test_a_full_disk_keeps_no_files_that_are_not_whole(disk: Path) -> None:
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            write_whole(disk / "picture.png", bytes(2 * SIZE))
    assert not list(disk.iterdir())
    write_whole(disk / "picture.png", bytes(SIZE // 2))
    assert [file.name for file in disk.iterdir()] == ["picture.png"]


def test_episodes_for_which_there_was_no_room_in_the_queue_are_a_gap_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path, max_segment_bytes=10**6, max_waiting=0)
    writer.put(Job(episode("first").line, 2), wait=False)
    writer.put(Job(lambda: None, None), wait=False)  # work that is no episode
    writer.close()
    assert [(gap.episodes, gap.steps, gap.why) for gap in told(tmp_path)] == [(1, 2, "0 episodes wait to be written")]
    assert writer.counts.lost == 1


def test_the_line_of_a_gap_is_json_with_its_numbers() -> None:
    gap = Lost(2, 5, 1.0, 3.5, "disk full")
    assert json.loads(gap.line()) == {
        "lost": {"episodes": 2, "steps": 5, "since": 1.0, "until": 3.5, "why": "disk full"},
        "format": 1,
    }
    assert Lost.from_line(gap.line()) == gap
    assert Lost.from_line(b'{"lost": {"episodes": []}}') is None


def test_a_gap_is_in_the_text_of_a_segment(tmp_path: Path) -> None:
    writer = Writer(tmp_path, max_segment_bytes=10**6, max_waiting=10)

    def fails() -> bytes:
        raise OSError(28, "No space left on device")

    writer.put(Job(fails, 1), wait=True)
    writer.flush()
    writer.put(Job(episode("next").line, 1), wait=True)
    writer.close()
    (segment,) = tmp_path.iterdir()
    first, second = zlib.decompress(segment.read_bytes(), 31).splitlines()
    assert Lost.from_line(first) is not None and Lost.from_line(second) is None


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path, bool], None]]:
    """Return a function that mounts a folder over itself, read-only (True), or takes that away (False)."""
    mounted: list[Path] = []

    def change(folder: Path, on: bool) -> None:
        if not on:
            mounted.remove(folder)
            subprocess.run(["umount", "-l", str(folder)], check=True)
            return
        for words in (["--bind", str(folder), str(folder)], ["-o", "remount,bind,ro", str(folder)]):
            try:
                done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip("there is no mount")
            if done.returncode:
                pytest.skip(f"this machine refuses to mount: {done.stderr.strip()}")
            if folder not in mounted:
                mounted.append(folder)

    yield change
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_episodes_for_a_read_only_folder_are_lost_until_it_can_be_written(
    tmp_path: Path, read_only: Callable[[Path, bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "record"
    with Recorder(record, max_segment_bytes=1) as recorder:  # a segment for each episode
        recorder.write(episode("before"))
        recorder.flush()
        read_only(record, True)
        for name in ("one", "two"):
            recorder.write(episode(name))
            recorder.flush()
        assert (recorder.counts.written, recorder.counts.lost) == (1, 2) and "Read-only file system" in caplog.text
        assert ids(record) == ["before"] and not told(record)
        read_only(record, False)
        recorder.write(episode("after"))
        recorder.flush()
    assert sorted(ids(record)) == ["after", "before"]
    ((gap),) = told(record)
    assert (gap.episodes, gap.why) == (2, "Read-only file system")


def test_what_an_open_file_below_a_read_only_mount_takes_is_recorded(
    tmp_path: Path, read_only: Callable[[Path, bool], None]
) -> None:
    record = tmp_path / "record"
    with Recorder(record) as recorder:
        recorder.write(episode("before"))
        recorder.flush()
        read_only(record, True)
        recorder.write(episode("during"))
        recorder.flush()
        assert (recorder.counts.written, recorder.counts.lost) == (2, 0) and ids(record) == ["before", "during"]


@pytest.mark.parametrize("fault", ["full", "read-only", "deleted", "hidden"])
def test_the_console_says_how_many_episodes_are_lost_while_the_record_cannot_be_written(
    fault: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    record = (request.getfixturevalue("disk") if fault in ("full", "hidden") else tmp_path) / "record"
    with serving(Dice, ServerConfig(record=record, console=True)) as url, EnvClient(url).sync() as client:
        if fault == "read-only":
            request.getfixturevalue("read_only")(record, True)
        elif fault == "full":
            fill(record.parent)
        elif fault == "deleted":
            client.reset()
            client.end()
            client.reset()
            shutil.rmtree(record)
        else:  # another file system is mounted there
            client.reset()
            client.end()
            client.reset()
            subprocess.run(["umount", "-l", str(record.parent)], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(record.parent)], check=True)
        for _ in range(2):
            client.reset()
            client.call_tool("say", {"text": secrets.token_hex(8000)})
            client.end()
        client.reset()  # the episode before is written or lost
        lost = 3 if fault in ("deleted", "hidden") else 2  # with the one that had begun
        assert client.metadata()["recording"]["episodes_lost"] == lost
        left_out = httpx.get(f"{url}/records").json()["left_out"]
        assert left_out[0] == {
            "where": "this server",
            "why": f"{lost} episodes lost since it started; its log says why",
        }
    assert caplog.text.count("episodes lost so far") == 1 and "Traceback" not in caplog.text
