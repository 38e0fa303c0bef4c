"""Instructions of seccomp filters in classic BPF, which filters of this folder are made of.

An instruction is a code, two jumps (if so, if not) and a number. See include/uapi/linux/seccomp.h.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

LOAD, JUMP_IF_EQUAL, JUMP_IF_GREATER_OR_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in ``struct seccomp_data``; of arguments the lower half, which the kernel uses for numbers."""

FIRST_OF_X32 = 0x40000000


def instruction(code: int, number: int, *, if_so: int = 0, if_not: int = 0) -> bytes:
    """Return one instruction."""
    return struct.pack("=HBBI", code, if_so, if_not, number)


def answer_if(jump: int, number: int, answer: int) -> Iterable[bytes]:
    """Yield an answer that is given if the loaded number compares to ``number``."""
    yield instruction(jump, number, if_not=1)
    yield instruction(RETURN, answer)


def answer_by_argument(number: int, argument: int, allowed: Collection[int], otherwise: int) -> Iterable[bytes]:
    """Yield the answers to the system call ``number``, which is allowed with some values of an argument only."""
    yield instruction(JUMP_IF_EQUAL, number, if_not=2 + 2 * len(allowed))
    yield instruction(LOAD, argument)
    for value in allowed:
        yield from answer_if(JUMP_IF_EQUAL, value, ALLOW)
    yield instruction(RETURN, otherwise)
