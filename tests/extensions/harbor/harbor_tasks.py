"""Write task directories of Harbor for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mcpenv.extensions.harbor.environment import HarborEnvironment
from mcpenv.extensions.validation.tasks.play import oracle, play

CONFIG = """
schema_version = "1.4"

[task]
name = "mcpenv/hello"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 60.0

[environment]
network_mode = "no-network"
"""

DOCKERFILE = """
FROM {image}
WORKDIR /app
ENV GREETING="Hello" NAME=world
COPY seed.txt data/
RUN echo built > built.txt
"""

TEST = """#!/bin/bash
if [ "$(cat hello.txt)" = "Hello, world!" ] && [ "$(cat data/seed.txt built.txt)" = "seed
built" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""

SOLUTION = """#!/bin/bash
echo "$GREETING, $NAME!" > hello.txt
"""


def harbor_task(
    folder: Path, files: Mapping[str, str | None] | None = None, *, config: str = CONFIG, image: str = "debian:12"
) -> Path:
    """Write a task, and return its folder.

    Args:
        files: contents by path, instead of those of the task "hello"; None to leave a file out.
    """
    contents: dict[str, str | None] = {
        "task.toml": config,
        "instruction.md": 'Write "Hello, world!" to hello.txt in the current folder.\n',
        "environment/Dockerfile": DOCKERFILE.format(image=image),
        "environment/seed.txt": "seed\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": SOLUTION,
    }
    for name, text in (contents | dict(files or {})).items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def assert_scored(folder: Path) -> None:
    """Assert that the oracle of the only task scores 1 in podman's containers, and doing nothing 0 after it."""
    cls = HarborEnvironment.from_folder(folder, provider="podman")
    assert cls.tasks is not None
    (task,) = cls.tasks
    with cls() as env:
        solved, idle = play(env, task, oracle(task)), play(env, task)
    assert (solved.error, solved.score, idle.error, idle.score) == (None, 1.0, None, 0.0), solved.reasons
