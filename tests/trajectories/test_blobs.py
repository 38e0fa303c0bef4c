"""Images in records: stored once by their hash, and whole again when they are read."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import ImageContent, TextContent

from mcpenv import MCPEnvironment, Observation, Recorder, read_episodes
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.formats.images import images_within

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
TEXT = base64.b64encode(PNG).decode()
SMALL = base64.b64encode(b"small").decode()


class Screen(Observation):
    """What the screen shows."""

    content: list[dict[str, Any]] = []


class Desktop(MCPEnvironment):
    """Look at a screen."""

    observation_type = Screen

    def __init__(self) -> None:
        @self.tool
        def screenshot() -> Any:
            """See the screen."""
            image = ImageContent(type="image", data=TEXT, mime_type="image/png")
            return FastMCPResult(content=[TextContent(type="text", text="the screen"), image])

        @self.tool
        def icon() -> Any:
            """See an icon."""
            return FastMCPResult(content=[ImageContent(type="image", data=SMALL, mime_type="image/png")])

        @self.tool
        def log() -> str:
            """Read the log."""
            return "line\n" * 10_000

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Screen:
        return Screen(content=[{"type": "image", "mimeType": "image/png", "data": TEXT}])


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    with Desktop() as env, Recorder(folder) as recorder:
        recorder.attach(env)
        env.reset(episode_id="seen")
        for name in ("screenshot", "icon", "screenshot", "log", "log"):
            env.call_tool(name)
        env.end()
    return folder


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(None, monkeypatch, capfd) as run:
        yield run


def images_of(episode: RecordedEpisode) -> list[tuple[int, bytes | None]]:
    """Return each image with the number of its step, which is 0 for the reset; None where the record lacks it."""
    results = [step.outcome.result for step in episode.trajectory.steps]
    contents = [episode.trajectory.observation, *(result and result.content for result in results)]
    found = [(step, image.get("data")) for step, content in enumerate(contents) for image in images_within(content)]
    return [(step, None if text is None else base64.b64decode(text)) for step, text in found]


def lines_of(record: Path) -> str:
    return "".join(gzip.decompress(file.read_bytes()).decode() for file in record.glob("episodes-*.gz"))


def test_an_image_is_stored_once_beside_the_record_and_comes_back(record: Path) -> None:
    assert TEXT not in lines_of(record) and SMALL in lines_of(record)
    name = f"{hashlib.sha256(PNG).hexdigest()}.png"
    assert lines_of(record).count(name) == 3
    assert (record / "blobs" / name).read_bytes() == PNG
    (episode,) = read_episodes(record)
    assert images_of(episode) == [(0, PNG), (1, PNG), (2, b"small"), (3, PNG)]
    result = episode.trajectory.steps[0].outcome.result
    assert result is not None
    assert result.content[1] == {"type": "image", "mimeType": "image/png", "data": TEXT}
    assert episode.trajectory.observation is not None
    assert episode.trajectory.observation["content"] == [{"type": "image", "mimeType": "image/png", "data": TEXT}]


def test_a_record_without_its_blobs_is_read_without_the_images(record: Path) -> None:
    for file in (record / "blobs").iterdir():
        file.unlink()
    (episode,) = read_episodes(record)
    result = episode.trajectory.steps[0].outcome.result
    assert result is not None and "data" not in result.content[1]
    assert images_of(episode) == [(0, None), (1, None), (2, b"small"), (3, None)]


@pytest.mark.parametrize("kind", ["loop", "pipe", "folder", "large"])
def test_a_blob_that_is_no_file_is_missing(record: Path, kind: str) -> None:
    file = record / "blobs" / f"{hashlib.sha256(PNG).hexdigest()}.png"
    file.unlink()
    make: dict[str, Any] = {
        "loop": lambda: file.symlink_to(file.name),
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "large": lambda: [file.write_bytes(b""), os.truncate(file, 1 << 34)],  # type: ignore[func-returns-value]
    }
    make[kind]()
    (episode,) = read_episodes(record)
    assert images_of(episode) == [(0, None), (1, None), (2, b"small"), (3, None)]


def test_a_name_that_is_no_blob_is_no_path(record: Path) -> None:
    secret = record.parent / "secret.txt"
    secret.write_text("secret")
    (segment,) = record.glob("episodes-*.gz")
    name = f"{hashlib.sha256(PNG).hexdigest()}.png"
    segment.write_bytes(gzip.compress(lines_of(record).replace(name, "../../secret.txt").encode()))
    (episode,) = read_episodes(record)
    assert images_of(episode) == [(0, None), (1, None), (2, b"small"), (3, None)]


def test_an_episode_written_again_has_its_blobs_in_the_other_record(record: Path, tmp_path: Path) -> None:
    with Recorder(tmp_path / "other") as recorder:
        for episode in read_episodes(record):
            recorder.write(episode)
    (again,) = read_episodes(tmp_path / "other")
    (first,) = read_episodes(record)
    assert again == first and TEXT not in lines_of(tmp_path / "other")


@pytest.mark.extension("records")
def test_show_writes_the_images_to_a_folder(cli: Cli, record: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shown = cli("trajectories", "show", str(record), "seen", "--images", str(folder))
    assert shown.status == 0, shown.err
    names = ["reset-1.png", "step-0001-1.png", "step-0002-1.png", "step-0003-1.png"]
    assert sorted(os.listdir(folder)) == names
    assert (folder / "step-0003-1.png").read_bytes() == PNG
    assert all(str(folder / name) in shown.out for name in names)
    assert "4 images" in shown.err


@pytest.mark.extension("records")
def test_show_names_an_image_that_the_record_lacks(cli: Cli, record: Path, tmp_path: Path) -> None:
    for file in (record / "blobs").iterdir():
        file.unlink()
    shown = cli("trajectories", "show", str(record), "seen", "--images", str(tmp_path / "images"))
    assert shown.status != 0 and ".png is missing" in shown.err
