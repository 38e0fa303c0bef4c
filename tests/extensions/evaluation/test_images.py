"""Images of results and observations in an evaluation: what the model is sent, and what the record keeps."""

from __future__ import annotations

import base64
import gzip
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import Answer, Endpoint, called, said
from fastmcp.utilities.types import Image

from mcpenv import MCPEnvironment, Observation, read_episodes
from mcpenv.extensions.evaluation import ModelAgent, evaluate
from mcpenv.extensions.exports.anthropic import anthropic_row

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
) + bytes(2000)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


class Screen(MCPEnvironment):
    """Look at a screen."""

    def __init__(self) -> None:
        @self.tool
        def screenshot() -> Image:
            """Look at the screen."""
            return Image(data=PNG, format="png")

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        block = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
        return Observation(metadata={"prompt": "Look twice.", "screen": block})


class Looker(Endpoint):
    """A model that takes two screenshots in one message, and stops."""

    def _answer(self, path: str, key: str | None, body: dict[str, Any]) -> Answer:
        self.asked.append(body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return called(("screenshot", {}), ("screenshot", {})) if turn == 0 else said("Seen.")


@pytest.fixture
def looker() -> Iterator[Looker]:
    with closing(Looker()) as endpoint:
        yield endpoint


def urls(messages: list[dict[str, Any]]) -> list[str]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def test_the_model_is_sent_images_after_the_results_and_the_record_keeps_them_once(
    looker: Looker, tmp_path: Path
) -> None:
    done = evaluate(Screen, ModelAgent("looker", base_url=looker.url, images=True), out=tmp_path / "run", n=1)
    (result,) = done.results
    assert result.failure is None, result.detail
    last = looker.asked[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert urls(last) == [URL] * 3
    (episode,) = read_episodes(done.directory / "record")
    assert episode.messages is not None and urls(episode.messages) == [URL] * 3
    assert len(list((done.directory / "record" / "blobs").iterdir())) == 1
    (segment,) = (done.directory / "record").glob("*.jsonl.gz")
    written = gzip.decompress(segment.read_bytes()).decode()
    assert URL[-500:] not in written
    assert written.count('"blob"') == 6, "one of the reset, one of each step, and the three of the chat"
    blocks = [block for message in anthropic_row(episode, [])["messages"] for block in message["content"]]
    assert sum(block["type"] == "image" for block in blocks) == 3


def test_without_images_the_model_reads_a_word_and_the_log_says_so(
    looker: Looker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mcpenv"):
        evaluate(Screen, ModelAgent("looker", base_url=looker.url), out=tmp_path / "run", n=1)
    last = looker.asked[-1]["messages"]
    assert urls(last) == [] and [message["content"] for message in last if message["role"] == "tool"] == ["[image]"] * 2
    assert sum("--images" in record.getMessage() for record in caplog.records) == 1
