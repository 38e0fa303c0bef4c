"""Test that the stored output of an agent's program is bounded, and has its beginning and its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcpenv.extensions.evaluation import program_agent


def test_of_a_program_that_prints_without_end_the_beginning_and_the_end_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_agent, "MAX_OUTPUT", 8_000)
    file, lines = tmp_path / "agents" / "a.log", [b"line %06d\n" % number for number in range(5_000)]
    with program_agent._Output(file) as output:
        for line in lines:
            os.write(output.pipe, line)
            assert not file.exists() or file.stat().st_size <= 8_000 + 65_536
    stored = file.read_bytes()
    beginning, _, rest = stored.partition(b"\n[about ")
    number, _, end = rest.partition(b" bytes are left out here]\n")
    assert len(stored) <= 8_000
    assert b"".join(lines).startswith(beginning) and len(beginning) == 4_000
    assert b"".join(lines).endswith(end) and len(end) >= 2_000
    assert abs(int(number) + len(beginning) + len(end) - 12 * 5_000) < 4_000


def test_the_output_of_a_program_that_prints_less_is_stored_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    with program_agent._Output(file) as output:
        os.write(output.pipe, b"one\ntwo\n")
    assert file.read_bytes() == b"one\ntwo\n"
