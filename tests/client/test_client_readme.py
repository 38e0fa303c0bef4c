"""The examples of clients/python/README.md work, against the environment that it names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcpenv", reason="the examples talk to mcpenv's own server")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "clients/python/README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
URL = "http://127.0.0.1:8000"

SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from environment import EchoEnvironment
from mcpenv.server.serve import serving
with serving(EchoEnvironment) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, str(ROOT / "envs/echo_mcp")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.communicate(timeout=30)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 5
    assert all(URL in block for block in BLOCKS)


@pytest.mark.process
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1].strip())
def test_an_example_works(block: str, url: str) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", block.replace(URL, url)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert ran.stdout.strip()
