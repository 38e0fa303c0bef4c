"""Check the files that an agent left, in a process of its own: ``python check.py TASK FOLDER``. Status 0: they pass."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from harness_bench.tasks import get_task

LIMITS = {resource.RLIMIT_CPU: 20, resource.RLIMIT_AS: 1 << 30, resource.RLIMIT_FSIZE: 64 << 20}
"""Seconds of processor time, bytes of memory, and bytes of a file, such as one in which SQLite sorts."""

if __name__ == "__main__":
    task, folder = sys.argv[1:]
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))
    sys.exit(not get_task(task).verify(Path(folder)).passed)
