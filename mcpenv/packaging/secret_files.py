"""Find secrets in the files of an environment: files that hold them by custom, and texts that have their form."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .folder_files import shipped_files

SECRET_FILES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc",
    ".npmrc", ".pypirc", ".git-credentials", "credentials.json", "service-account*.json", "kubeconfig",
)  # fmt: skip
"""Names of files that hold secrets by custom."""
HARMLESS = ("*.example", "*.sample", "*.template", "*.dist")

FORMS = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})\b"),
    "a token of Hugging Face": re.compile(r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a key of a model's API": re.compile(r"\bsk-(?:[a-z]+-)?[A-Za-z0-9_-]{32,}\b"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b"),
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
}
"""The forms of secrets."""

MAX_BYTES = 1024 * 1024
"""Longer files are data, and are not read."""
LEAST = 16
"""Shortest value of a variable that is looked for, in characters."""


def secrets_in(folder: Path, variables: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield file and kind of each secret in a folder. The secret itself is not part of it.

    Args:
        folder: the folder.
        variables: names of environment variables whose values must not stand in a file.
    """
    values = {name: value for name in variables if len(value := os.environ.get(name, "")) >= LEAST}
    for file in shipped_files(folder):
        shown = file.relative_to(folder).as_posix()
        if _holds_secrets(file.name):
            yield shown, "a file that holds secrets by custom"
            continue
        text = _text(file)
        for kind, form in FORMS.items():
            found = form.search(text)
            if found is not None:
                yield f"{shown}:{text.count(chr(10), 0, found.start()) + 1}", kind
        for name, value in values.items():
            if value in text:
                yield f"{shown}:{text.count(chr(10), 0, text.index(value)) + 1}", f"the value of {name}"


def _holds_secrets(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in SECRET_FILES) and not any(
        fnmatch.fnmatch(name, pattern) for pattern in HARMLESS
    )


def _text(file: Path) -> str:
    """Return the text of a file; empty if it is long, is not text, or cannot be read."""
    try:
        if file.is_symlink() or file.stat().st_size > MAX_BYTES:
            return ""
        return file.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return ""


__all__ = ["secrets_in"]
