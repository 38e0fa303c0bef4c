"""The monty sandbox: a Python verifier in an interpreter that has no files, no network and no modules but a few.

Imported on use: it needs pydantic-monty, the extra "sandbox".
"""

from __future__ import annotations

from typing import Any

from pydantic_monty import Monty, MontyCrashedError, MontyError

from ..errors import VerifierFailed
from .specs import Limits

_GRACE_S = 5.0
_MAX_TEXT = 500


def run(code: str, about: dict[str, Any], limits: Limits) -> Any:
    """What ``verify`` returned. Blocks.

    A worker process of its own for each verifier: nothing of one is there for the next.

    Raises:
        VerifierFailed: there is no result.
    """
    try:
        with Monty(max_processes=1, request_timeout=limits.time_s + _GRACE_S) as pool:
            with pool.checkout(
                script_name="verifier.py",
                limits={
                    "max_feed_duration_secs": limits.time_s,
                    "max_memory": limits.memory_mb << 20,
                    "max_suspensions": 1,
                },
                os_policy={"sleep": "zero", "random_start": {"seed": 0}},  # two runs over the same world agree
            ) as session:
                session.feed_run(code, print_callback=_nowhere)
                return session.feed_run("verify(task, before, after, changes)", inputs=about, print_callback=_nowhere)
    except MontyCrashedError as error:
        limit = error.timed_out
        raise VerifierFailed(
            f"the verifier {'passed its limit of time' if limit else 'crashed the sandbox'}"
        ) from error
    except MontyError as error:
        raise VerifierFailed(f"the verifier raised {error}"[:_MAX_TEXT]) from error


def _nowhere(stream: str, text: str) -> None:
    """What the code prints."""
