"""Read an OpenAPI document: one file or several, without the operations that are not wanted or cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx2
import yaml  # type: ignore[import-untyped]

from mcpenv.errors import ConfigurationError

READ_TIMEOUT_S = 30.0
"""The timeout of reading a document from a URL, in seconds."""

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
"""The keys of a path that are operations."""


def is_url(place: str) -> bool:
    """Return True if a document's place is an address of HTTP."""
    return place.startswith(("http://", "https://"))


def media_type(kind: str) -> str:
    """Return a media type without its parameters, in small letters."""
    return kind.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return True for a media type of JSON."""
    return media_type(kind) == "application/json" or media_type(kind).endswith("+json")


def read(place: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return a document with the content of the other files that it refers to.

    Raises:
        ConfigurationError: it cannot be read, is no OpenAPI document of version 3, refers to a file elsewhere, or has
            something else where an object must be.
    """
    files = _Files(place, headers)
    document = files.content(files.first)
    if not isinstance(document, dict) or "paths" not in document:
        raise ConfigurationError("this is no OpenAPI document: it has no paths")
    if not str(document.get("openapi", "")).startswith("3."):
        raise ConfigurationError(
            f"OpenAPI {document.get('openapi') or document.get('swagger')} is not supported, only 3"
        )
    return files.joined(document)


def _shaped(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose version is complete, and with objects where others read objects.

    Raises:
        ConfigurationError: a place has something else, and what is meant is not plain.
    """
    version = str(document["openapi"])
    info = _object(document.get("info"), "info")
    components = _object(document.get("components"), "components")
    servers = document.get("servers") or []
    servers = [{"url": each} if isinstance(each, str) else each for each in _listed(servers)]
    if not all(isinstance(each, dict) and isinstance(each.get("url"), str) for each in servers):
        raise ConfigurationError("servers is not a list of objects with a url")
    paths = _object(document.get("paths"), "paths")
    return {
        **document,
        "openapi": f"{version}.0" if version.count(".") == 1 else version,
        "info": {**info, "title": str(info.get("title") or "openapi"), "version": str(info.get("version") or "0")},
        "servers": servers,
        "paths": {path: item for path, item in paths.items() if item is not None and not path.startswith("x-")},
        "components": {
            kind: each if kind.startswith("x-") else _object(each, f"components.{kind}")
            for kind, each in components.items()
        },
    }


def _object(value: Any, place: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{place} is not an object")
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def chosen(document: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """Return a document with the wanted operations only.

    Args:
        wanted: operations by operationId, by tag, or as ``GET /path``.

    Raises:
        ConfigurationError: one of them names no operation.
    """
    found: set[str] = set()
    paths: dict[str, Any] = {}
    for path, item in document["paths"].items():
        if not isinstance(item, dict):
            continue
        kept = dict(item)
        for method in METHODS:
            if method in item:
                operation = item[method] if isinstance(item[method], dict) else {}
                names = {f"{method.upper()} {path}"}
                for name in (operation.get("operationId"), *_listed(operation.get("tags"))):
                    if isinstance(name, str):
                        names.add(name)
                found |= (hit := names & set(wanted))
                if not hit:
                    del kept[method]
        if kept.keys() & set(METHODS):
            paths[path] = kept
    if unknown := [name for name in wanted if name not in found]:
        raise ConfigurationError(
            f"no operation has the operationId or tag {', '.join(map(repr, unknown))}, or is that method and path"
        )
    return {**document, "paths": paths}


def without(document: Mapping[str, Any], faults: Collection[tuple[Any, ...]]) -> tuple[dict[str, Any], list[str]]:
    """Return a document without the operations that have faults, and the names of what was left out.

    A shared schema with a fault becomes one that takes any value. Another component with a fault is left out with the
    operations that refer to it, and so is a field beside the operations.

    Args:
        faults: the places of the faults, as keys from the document's root.
    """
    out: list[str] = []
    paths = {path: dict(item) if isinstance(item, dict) else item for path, item in document["paths"].items()}
    components = {kind: dict(each) if isinstance(each, dict) else each for kind, each in document["components"].items()}
    info = dict(document["info"])
    others = {key: each for key, each in document.items() if key not in ("openapi", "info", "paths", "components")}
    gone: set[str] = set()

    def leave_out(where: dict[str, Any], key: Any, name: str) -> bool:
        if key not in where:
            return False
        del where[key]
        out.append(name)
        return True

    for place in faults:
        match place:
            case ("paths", path, method, *_) if method in METHODS:
                leave_out(paths.get(path, {}), method, f"{method.upper()} {path}")
            case ("paths", path, *_):
                leave_out(paths, path, path)
            case ("components", "schemas", name, *_):
                if components["schemas"].get(name) != {}:
                    components["schemas"][name] = {}
                    out.append(f"the schema {name}")
            case ("components", kind, name, *_):
                if leave_out(components[kind], name, f"components.{kind}.{name}"):
                    gone.add(f"#/components/{kind}/{name}")
            case ("info", key, *_):
                leave_out(info, key, f"info.{key}")
            case (key, *_):
                leave_out(others, key, key)
    names = [
        (kind, name)
        for kind, each in components.items()
        if kind != "schemas" and not kind.startswith("x-")
        for name in each
    ]
    size = -1
    while size != len(gone):  # a component may refer to one that refers to one that is gone
        size = len(gone)
        for kind, name in names:
            if _refers(components[kind].get(name), gone) and leave_out(
                components[kind], name, f"components.{kind}.{name}"
            ):
                gone.add(f"#/components/{kind}/{name}")
    for path, item in [(path, item) for path, item in paths.items() if isinstance(item, dict)]:
        if _refers({key: each for key, each in item.items() if key not in METHODS}, gone):
            leave_out(paths, path, path)
        for method in [key for key in METHODS if _refers(item.get(key), gone)]:
            leave_out(item, method, f"{method.upper()} {path}")
    left = {path: item for path, item in paths.items() if not isinstance(item, dict) or item.keys() & set(METHODS)}
    return {**others, "openapi": document["openapi"], "info": info, "paths": left, "components": components}, out


def _refers(value: Any, gone: Collection[str]) -> bool:
    """Return True if a value has a reference to one of some places, or into it."""
    if not gone or not isinstance(value, dict | list):
        return False
    if isinstance(value, list):
        return any(_refers(each, gone) for each in value)
    reference = value.get("$ref")
    if isinstance(reference, str):
        place = unquote(reference).replace("~1", "/").replace("~0", "~")
        if any(place == each or place.startswith(f"{each}/") for each in gone):
            return True
    return any(_refers(each, gone) for each in value.values())


def bodies_without_form(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the places of the operations whose bodies cannot be sent.

    Of the media types of a body, the first that can be sent becomes the first.
    """
    found: list[tuple[str, ...]] = []
    for path, item in document["paths"].items():
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            body = _followed(document, operation.get("requestBody")) if isinstance(operation, dict) else {}
            content = body.get("content")
            if not isinstance(content, dict) or not content:
                continue
            usable = {
                kind: each
                for kind, each in content.items()
                if has_form(kind, _followed(document, each.get("schema")) if isinstance(each, dict) else {})
            }
            if usable:
                body["content"] = {**usable, **content}
            else:
                found.append(("paths", path, method))
    return found


_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded", "*/*", "application/*")


def has_form(kind: str, schema: Mapping[str, Any]) -> bool:
    """Return True if a body of a media type can be sent: JSON, a form, or a text by its schema."""
    types = schema.get("type")
    composed = schema.keys() & {"properties", "additionalProperties", "items", "allOf", "anyOf", "oneOf"}
    is_text = not composed and not {"object", "array"} & set(_listed(types))
    return is_text or is_json(kind) or media_type(kind) in _FORMS


def json_parameters(document: Mapping[str, Any], path: str, method: str) -> set[tuple[str, str]]:
    """Return place and name of the parameters of an operation whose ``content`` is JSON."""
    item = document["paths"][path]
    given = [
        _followed(document, each) for each in (*(item[method].get("parameters") or ()), *(item.get("parameters") or ()))
    ]
    return {(each["in"], each["name"]) for each in given if is_json(next(iter(each.get("content") or ()), ""))}


def _followed(document: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return an object of a document, or the one that it refers to in the same document, or nothing."""
    followed: set[str] = set()
    while isinstance(value, dict) and isinstance(reference := value.get("$ref"), str) and reference not in followed:
        followed.add(reference)
        try:
            value = _pointed(document, reference.removeprefix("#"))
        except LookupError:
            return {}
    return value if isinstance(value, dict) else {}


def _pointed(content: Any, pointer: str) -> Any:
    """Return what a JSON pointer leads to.

    Raises:
        LookupError: it leads nowhere.
    """
    for part in filter(None, pointer.split("/")):
        step = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            content = content[int(step) if isinstance(content, list) else step]
        except (LookupError, TypeError, ValueError) as error:
            raise LookupError(pointer) from error
    return content


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Reads YAML as OpenAPI means it: the core schema of YAML 1.2 in place of 1.1, and names as text.

    A status without quotes (``200:``) is a name, a date is text, and so are ``on``, ``off``, ``yes``, ``no`` and ``=``.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, form) for tag, form in each if tag.rpartition(":")[2] not in ("bool", "timestamp", "value")]
        for first, each in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """Return an object, with the text of each scalar key as its name."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        made: dict[str, Any] = super().construct_mapping(node, deep)
        return made


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _answered(url: str, headers: Mapping[str, str]) -> str:
    """Return the text at an address. A redirect to another origin is followed without the operator's headers."""
    with httpx2.Client(timeout=READ_TIMEOUT_S) as http:
        answer = http.get(url, headers=headers)
        for _ in range(http.max_redirects):
            if (request := answer.next_request) is None:
                break
            if (request.url.scheme, request.url.netloc) != (answer.url.scheme, answer.url.netloc):
                request = http.build_request("GET", request.url)
            answer = http.send(request)
        answer.raise_for_status()
        return answer.text


class _Files:
    """The files of a document: the first one, and those beside it or below its folder that it refers to."""

    def __init__(self, place: str, headers: Mapping[str, str]) -> None:
        self.first = place if is_url(place) else str(Path(place).expanduser().resolve())
        self._headers = dict(headers)
        self._contents: dict[str, Any] = {}
        self._shared: dict[tuple[str, str], str] = {}
        self._schemas: dict[str, Any] = {}
        self._taken: set[str] = set()

    def content(self, place: str) -> Any:
        """Return the content of a file, which is read once."""
        if place not in self._contents:
            try:
                text = _answered(place, self._headers) if is_url(place) else Path(place).read_text(encoding="utf-8")
                text = text.lstrip("\ufeff \t\r\n")
                self._contents[place] = json.loads(text) if text.startswith("{") else yaml.load(text, _Loader)
            except (OSError, httpx2.HTTPError, ValueError, yaml.YAMLError) as error:
                name = "document" if place == self.first else f"document's file {place}"
                raise ConfigurationError(f"the {name} cannot be read: {error}") from error
        return self._contents[place]

    def joined(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a document in which references to other files are replaced by what they refer to."""
        components = document.get("components")
        shared = components.get("schemas") if isinstance(components, dict) else None
        self._taken = set(shared) if isinstance(shared, dict) else set()
        try:
            whole: dict[str, Any] = self._resolved(document, self.first)
        except RecursionError as error:
            raise ConfigurationError("the document's files refer to each other without an end") from error
        whole = _shaped(whole)
        whole["components"]["schemas"] = {**whole["components"].get("schemas", {}), **self._schemas}
        return whole

    def _resolved(self, value: Any, place: str, kind: Literal["schema", "schemas"] | None = None) -> Any:
        """Return a value with the content of other files. ``kind`` says that it is a schema, or schemas by name."""
        of_schemas: Literal["schema"] | None = "schema" if kind else None
        if isinstance(value, list):
            return [self._resolved(item, place, of_schemas) for item in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if not isinstance(reference, str):
            named: dict[str, Literal["schema", "schemas"]] = {"schema": "schema", "schemas": "schemas"}
            return {key: self._resolved(item, place, of_schemas or named.get(key)) for key, item in value.items()}
        file, pointer = urldefrag(reference)
        target = self._beside(place, file) if file else place
        if target == self.first:
            return {**value, "$ref": f"#{pointer}"}
        if kind != "schema":
            return self._resolved(self._found(target, pointer), target, kind)
        key = target, pointer
        if key not in self._shared:
            # A schema may contain itself, and many operations may use it.
            stem = Path(pointer or target).stem
            name = next(name for n in count(1) if (name := f"{stem}_{n}") not in self._taken)
            self._taken.add(name)
            self._shared[key] = name
            self._schemas[name] = self._resolved(self._found(target, pointer), target, "schema")
        return {"$ref": f"#/components/schemas/{self._shared[key]}"}

    def _found(self, place: str, pointer: str) -> Any:
        try:
            return _pointed(self.content(place), pointer)
        except LookupError as error:
            raise ConfigurationError(f"the document refers to #{pointer} of {place}, which is not there") from error

    def _beside(self, place: str, file: str) -> str:
        """Return the place of a file that a document refers to.

        Raises:
            ConfigurationError: it is not of the same server, or not below the document's folder.
        """
        if is_url(self.first):
            target = urljoin(place, file)
            if urlsplit(target)[:2] == urlsplit(self.first)[:2]:
                return target
        elif not is_url(file):
            path = (Path(place).parent / unquote(file)).resolve()
            if path.is_relative_to(Path(self.first).parent):
                return str(path)
        raise ConfigurationError(f"the document refers to {file}, which is not beside it")
