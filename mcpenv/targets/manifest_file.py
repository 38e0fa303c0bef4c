"""Read a manifest. A mistake in it is reported with its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError

from mcpenv.errors import TargetError, meant
from mcpenv_client.wire.faults import place_of, plain_faults

from .manifest import MANIFEST, SCHEMA_VERSION, Manifest, ManifestLimits, ManifestNeeds

_PARTS: dict[tuple[str | int, ...], type[BaseModel]] = {
    (): Manifest,
    ("limits",): ManifestLimits,
    ("needs",): ManifestNeeds,
}


def read_manifest(file: Path) -> Manifest:
    """Return the manifest in a file.

    Raises:
        TargetError: it cannot be read, is not YAML, or has an unknown key or an invalid value.
    """
    document, node = _document(file)
    for line, key in _repeated(node):
        raise TargetError(f"{file}:{line}", f"the key {key!r} is given twice; keep one")
    if not isinstance(document, dict):
        raise TargetError(
            f"{file}:1", f"must be a mapping of keys to values; begin with schema_version: {SCHEMA_VERSION}"
        )
    _refuse_other_version(file, document, node)
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        faults = sorted(_fault(fault, node) for fault in error.errors(include_url=False))
        line, first = faults[0]
        others = "".join(f"; line {number}: {text}" for number, text in faults[1:])
        raise TargetError(f"{file}:{line}", f"{first}{others}") from error


def manifest_in(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it has none.

    Raises:
        TargetError: as `read_manifest`.
    """
    file = folder / MANIFEST
    return read_manifest(file) if file.is_file() else None


def place_in(file: Path, key: str) -> str:
    """Return the file and line of a key of a manifest, for an error about its value."""
    return f"{file}:{_line_of(_document(file)[1], (key,))}"


def _document(file: Path) -> tuple[Any, yaml.Node | None]:
    """Return the content of a YAML file, and the tree with its line numbers."""
    try:
        loader = yaml.SafeLoader(file.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise TargetError(f"{file}:{line + 1}", f"is not valid YAML: {said}") from error
    except (OSError, yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, bytes not UTF-8
        raise TargetError(str(file), f"cannot be read: {error}") from error


def _refuse_other_version(file: Path, document: dict[Any, Any], node: yaml.Node | None) -> None:
    missing = object()
    version = document.get("schema_version", missing)
    if version is missing:
        raise TargetError(f"{file}:1", f"schema_version is missing; add the line schema_version: {SCHEMA_VERSION}")
    if type(version) is int and version > SCHEMA_VERSION:
        line = _line_of(node, ("schema_version",))
        raise TargetError(
            f"{file}:{line}",
            f"schema_version is {version}, and this mcpenv reads up to {SCHEMA_VERSION}; install a later mcpenv",
        )


def _fault(fault: Any, node: yaml.Node | None) -> tuple[int, str]:
    """Return the line and the text of one error from pydantic."""
    place = tuple(part for part in fault["loc"] if part != "[key]")
    where = ".".join(str(part) for part in place)
    line = _line_of(node, place)
    if fault["type"] == "extra_forbidden":
        known = list(_PARTS[place[:-1]].model_fields)
        return line, f"unknown key {where!r}" + (meant(str(place[-1]), known) or f"; known are {', '.join(known)}")
    if fault["type"] == "missing":
        return line, f"the key {where!r} is missing"
    message = plain_faults([fault])[0]["msg"]
    if fault["type"] == "string_type" and not isinstance(fault["input"], dict | list | None):
        message = f"{message}, and {fault['input']} is none; put it in quotes"
    return line, f"{place_of(place)}: {message}"


def _line_of(node: yaml.Node | None, place: Sequence[str | int]) -> int:
    """Return the line of a place, or of the innermost part of it that the file has."""
    line = 0
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return int(line) + 1


def _repeated(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield line and key of each key that is repeated in its mapping. YAML's loader would keep the last one."""
    waiting, seen = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:  # an alias of an enclosing part would recurse without end
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        yield key.start_mark.line + 1, key.value
                    keys.add(key.value)
                waiting.append(value)
