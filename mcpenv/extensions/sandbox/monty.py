"""Run a Python verifier in monty, an interpreter with no files, no network and only a few modules.

Imported on use, because it needs pydantic-monty (the extra "sandbox").
"""

from __future__ import annotations

from typing import Any

from pydantic_monty import Monty, MontyCrashedError, MontyError

from mcpenv.errors import VerifierFailed

from .process import Limits

_GRACE_S = 5.0
_MAX_TEXT = 500


def run(code: str, about: dict[str, Any], limits: Limits) -> Any:
    """Return the result of ``verify``. Blocks.

    Each verifier gets its own worker process, so that no state is shared between verifiers.

    Raises:
        VerifierFailed: if there is no result.
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
                os_policy={"sleep": "zero", "random_start": {"seed": 0}},  # deterministic runs
            ) as session:
                session.feed_run(code, print_callback=_nowhere)
                return session.feed_run("verify(task, before, after, changes)", inputs=about, print_callback=_nowhere)
    except MontyCrashedError as error:
        limit = error.timed_out
        raise VerifierFailed(f"the verifier {'exceeded its time limit' if limit else 'crashed the sandbox'}") from error
    except MontyError as error:
        raise VerifierFailed(f"the verifier raised {error}"[:_MAX_TEXT]) from error


def _nowhere(stream: str, text: str) -> None:
    """Discard the output of the code."""
