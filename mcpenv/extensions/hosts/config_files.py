"""Configuration files of MCP hosts: add one server and leave the rest unchanged.

A file that does not parse is not written. FastMCP's ``update_config_file`` is not used: it reads the other servers into
models and writes them back with every default filled in.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation.

    Attributes:
        file: the configuration file; None if the host's own command edits it.
        changed: False if the file had the entry already.
        backup: a copy of the previous file; None if there was none, or it is unchanged.
    """

    file: Path | None
    changed: bool
    backup: Path | None = None


def add_to_json(text: str, key: str, name: str, entry: dict[str, Any], force: bool) -> str:
    """Return a JSON configuration with ``entry`` added under ``key``; everything else and the indentation are kept.

    Raises:
        ValueError: the text is not such a configuration, or has another entry of this name and ``force`` is False.
    """
    config = _load_json(text) if text.strip() else {}
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    servers = config.get(key)
    if servers is None:
        servers = config[key] = {}
    if not isinstance(servers, dict):
        raise ValueError(f"its {key!r} is not a JSON object")
    if servers.get(name) == entry:
        return text
    if name in servers and not force:
        raise ValueError(f"it has another server {name!r}; choose another --name, or replace it with --force")
    servers[name] = entry
    found = re.search(r"\n([ \t]+)\S", text)
    indent: str | int | None = found.group(1) if found else 2 if "\n" in text or not text.strip() else None
    written = json.dumps(config, indent=indent, ensure_ascii=text.isascii(), allow_nan=False)
    ending = text[len(text.rstrip()) :] if text.strip() else "\n"
    return written.replace("\n", "\r\n") + ending if "\r\n" in text else written + ending


def add_to_toml(text: str, path: tuple[str, str], entry: dict[str, Any], table: str, force: bool) -> str:
    """Return a TOML configuration with ``table``, the text of ``entry``, added at its end; everything else is kept.

    Raises:
        ValueError: as `add_to_json`, or the text is written in a way that the table cannot be added or replaced.
    """
    before = _load_toml(text)
    group, name = path
    servers = before.get(group, {})
    if not isinstance(servers, dict):
        raise ValueError(f"its {group!r} is not a table")
    if servers.get(name) == entry:
        return text
    if name in servers:
        if not force:
            raise ValueError(f"it has another server {name!r}; choose another --name, or replace it with --force")
        text = _without_table(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.rstrip()
    written = newline.join([*([lines, ""] if lines else []), *table.split("\n"), ""])
    try:
        after = tomllib.loads(written)
    except tomllib.TOMLDecodeError:
        after = None
    # The text was cut and joined: check that it has its previous values and the new entry, and nothing else.
    if after != {**before, group: {**servers, name: entry}}:
        raise ValueError(f"its table {group!r} is written in a way that cannot be extended; add the server by hand")
    return written


def _without_table(text: str, path: tuple[str, str]) -> str:
    """Return ``text`` without the lines of a table and its subtables."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            inside = header[: len(path)] == path
        if not inside:
            kept.append(line)
    return "".join(kept)


def _header(line: str) -> tuple[str, ...] | None:
    """Return the path that a ``[table]`` line names; None for other lines."""
    if not line.lstrip().startswith("["):
        return None
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    parts = []
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            value = value[0]
            continue
        key = next(iter(value))
        parts.append(key)
        value = value[key]
    return tuple(parts)


def _load_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        comments = " (comments?)" if text[error.pos : error.pos + 1] == "/" else ""
        raise ValueError(f"it is not JSON: line {error.lineno}, column {error.colno}: {error.msg}{comments}") from error


def _load_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"its key {twice!r} occurs twice, and one of the values would be lost")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it is not JSON: {name}")


def change_file(file: Path, change: Callable[[str], str]) -> Installed:
    """Replace a file's text by ``change(text)`` atomically, and keep a copy of the previous file.

    Raises:
        ConfigurationError: ``change`` raised a `ValueError`, or the file cannot be read or written.
    """
    file = file.expanduser()
    if file.is_symlink():
        file = file.resolve()  # keeps the link, and replaces its target
    try:
        old = file.read_bytes() if file.exists() else None
        text = "" if old is None else old.decode("utf-8-sig")
        written = change(text)
        if old is not None and written == text:
            return Installed(file, changed=False)
        mark = b"\xef\xbb\xbf" if old is not None and old.startswith(b"\xef\xbb\xbf") else b""
        data = mark + written.encode()
        backup = None if old is None else _back_up(file, old)
        _replace(file, data)
    except UnicodeError as error:
        raise ConfigurationError(f"{file} is unchanged: it is not UTF-8 text") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} is unchanged: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from error
    return Installed(file, changed=True, backup=backup)


def _back_up(file: Path, data: bytes) -> Path:
    """Write a copy to the same folder under an unused name, and return its path."""
    number = 0
    while True:
        backup = file.with_name(f"{file.name}.bak{number or ''}")
        number += 1
        try:
            # Configurations have secrets: the copy gets the file's permissions.
            handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.stat().st_mode & 0o777)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as copy:
            copy.write(data)
        return backup


def _replace(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if file.exists():
            temporary.chmod(file.stat().st_mode & 0o777)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
