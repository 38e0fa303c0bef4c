"""What the tests of environments have in common whose tasks are in packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ENVS = Path(__file__).resolve().parents[2] / "envs"


def module_of(name: str) -> Any:
    """Return the module of an environment, loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"{name}_environment", ENVS / f"{name}_mcp" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_that_no_answer_runs(environment: Any, tasks: int, folder: Path) -> None:
    """Answer the first test tasks with Python, which would make a file in a folder."""
    marker = folder / "ran"
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    with environment() as env:
        for task in environment.get_tasks("test", 0, tasks):
            for text in (code, f"[{code}]", f"[[{code}]]"):
                env.reset(task=task)
                env.call_tool("answer", {"text": text})
                assert not marker.exists(), task.family
