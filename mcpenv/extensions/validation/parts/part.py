"""Define `Part`, and run parts one after the other, each within a time limit."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mcpenv.errors import place_in_target
from mcpenv.extensions.contract.findings import ContractViolation
from mcpenv.extensions.contract.walk import error_text, running_places
from mcpenv_client.errors import McpenvError

from .judged import Judged, Validation, some_of

CLOSE_S = 10.0
"""Maximum seconds in which a part closes its instances at Ctrl-C or SIGTERM. A second Ctrl-C does not wait."""

PARTS = ("contract", "schemas", "tasks", "cheats", "load", "durability", "security", "packaging")
"""The names of all parts, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a validation.

    Attributes:
        name: one of `PARTS`.
        judges: functions that add findings.
        runs_code: True if they run the environment's code. They are skipped after one of them did not end.
    """

    name: str
    judges: Sequence[Callable[[Judged], None]]
    runs_code: bool = True


def run_parts(
    target: str,
    parts: Sequence[Part],
    *,
    leave_out: Collection[str] = (),
    time_limit_s: float = 120.0,
    on_part: Callable[[str], None] | None = None,
) -> Validation:
    """Run parts, and return all findings.

    Args:
        target: the target's name, for the report.
        parts: the parts.
        leave_out: names of parts that are not run. The report has them as skipped.
        time_limit_s: maximum seconds of each part.
        on_part: called with the name of each part before it runs.
    """
    validation = Validation(target, left_out=frozenset(leave_out))
    endless: str | None = None
    for part in parts:
        judged = Judged(part.name)
        validation.parts.append(judged)
        if part.name in leave_out:
            judged.skipped(part.name, "left out")
        elif endless is not None and part.runs_code:
            judged.skipped(part.name, f"not run, because the code of {endless} still runs")
        else:
            if on_part is not None:
                on_part(part.name)
            if not _run(part, judged, time_limit_s):
                endless = part.name
    return validation


def _run(part: Part, judged: Judged, time_limit_s: float) -> bool:
    """Run one part. Return False if it did not end in time."""
    own, bugs, done = Judged(part.name), list[Exception](), threading.Event()
    # A daemon, because code of the environment may never return.
    name = f"mcpenv-validate-{part.name}"
    thread = threading.Thread(target=_judge, args=(part, own, bugs, done), name=name, daemon=True)
    began = time.monotonic()
    try:
        thread.start()
        ended = done.wait(time_limit_s)  # a join that is interrupted takes the thread for ended
    except KeyboardInterrupt:
        _interrupt(thread)
        done.wait(CLOSE_S)
        raise
    judged.seconds = time.monotonic() - began
    if bugs:
        raise bugs[0]
    # A copy, because a thread that did not end may still add findings to its own object.
    judged.findings, judged.facts, judged.summary = list(own.findings), dict(own.facts), own.summary
    if not ended:
        places = running_places()
        at = f"; it is at {some_of(places)}" if places else ""
        judged.failed(
            "time",
            f"did not end within {time_limit_s:g} s{at}",
            "Give slow calls a timeout of their own, or allow more by --time-limit",
        )
    return ended


def _interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread when it runs Python next, so that it closes its instances."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))


def _judge(part: Part, into: Judged, bugs: list[Exception], done: threading.Event) -> None:
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _judge_all(part, into, bugs)
    finally:
        done.set()


def _judge_all(part: Part, into: Judged, bugs: list[Exception]) -> None:
    for judge in part.judges:
        try:
            judge(into)
        except ContractViolation as violation:
            into.failed(part.name, violation.problem, violation.remedy or "Correct it; --debug shows its log")
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            if not isinstance(error, McpenvError) and place_in_target(error) is None:
                bugs.append(error)
                return
            into.failed(part.name, f"the environment failed: {error_text(error)}", "Correct it; --debug shows its log")
