"""Running a task's verifier: plain data, written by whoever wrote the task."""

from __future__ import annotations

from typing import Any

from mcpenv_client.records import Reward

from .evidence import Evidence


def check(spec: dict[str, Any], *, has_world: bool) -> None:
    """Refuse a verifier that cannot work, before the episode begins.

    Args:
        spec: the task's.
        has_world: whether the environment names a world.

    Raises:
        ValueError: saying what is wrong with it.
    """
    raise ValueError(f"unknown kind of verifier {spec.get('kind')!r}")


async def run(spec: dict[str, Any], evidence: Evidence) -> Reward | None:
    """What the state is worth, by a task's verifier.

    Raises:
        ValueError: there is no such verifier.
    """
    raise ValueError(f"unknown kind of verifier {spec.get('kind')!r}")
