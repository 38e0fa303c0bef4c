"""Find secrets in the files of an environment: files with conventional names, and texts in a known format."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .folder_files import shipped_files

SECRETS = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", "_netrc", ".npmrc", ".pypirc"),
    *(".git-credentials", ".htpasswd", "credentials.json", "service-account*.json", "kubeconfig"),
)
"""Names of files that hold secrets."""

SECRET_FOLDERS = (".aws", ".ssh", ".gnupg", ".kube", ".docker")

_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_HEAD = 4096
"""Bytes at the beginning of a file that are searched for a private key."""

EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist")
"""Names of files that list required secrets without their values."""

FORMS = {
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})\b"),
    "a token of Hugging Face": re.compile(r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a key of a model's API": re.compile(r"\bsk-(?:[a-z]+-)?[A-Za-z0-9_-]{32,}\b"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b"),
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
}
"""The formats of secrets."""

MAX_BYTES = 1024 * 1024
"""Longer files are data, and are not read."""
LEAST = 16
"""Minimum characters of a variable's value to search for."""


def why_secret(file: Path, path: str) -> str | None:
    """Return why a file must not leave this machine; None if there is no reason."""
    *folders, name = path.split("/")
    if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in SECRETS) or set(folders) & set(SECRET_FOLDERS):
        return "a file of secrets, by its name"
    with file.open("rb") as opened:
        return "has a private key" if _PRIVATE_KEY.search(opened.read(_HEAD)) else None


def secrets_in(folder: Path, variables: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the place of each secret in a folder, with the reason for the finding. The secret itself is not included.

    Args:
        folder: the folder.
        variables: names of environment variables; no file may contain their values.
    """
    values = {name: value for name in variables if len(value := os.environ.get(name, "")) >= LEAST}
    for file in shipped_files(folder):
        shown = file.relative_to(folder).as_posix()
        if file.is_symlink() or not file.is_file():
            continue
        is_example = any(fnmatch.fnmatch(file.name, pattern) for pattern in EXAMPLES)
        why = None if is_example else why_secret(file, shown)
        if why is not None:
            yield shown, why
            continue
        text = _text(file)
        for kind, form in FORMS.items():
            found = form.search(text)
            if found is not None:
                yield f"{shown}:{text.count(chr(10), 0, found.start()) + 1}", f"has {kind}"
        for name, value in values.items():
            if value in text:
                yield f"{shown}:{text.count(chr(10), 0, text.index(value)) + 1}", f"has the value of {name}"


def unread_in(folder: Path) -> list[str]:
    """Return the files of a folder that are not searched for texts, because they are long."""
    files = (file for file in shipped_files(folder) if file.is_file() and not file.is_symlink())
    return [file.relative_to(folder).as_posix() for file in files if file.stat().st_size > MAX_BYTES]


def _text(file: Path) -> str:
    """Return the text of a file; empty if it is long, is not text, or cannot be read."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return ""
        return file.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return ""
