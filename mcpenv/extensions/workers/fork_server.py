"""Imported in the fork server of the workers, and nowhere else: it ends with the process that started it.

By itself it ends when all processes that it started have ended, too, of which one may be stopped. When it ends, its
workers continue if they are stopped, and then find that they have lost the hub.
"""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
