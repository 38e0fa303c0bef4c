"""Files of MCP hosts: Claude Desktop and Code, VS Code, Cursor, Cline, Roo, Gemini and Windsurf.

A file is read as its host reads it: with comments and trailing commas, and with variables filled in. Each key of a
host has no effect here, has the same meaning as a key of mcpenv, or is refused with the key to write instead.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcpenv.errors import ConfigurationError, meant

WORKSPACE = "{workspace}"
"""The text that stands for the folder of the episode in arguments, variables and bound values."""

WITHOUT_EFFECT = frozenset(
    {
        *("alwaysAllow", "alwaysLoad", "autoApprove", "remoteConfigured", "trust", "dev", "watchPaths"),
        *("name", "displayName", "title", "description", "icon", "icons", "category", "tags", "gallery", "metadata"),
        *("author", "version", "license", "homepage", "documentation", "comment", "_comment", "note", "notes"),
    }
)
"""Keys of a server's entry that say how a host shows it, updates it or asks its user."""

_TOP_WITHOUT_EFFECT = frozenset({"$schema", "inputs", "mcp", "preferences", "globalShortcut", "scale", "locale"})

_HIDE = 'name each tool that agents must not see instead: "tools": {"NAME": {"hidden": true}}'
_CHOOSE = 'hide the other tools by name instead: "tools": {"NAME": {"hidden": true}}'
_NO_LOGIN = 'mcpenv does not sign in; put a token into headers: {"Authorization": "Bearer ${TOKEN}"}'
_INSTEAD = {
    **dict.fromkeys(("baseUrl", "endpoint", "uri"), "write 'url' instead"),
    **dict.fromkeys(("environment", "envVars", "environmentVariables"), "write 'env' instead"),
    **dict.fromkeys(("workingDirectory", "working_directory", "workdir"), "write 'cwd' instead"),
    **dict.fromkeys(("requestInit", "http_headers", "requestHeaders"), "write 'headers' instead"),
    **dict.fromkeys(("disabledTools", "excludeTools", "excludedTools", "disabled_tools", "blockedTools"), _HIDE),
    **dict.fromkeys(("includeTools", "enabledTools", "enabled_tools", "allowedTools", "toolsets"), _CHOOSE),
    **dict.fromkeys(("oauth", "auth", "authorization", "authProviderType", "authorization_token"), _NO_LOGIN),
    **dict.fromkeys(("targetAudience", "targetServiceAccount"), _NO_LOGIN),
    **dict.fromkeys(("startupTimeout", "initTimeout", "startup_timeout_sec"), "write 'start_timeout_s' in seconds"),
    **dict.fromkeys(("toolTimeout", "tool_timeout_sec", "requestTimeout"), "write 'call_timeout_s' in seconds"),
    **dict.fromkeys(("sandbox", "sandboxEnabled"), 'write "isolation": "bubblewrap" and, if needed, "network": true'),
    "envFile": "envFile is not read; put its variables into env, for example as ${NAME}",
    "headersHelper": "no program is run for headers; put them into headers, for example as ${NAME}",
    "bearer_token_env_var": 'write "headers": {"Authorization": "Bearer ${NAME}"} instead',
    "tcp": "WebSocket is not supported; write the server's address for streamable HTTP as 'url' instead",
    "roots": f"servers get no roots; name the folder in args, as {WORKSPACE}",
}
"""The advice for keys of hosts that mean something here, by key."""

_NOTHING_IF_EMPTY = frozenset({key for key, advice in _INSTEAD.items() if advice == _HIDE} | {"roots"})
"""Keys of which an empty list has no effect. An empty list of the tools to choose would hide all."""

_TRANSPORTS = {
    **dict.fromkeys(("stdio", "local"), "command"),
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http", "remote"), "url"),
}
"""The key of a server's address, by the names that hosts have for its transport."""

_ADDRESSES = ("httpUrl", "serverUrl")
"""The keys of Gemini and Windsurf for the address of a server over streamable HTTP. They override ``url``, as there."""

_OF_PROJECTS = frozenset(
    {".vscode", ".cursor", ".roo", ".gemini", ".windsurf", ".kiro", ".amazonq", ".junie", ".claude-plugin"}
)
"""Folders of hosts in a project. The paths of a file in one of them are relative to the project."""

_ROOTS = frozenset(
    {"CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR", "CURSOR_PLUGIN_ROOT", "PLUGIN_ROOT", "extensionPath", "__dirname"}
)
"""Variables of hosts for the folder of a project, a plugin or an extension, in which its file is."""

_LONGEST_IN_SECONDS = 3600
"""The longest ``timeout`` of Roo and Cline, which is in seconds. In Gemini and Claude Code it is in milliseconds."""

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])')
_DOLLARS = re.compile(r"(?P<dollars>\$+)(?:(?P<brace>\{)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))")
_BRACE = re.compile(r"[{}]")
_NAMED = re.compile(r"(?:env:)?(?P<name>\w+)(?::-(?P<default>.*))?", re.DOTALL)
_FILLED_IN = ("command", "args", "env", "cwd", "url", "headers")
_FOR_A_SHELL = ("command", "args", "cwd")
"""Keys in which ``$NAME`` may stay: in the arguments of a shell it is the shell's, and no program or folder has it."""


def parse(text: str) -> Any:
    """Return the value of JSON with comments and trailing commas. Positions in errors are those of the text.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a key twice in one object.
    """
    plain = _COMMENT.sub(_blank, text.removeprefix("\ufeff"))
    try:
        return json.loads(_COMMA.sub(_blank, plain), object_pairs_hook=_by_name)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raise `ValueError` for a name that it has twice, of which hosts take one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{name!r} is there twice; keep one of them")
    return found


def _blank(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])


def is_address(url: str) -> bool:
    """Return True if a text is a URL over HTTP with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a wrong port, or a wrong IPv6 address
        return False


def from_host(source: Mapping[str, Any], file: Path | None, template: Path | None) -> dict[str, Any]:
    """Return a configuration in the keys of mcpenv, with ``mcpServers`` and ``mcpenv`` only.

    Servers that are disabled are left out, whatever their entries have.

    Args:
        source: the file's content, or a dictionary of a program.
        file: the absolute path of the file, from which its relative paths are found; None to leave them as they are.
        template: the folder that is copied for each episode, or None.

    Raises:
        ConfigurationError: with the key, and what to write instead.
    """
    folder = None if file is None else file.parent
    source = dict(source)
    settings = source.pop("mcpenv", {})
    nested = source.get("mcp") if isinstance(source.get("mcp"), Mapping) else {}
    assert isinstance(nested, Mapping)
    inputs = source.get("inputs", nested.get("inputs", []))
    if not isinstance(inputs, list) or not all(isinstance(each, Mapping) and "id" in each for each in inputs):
        raise ConfigurationError("inputs: a list is needed, of objects with an id")
    places = _places_of_servers(source)
    if not nested and source and all(map(_is_entry, source.values())):  # a plugin's file may have servers only
        places, source = {"mcpServers": source}, {}
    if len(places) > 1:
        raise ConfigurationError(f"{' and '.join(places)}: put all servers into one of them")
    _check_top({name: value for name, value in source.items() if name not in places}, found=bool(places))
    ((key, servers),) = places.items()
    if isinstance(servers, list) and all(isinstance(each, Mapping) and "name" in each for each in servers):
        servers = _listed(key, servers, "name")
    if not isinstance(servers, Mapping):
        raise ConfigurationError(f"{key}: an object is needed, with a server for each name")
    chosen = {*_names(nested, "allowed", servers)}.difference(_names(nested, "excluded", ()))  # Gemini's settings
    project = folder.parent if folder is not None and folder.name in _OF_PROJECTS else folder
    values = Variables(_listed("inputs", inputs, "id"), project)
    paths = None if folder is None or project is None else _Paths(folder, project, template)
    by_name = file is not None and (file.parent.name == ".gemini" or file.name == "gemini-extension.json")
    kept = {}
    for name in filter(chosen.__contains__, servers):
        entry = servers[name]
        if isinstance(entry, Mapping):
            try:
                if _is_disabled(entry):
                    continue
                entry = _Entry(entry, values, paths, by_name=by_name).translated()
            except _Refused as refused:
                raise ConfigurationError(f"{key}.{name}.{refused.key}: {refused}") from refused
        kept[name] = entry
    if servers and not kept:
        raise ConfigurationError("every server is disabled")
    return {"mcpServers": kept, "mcpenv": settings}


def servers_key(source: Mapping[str, Any]) -> str:
    """Return the key under which a file has its servers, for messages: VS Code's files have others."""
    return next(iter(_places_of_servers(source)), "mcpServers")


def _places_of_servers(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file has under each key for servers: those of VS Code's mcp.json and settings are others."""
    places = {key: source[key] for key in ("mcpServers", "servers") if key in source}
    nested = source.get("mcp")
    if isinstance(nested, Mapping) and "servers" in nested:
        places["mcp.servers"] = nested["servers"]
    return places


def _listed(key: str, entries: Iterable[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the entries of a list by their names."""
    try:
        return _by_name([(str(each[name]), each) for each in entries])
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}") from error


def _names(nested: Mapping[str, Any], key: str, default: Iterable[str]) -> Iterable[str]:
    """Return the names of servers under a key of ``mcp``."""
    names: Iterable[str] = nested.get(key, default)
    if key in nested and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise ConfigurationError(f"mcp.{key}: a list of the names of servers is needed")
    return names


def _is_entry(value: Any) -> bool:
    return isinstance(value, Mapping) and any(
        isinstance(value.get(key), str) for key in ("command", "url", *_ADDRESSES)
    )


class _Refused(ValueError):
    """The refusal of a key of an entry."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _check_top(others: Mapping[str, Any], *, found: bool) -> None:
    """Refuse a file without servers, and keys that are probably misspelt. Other keys are settings of the host."""
    if not found and "context_servers" in others:
        raise ConfigurationError("context_servers: write 'mcpServers' instead")
    if not found and isinstance(others.get("projects"), Mapping):
        raise ConfigurationError("projects: copy the mcpServers of one project into a file of its own")
    if not found and "name" in others and (others.get("packages") or others.get("remotes")):
        raise ConfigurationError(
            "this describes a server for a registry, and is no configuration. Give its command or address: mcp:COMMAND"
        )
    for key in others:
        if key not in _TOP_WITHOUT_EFFECT and (near := meant(key, ("mcpServers", "mcpenv"))):
            raise ConfigurationError(f"{key}: unknown key {key!r}{near}")
    if not found:
        has = ", ".join(map(str, others)) or "nothing"
        raise ConfigurationError(
            f"the file has no servers: there is no key mcpServers, and no key servers. It has {has}"
        )


def _is_disabled(entry: Mapping[str, Any]) -> bool:
    for key in ("disabled", "enabled", "isActive"):
        if not isinstance(entry.get(key, False), bool):
            raise _Refused(key, "true or false is needed")
    return entry.get("disabled", False) or not entry.get("enabled", True) or not entry.get("isActive", True)


class _Entry:
    """The entry of one server.

    Args:
        entry: as its host has it.
        values: the values of its variables.
        paths: makes its relative paths absolute; None to leave them.
        by_name: True if its host fills in ``$NAME``.
    """

    def __init__(self, entry: Mapping[str, Any], values: Variables, paths: _Paths | None, *, by_name: bool) -> None:
        self._values = values
        self._by_name = by_name or "httpUrl" in entry  # which only Gemini CLI has
        self._paths = paths
        self._address = "url"
        self._entry = {key: value for key, value in entry.items() if key not in WITHOUT_EFFECT}

    def translated(self) -> dict[str, Any]:
        """Return the entry in the keys of mcpenv."""
        entry = self._entry
        for key in ("enabled", "isActive"):
            entry.pop(key, None)
        for key in _ADDRESSES:
            if key in entry:
                entry["url"], self._address = entry.pop(key), key
        for key in [key for key in _NOTHING_IF_EMPTY if entry.get(key) == []]:
            del entry[key]
        for key in entry.keys() & _INSTEAD.keys():
            raise _Refused(key, f"unknown key {key!r}: {_INSTEAD[key]}")
        if entry.get("tools") == ["*"]:  # GitHub's coding agent
            del entry["tools"]
        if isinstance(entry.get("tools"), list):
            raise _Refused("tools", "an object of settings by name is needed, not a list. Leave it out for all tools")
        self._check_transport()
        if "timeout" in entry and "call_timeout_s" not in entry:
            given = entry.pop("timeout")
            if not isinstance(given, int | float) or isinstance(given, bool):
                raise _Refused("timeout", "a number is needed")
            entry["call_timeout_s"] = given if given <= _LONGEST_IN_SECONDS else given / 1000
        for key in _FILLED_IN:
            if key in entry:
                entry[key] = self._filled(self._address if key == "url" else key, entry[key])
        self._check_address()
        return entry if self._paths is None else self._paths.applied_to(entry)

    def _check_transport(self) -> None:
        entry = self._entry
        for key in ("type", "transport", "transportType"):
            named = entry.pop(key, None)
            if named is None:
                continue
            if not isinstance(named, str):
                raise _Refused(
                    key, "a name is needed, stdio or http; put command or url, args, env and headers beside it"
                )
            if named in ("sse", "SSE"):
                raise _Refused(key, "SSE is not supported; give the server's address for streamable HTTP")
            if named not in _TRANSPORTS:
                raise _Refused(key, f"there is no transport {named!r}; the transports are stdio and http")
            if _TRANSPORTS[named] not in entry and entry.keys() & {"command", "url"}:
                raise _Refused(key, f"the type {named!r} needs a {_TRANSPORTS[named]}, and there is none")

    def _check_address(self) -> None:
        url, command = self._entry.get("url"), self._entry.get("command")
        if isinstance(url, str) and not is_address(url):
            raise _Refused(self._address, f"{url!r} is no address of a server, such as http://localhost:3000/mcp")
        if isinstance(command, list):
            raise _Refused("command", "a text is needed, with one program; put the other words into args")

    def _filled(self, key: str, value: Any) -> Any:
        """Return a value of ``key`` with its variables filled in. Numbers become text; null leaves a name out."""
        if isinstance(value, Mapping):
            return {name: self._filled(key, each) for name, each in value.items() if each is not None}
        if isinstance(value, list):
            return [self._filled(key, each) for each in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            return value
        try:
            return self._values.fill(value, by_name=self._by_name, for_a_shell=key in _FOR_A_SHELL)
        except ValueError as error:
            raise _Refused(key, str(error)) from error


class Variables:
    """The values of variables.

    Args:
        inputs: the ``inputs`` of a file of VS Code, which it asks its user for, by their ids.
        project: the folder of the project, plugin or extension that the file is part of; None without a file.
    """

    def __init__(self, inputs: Mapping[str, Any] | None = None, project: Path | None = None) -> None:
        self._project = project
        self._inputs = inputs or {}

    def fill(self, text: str, *, by_name: bool = False, for_a_shell: bool = False) -> str:
        """Return a text with its variables filled in. ``$${NAME}`` becomes ``${NAME}``.

        Args:
            by_name: fill in ``$NAME`` too. Otherwise it is refused.
            for_a_shell: leave ``$NAME`` as it is if it is not filled in.

        Raises:
            ValueError: a variable has no value, is one that only a host has, or has no end.
        """
        parts, at = [], 0
        while found := _DOLLARS.search(text, at):
            parts.append(text[at : found.start()])
            at, name = found.end(), found["name"]
            if len(found["dollars"]) > 1:
                parts.append(found[0].replace("$", "", 1) if found["brace"] else found[0])
            elif found["brace"]:
                end = _end_of(text, at)
                parts.append(self._value(text[at:end], by_name, for_a_shell))
                at = end + 1
            elif by_name and (name in os.environ or not for_a_shell):
                parts.append(self._value(name))
            elif for_a_shell:
                parts.append(found[0])
            else:
                raise ValueError(
                    f"${name} is not filled in; write ${{{name}}}. A text that has this dollar itself goes into an "
                    "environment variable, in a url %24 is a dollar"
                )
        return "".join([*parts, text[at:]])

    def _value(self, name: str, by_name: bool = False, for_a_shell: bool = False) -> str:
        if name.startswith("input:"):
            return self._input(name.removeprefix("input:"))
        if name == "userHome":
            return str(Path.home())
        if name in ("pathSeparator", "/"):
            return os.sep
        if name.startswith("workspace"):
            raise ValueError(f"${{{name}}} is a folder that a host has open; write {WORKSPACE} or an absolute path")
        named = _NAMED.fullmatch(name)
        if named is None:
            raise ValueError(f"${{{name}}} is known to hosts only; write the value, or ${{NAME}} for a variable")
        found = os.environ.get(named["name"])
        if not found and named["name"] in _ROOTS and self._project is not None:
            return str(self._project)
        if named["default"] is not None:
            return found or self.fill(named["default"], by_name=by_name, for_a_shell=for_a_shell)
        if found is None:
            raise ValueError(f"the environment variable {named['name']} is not set")
        return found

    def _input(self, name: str) -> str:
        """Return the value of an input: the environment variable of its name, or else its default."""
        variable = re.sub(r"\W", "_", name).upper()
        asked = self._inputs.get(name, {})
        found = os.environ.get(variable, asked.get("default"))
        if found is None:
            what = f" ({asked['description']})" if asked.get("description") else ""
            raise ValueError(f"the input {name!r}{what} has no value; set the environment variable {variable}")
        return str(found)


def _end_of(text: str, start: int) -> int:
    """Return the place of the brace that closes the one before ``start``."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(
        f"{text[start - 2 : start + 30]!r} has no closing brace; write $${{ for a text that has ${{ itself"
    )


class _Paths:
    """The relative paths of a file.

    Args:
        folder: the folder of the file.
        project: the folder of its project, to which hosts take its paths as relative.
        template: the folder that is copied for each episode, or None.
    """

    def __init__(self, folder: Path, project: Path, template: Path | None) -> None:
        self._folders = (project, folder)
        self._template = template

    def applied_to(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an entry whose paths do not depend on the working directory.

        A word of the command is a path if such a file exists in the project or beside the file of the configuration,
        and none in the workspace, where the server runs.
        """
        if isinstance(entry.get("command"), str) and os.sep in entry["command"]:
            entry["command"] = self._absolute(entry["command"])
        if isinstance(entry.get("args"), list) and "cwd" not in entry:
            entry["args"] = [self._absolute(word) if isinstance(word, str) else word for word in entry["args"]]
        if isinstance(entry.get("cwd"), str) and not entry["cwd"].startswith(WORKSPACE):
            entry["cwd"] = str(self._folders[0] / os.path.expanduser(entry["cwd"]))
        return entry

    def _absolute(self, word: str) -> str:
        if (
            word.startswith("-")
            or WORKSPACE in word
            or (self._template is not None and os.path.exists(self._template / word))
        ):
            return word
        for folder in self._folders:
            path = os.path.normpath(folder / os.path.expanduser(word))
            if os.path.isfile(path) or (os.sep in word and os.path.isdir(path)):  # no error for a word that is no path
                return path
        return word
