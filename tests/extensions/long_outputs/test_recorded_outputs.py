"""Long outputs in records: stored once by their hash."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from mcpenv import MCPEnvironment, Recorder, read_episodes
from mcpenv.extensions.long_outputs import LongOutputs

WHOLE = "line\n" * 10_000


class Logs(MCPEnvironment):
    """Read a log."""

    long_outputs = LongOutputs(1000)

    def __init__(self) -> None:
        @self.tool
        def log() -> str:
            """Read the log."""
            return WHOLE


def test_a_long_output_is_stored_whole_under_the_hash_that_its_result_names(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, Logs() as env:
        recorder.attach(env)
        env.reset()
        env.call_tool("log")
        env.call_tool("log")
        env.end()
        recorder.flush()
        (episode,) = read_episodes(tmp_path)
    for step in episode.trajectory.steps:
        assert step.outcome.result is not None and step.outcome.result.meta is not None
        digest = step.outcome.result.meta["mcpenv/output"]["sha256"]
        file = tmp_path / "blobs" / f"{digest}.txt.gz"
        assert gzip.decompress(file.read_bytes()).decode() == WHOLE
        assert WHOLE not in step.outcome.result.text
    assert len(episode.trajectory.steps) == 2 and len(os.listdir(tmp_path / "blobs")) == 1
