"""The signals that end a process: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes."""

from __future__ import annotations

import os
import signal


def ending_signals() -> list[signal.Signals]:
    """Return the signals, without a SIGHUP that this process was started to ignore, as by ``nohup``."""
    names = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    hangup = getattr(signal, "SIGHUP", None)
    return [each for each in names if each and (each != hangup or signal.getsignal(each) != signal.SIG_IGN)]


def end_as_by_ctrl_c() -> None:
    """Raise `KeyboardInterrupt` in the main thread at the first SIGTERM or SIGHUP, and ignore further ones.

    So commands close their environments and containers. Servers handle the signals on their loop. Forks of
    this process end at once, as they would without this.
    """
    own, received = os.getpid(), False

    def interrupt(number: int, _: object) -> None:
        nonlocal received
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not received:
            received = True
            if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background of a shell
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)  # a running event loop cancels its main task

    for number in ending_signals():
        if number != signal.SIGINT:
            signal.signal(number, interrupt)
