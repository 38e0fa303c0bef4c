"""The errors of other processes: what can be sent of them, and their tracebacks as text."""

from __future__ import annotations

import pickle
import traceback


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text. It is the ``__cause__`` of that error here."""

    def __str__(self) -> str:
        """Return the text, in lines of its own."""
        return "\n\n" + "".join(map(str, self.args))


def text_of(error: BaseException) -> str:
    """Return the traceback of an error."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()


def pickled_error(error: BaseException | None) -> bytes:
    """Return an error as bytes; empty if there is none, or if it cannot be pickled."""
    try:
        return b"" if error is None else pickle.dumps(error)
    except Exception:  # noqa: BLE001 - its class may raise anything; the traceback is sent as text
        return b""


def arrived_error(given: bytes, text: str) -> BaseException:
    """Return the error of `pickled_error` with a `RemoteTraceback` as cause; only that if it cannot be loaded here."""
    try:
        error = pickle.loads(given) if given else None
    except Exception:  # noqa: BLE001 - its class may raise anything, or may not be importable
        error = None
    if not isinstance(error, BaseException):
        return RemoteTraceback(text)
    error.__cause__ = RemoteTraceback(text)
    return error
