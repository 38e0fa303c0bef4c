"""Commands of a container engine: their limits, by programs that need none."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from mcpenv.extensions.harbor.box import BoxFailed
from mcpenv.extensions.harbor.engine import command, pipe


def test_a_command_ends_at_its_limit_with_its_children() -> None:
    began = time.monotonic()
    with pytest.raises(BoxFailed, match=r"bash -c took more than 0\.2 s"):
        asyncio.run(command("bash", "-c", "sleep 60 | sleep 60", timeout_s=0.2))
    assert time.monotonic() - began < 30


def test_a_pipe_passes_all_bytes_up_to_its_limit_and_no_more(tmp_path: Path) -> None:
    target = tmp_path / "its target"
    write = ["tee", str(target)]

    def passed(source: list[str], most: int) -> int:
        return asyncio.run(pipe(source, write, most))

    assert passed(["head", "-c", "300000", "/dev/zero"], 300_000) == 300_000 == target.stat().st_size
    with pytest.raises(BoxFailed, match="more than 299999 bytes"):
        passed(["head", "-c", "300000", "/dev/zero"], 299_999)
    with pytest.raises(BoxFailed, match="more than 10 bytes"):
        passed(["cat", "/dev/zero"], 10)
    assert target.stat().st_size <= 11
    for source, target_of in ((["cat", "/not/there"], write), (["echo"], ["cp", "/dev/stdin", "/not/there"])):
        with pytest.raises(BoxFailed, match="No such file"):
            asyncio.run(pipe(source, target_of, 10))
