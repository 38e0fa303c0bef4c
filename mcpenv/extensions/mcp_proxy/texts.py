"""Repair the JSON of a server whose texts have no UTF-8 form, which readers of JSON refuse as a whole."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    rb"""
      (?P<whole> \\\\ | \\u[dD][89abAB][0-9a-fA-F]{2} \\u[dD][c-fC-F][0-9a-fA-F]{2} )  # a backslash; two halves
    | \\u[dD][89a-fA-F][0-9a-fA-F]{2}                                                  # half of a character
    """,
    re.VERBOSE,
)


def well_formed_json(text: bytes) -> bytes:
    r"""Return JSON with U+FFFD in place of each half of a character (``\ud83d``), and of bytes that are not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda found: found["whole"] or b"\\ufffd", text)
