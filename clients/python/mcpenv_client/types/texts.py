"""Texts for people and logs: error messages, reasons, names. Data is in `values`."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """Return a text with lone surrogates (U+D800 to U+DFFF), which have no UTF-8 form, replaced by U+FFFD.

    ``os.listdir`` returns them for file names that are not UTF-8, and slices of JavaScript strings have them.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
