"""Formats of other distributions: entry points of the group ``mcpenv.exports``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environments import CounterEnvironment

from mcpenv import Recorder

FORMATS = """
from mcpenv.extensions.exports.files import ExportFormat

def ids(episode, tools):
    return {"id": episode.trajectory.episode_id, "tools": len(tools)}

def write(episodes, out, options):
    out.write_bytes(b"".join(b"1" for _ in episodes))
    return out.stat().st_size

ONES = ExportFormat(write=write, suffix=".ones", binary=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install a distribution with formats, and record an episode."""
    (tmp_path / "formats.py").write_text(FORMATS)
    info = tmp_path / "formats-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: formats\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mcpenv.exports]\nids = formats:ids\nones = formats:ONES\nbroken = formats:nothing\n"
    )
    with Recorder(tmp_path / "record") as recorder, CounterEnvironment() as env:
        recorder.attach(env)
        env.reset(episode_id="the-first")
    return tmp_path


def export(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which has not read the names of the formats yet."""
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from mcpenv.cli import main; main()"
    command = [sys.executable, "-c", program, "trajectories", "export", *arguments]
    return subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=60, check=False)


def test_formats_of_other_distributions_are_written(site: Path) -> None:
    lines = export(site, "record", "--format", "ids")
    assert json.loads(lines.stdout)["id"] == "the-first"
    assert export(site, "record", "--format", "ones", "--out", "file").returncode == 0
    assert (site / "file").read_bytes() == b"1"


def test_what_cannot_be_written_is_refused_in_one_line(site: Path) -> None:
    refused = export(site, "record", "--format", "ones")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "ones is binary and cannot be written to standard output; add --out FILE.ones" in refused.stderr
    broken = export(site, "record", "--format", "broken")
    assert "the format broken of formats: formats:nothing cannot be loaded: AttributeError" in broken.stderr
    unknown = export(site, "record", "--format", "unknown")
    assert unknown.returncode == 2 and '"ones"' in unknown.stderr.replace("'", '"')
