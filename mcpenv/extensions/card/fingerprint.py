"""Fingerprints: the hash of an environment's own files, by which a card is known to be older than they are.

Beside it a card has the version of its format, by which one of an older command is known.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import get_args

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.shipping.folder_files import shipped_files
from mcpenv.extensions.validation.validate import PartName

FORMAT = 2
"""The version of what cards say. Raise it when a card says more, or measures something otherwise."""

README = "README.md"
BEGIN, END = "<!-- mcpenv card -->", "<!-- end of mcpenv card -->"
"""The lines of a README between which its card is."""

_NOT_PLAYED = frozenset({".md", ".png", ".svg"})
"""Texts and pictures for readers, which no episode depends on."""
_CARDS = frozenset({"card.html", "card.json"})
_FORMAT = re.compile(r"""(?:"format":\s*|\| format \| |>format</dt><dd>)(\d+)""")
_STORED = re.compile(r"\bfingerprint\b.{0,40}?(sha256:[0-9a-f]{64})", re.DOTALL)


def fingerprint_of(folder: Path) -> str:
    """Return the hash of the files of a folder: their names and bytes.

    Hidden files, caches, cards, Markdown and pictures do not count, and neither does mcpenv itself.
    """
    whole = hashlib.sha256()
    for file in sorted(shipped_files(folder)):
        name = file.relative_to(folder).as_posix()
        if file.name.startswith(".") or file.suffix in (*_NOT_PLAYED, ".pyc") or file.name in _CARDS:
            continue
        whole.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def stale(folder: Path, card: Path | None = None) -> str | None:
    """Return why the card of an environment cannot be relied on; None if it is of the files, and says all of today.

    Args:
        folder: the folder of the environment.
        card: the file of the card; None for the README of the folder.
    """
    file = folder / README if card is None else card
    if not file.is_file():
        return f"{file}: there is no such file"
    text = file.read_text(encoding="utf-8")
    if card is None:
        part = _card_in(text)
        if part is None:
            return f"{file}: it has no card"
        text = text[slice(*part)]
    stored = _STORED.search(text)
    if stored is None:
        return f"{file}: its card has no fingerprint"
    if stored[1] != fingerprint_of(folder):
        return f"{file}: the card is older than the files of {folder}"
    made = _FORMAT.search(text)
    if made is None or int(made[1]) != FORMAT:
        return f"{file}: the card has format {1 if made is None else made[1]}, and cards have format {FORMAT} now"
    missing = [each for each in get_args(PartName) if not _has_row(text, each)]
    return f"{file}: the card lacks these parts of validation: {', '.join(missing)}" if missing else None


def _has_row(card: str, part: str) -> bool:
    verdict = f"(?:{'|'.join(Verdict)})"  # tables of tasks have a column "tasks"
    row = rf"""\| {part} \| {verdict}|"part": "{part}"|>{part}</th><td>{verdict}"""
    return re.search(row, card) is not None


def write_into_readme(folder: Path, card: str) -> Path:
    """Write a card between the two markers of a README, or at its end, and return its path.

    Args:
        folder: the folder of the environment.
        card: Markdown.

    Raises:
        ConfigurationError: there is no README, or it has one of the markers only.
    """
    file = folder / README
    if not file.is_file():
        raise ConfigurationError(f"{file}: there is no such file; write one, or give --out")
    text = file.read_text(encoding="utf-8")
    part = _card_in(text)
    if part is None and (BEGIN in text or END in text):
        raise ConfigurationError(f"{file}: it has no {BEGIN!r} before {END!r}; give both, or neither")
    begin, end = part or (len(text), len(text))
    before = text[:begin] if part else text.rstrip() + "\n\n"
    file.write_text(f"{before}{BEGIN}\n{card.strip()}\n{END}{text[end:] if part else chr(10)}", encoding="utf-8")
    return file


def _card_in(text: str) -> tuple[int, int] | None:
    """Return the ends of the card in a text, with its markers; None if it has none."""
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    return None if begin < 0 or end < 0 else (begin, end + len(END))
