"""Test that the limit of open files follows from the limit of sessions."""

from __future__ import annotations

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="there is no such limit on this system")

PROGRAM = """
import importlib.util, logging, resource, sys
# One file without the rest of mcpenv, so that the process opens no others.
found = importlib.util.find_spec("mcpenv").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("file_limits", found + "/server/http/file_limits.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
logging.basicConfig(format="%(message)s")
soft, hard, sessions = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
module.allow_many(sessions)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("soft", "hard", "sessions", "after", "said"),
    [
        (600, 4096, 1, 600, ""),
        (512, 4096, 1000, 2512, ""),
        (512, 2000, 1000, 2000, "1000 sessions may need 2512 open files, and this process is allowed 2000; raise"),
        (2000, 2000, 1000, 2000, "1000 sessions may need 2512 open files, and this process is allowed 2000; raise"),
        (3000, 4096, 1000, 3000, ""),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    soft: int, hard: int, sessions: int, after: int, said: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, sessions))]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(ended.stdout) == after
    assert ended.stderr.startswith(said) if said else ended.stderr == ""
