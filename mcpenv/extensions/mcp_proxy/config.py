"""The configuration of a proxied environment: the ``mcpServers`` format of MCP hosts, with keys of mcpenv.

An unknown key is an error, so that no setting is ignored silently. `host_files` has the keys of hosts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.long_outputs import MIN_CHARACTERS, LongOutputs
from mcpenv.redaction import name_secret
from mcpenv.tools.settings import ToolSettings, unknown_key
from mcpenv_client.wire.faults import place_of, plain_faults

from .host_files import WORKSPACE, Variables, from_host, parse, servers_key


class StateOf(StrEnum):
    """The place where a server keeps its state.

    It determines the work of a reset and the calls that may be repeated.
    """

    NONE = "none"
    """Nowhere: the server only computes, or only reads constant data."""
    WORKSPACE = "workspace"
    """In the files of the episode's folder, and nowhere else."""
    PROCESS = "process"
    """In the process, and possibly in files. It ends with the process."""
    SESSION = "session"
    """In the MCP session of an HTTP server. It ends with the session."""
    EXTERNAL = "external"
    """In a service that all episodes share. A reset does not reset it."""


class ProxiedToolSettings(ToolSettings):
    """The settings of one proxied tool.

    Attributes:
        idempotent: True if the tool may be called again when the outcome of a call is unknown.
    """

    idempotent: bool = False


class ServerSettings(BaseModel):
    """The settings of one server: a command or a URL, and how an environment uses it.

    Attributes:
        command: the program, with ``args``. ``{workspace}`` in either stands for the episode's folder.
        env: variables for the process. Few others are passed on; ``${NAME}`` stands for a variable of this process.
        cwd: the working directory; by default the workspace, if there is one.
        url: the address of a server over streamable HTTP, instead of a command.
        headers: HTTP headers; ``${NAME}`` stands for a variable of this process.
        state: where the server keeps its state. The default is "process" for a command, "session" for a URL.
        per_episode: "start" a process or session for each episode, "keep" it and restore the workspace, or "fork" a
            Python server from a process that has imported it. The default is "keep" for a server without state, and
            for one with external state; otherwise "start".
        max_reuses: maximum times that a kept process or session is reused before it is replaced; None for no limit.
        isolation: "bubblewrap" to run the process in a sandbox, or "none". With "auto" a server is isolated if it uses
            the workspace, its state is not external, it is not forked, and bubblewrap works on this machine.
        network: True if an isolated process may use the network.
        required: False to continue without the tools of a server that does not start.
        tools: settings by the server's own tool names.
        start_timeout_s: maximum seconds from the start until the tools are listed.
        call_timeout_s: maximum seconds of a call.
    """

    model_config = ConfigDict(extra="forbid")

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    disabled: Literal[False] = False
    state: StateOf | None = None
    per_episode: Literal["start", "keep", "fork"] | None = None
    max_reuses: Annotated[int, Field(gt=0)] | None = None
    isolation: Literal["auto", "bubblewrap", "none"] = "auto"
    network: bool = False
    required: bool = True
    tools: dict[str, ProxiedToolSettings] = Field(default_factory=dict)
    start_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    call_timeout_s: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _one_address(self) -> ServerSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a command or a url")
        if self.url is not None and (self.args or self.env or self.cwd is not None):
            raise ValueError("args, env and cwd are for a command, and this server has a url")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url, and this server has a command")
        if self.state is StateOf.SESSION and self.command is not None:
            raise ValueError('state "session" is for a url; use "process"')
        if self.state in (StateOf.PROCESS, StateOf.WORKSPACE) and self.url is not None:
            raise ValueError(f'state "{self.state.value}" is for a command; use "session", "external" or "none"')
        if self.per_episode == "keep" and self.where in (StateOf.PROCESS, StateOf.SESSION):
            raise ValueError(
                f'per_episode "keep" would keep the state of the episode before: state is "{self.where.value}"'
            )
        return self

    @model_validator(mode="after")
    def _way_to_start(self) -> ServerSettings:
        if self.url is not None and self.per_episode == "fork":
            raise ValueError('per_episode "fork" is for a command, and this server has a url')
        if self.url is not None and (self.isolation == "bubblewrap" or self.network):
            raise ValueError("isolation and network are for a command, and this server has a url")
        if self.per_episode == "fork" and self.isolation == "bubblewrap":
            raise ValueError('per_episode "fork" cannot be isolated; use isolation "none", or per_episode "start"')
        if self.network and self.isolation == "none":
            raise ValueError('network is for an isolated process, and isolation is "none"')
        if self.max_reuses is not None and not self.kept:
            raise ValueError('max_reuses is for a server that is kept; use per_episode "keep"')
        return self

    @property
    def where(self) -> StateOf:
        """The place of the state."""
        return self.state or (StateOf.PROCESS if self.command is not None else StateOf.SESSION)

    @property
    def kept(self) -> bool:
        """True if the process or session survives a reset."""
        if self.per_episode is None:
            return self.where in (StateOf.NONE, StateOf.EXTERNAL)
        return self.per_episode == "keep"

    @property
    def isolated_by_default(self) -> bool:
        """True if isolation "auto" isolates the server on a machine that supports it."""
        apart = self.where in (StateOf.WORKSPACE, StateOf.PROCESS) and self.uses_workspace
        return apart and self.per_episode != "fork"

    @property
    def uses_workspace(self) -> bool:
        """True if the command or a bound value names the episode's folder."""
        values = [self.args, list(self.env.values()), self.cwd, [tool.arguments for tool in self.tools.values()]]
        return self.where is StateOf.WORKSPACE or WORKSPACE in json.dumps(values)


class OpeningCall(BaseModel):
    """A call that the environment makes itself after each reset.

    Attributes:
        tool: the tool's name on its server.
        server: the server; optional if there is only one.
        arguments: its arguments. ``{workspace}`` in texts stands for the episode's folder.
    """

    model_config = ConfigDict(extra="forbid")

    tool: str
    server: str | None = None
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class SecretPattern(BaseModel):
    """A rule that detects secrets.

    Attributes:
        pattern: a regular expression.
    """

    model_config = ConfigDict(extra="forbid")

    pattern: Annotated[str, Field(min_length=1)]

    def compiled(self) -> re.Pattern[str]:
        """Return the compiled pattern.

        Raises:
            ValueError: it is not a regular expression, or it matches the empty text.
        """
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}") from error
        if pattern.search(""):
            raise ValueError(f"{self.pattern!r} fits an empty text")
        return pattern


class ProxySettings(BaseModel):
    """The key ``mcpenv`` of a configuration: the settings of the whole environment.

    Attributes:
        name: the environment's name for clients.
        description: its description, for agents too.
        namespace: "clash" to prefix the names of tools that several servers have with the server's name; "always" to
            prefix every name.
        workspace: the folder that is copied for each episode. None: an empty folder, if a server needs one.
        world: "workspace" if tasks are verified by the files of the workspace, as those of a `FilesWorld`.
        workspaces: "copy", or "overlay" for Linux's overlayfs, which needs root. "auto" prefers an overlay for a folder
            of many files, if the system supports it.
        max_steps: steps after which an episode is truncated.
        max_output_characters: maximum characters of a result; a longer one is cut and stored, with tools to search and
            page it. None: results are passed on unchanged.
        kept_output_bytes: maximum bytes of long results that an episode stores.
        redact: secrets that are kept out of records, by the names of their rules.
        on_reset: calls after each reset. The result of the last call provides the content of the reset's observation.
        durability: "rerun" to continue a durable episode by making its calls again, "restart" not to continue it. None:
            "restart" if a server has the state "external", whose world has the calls already, else "rerun".
    """

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    description: str | None = None
    namespace: Literal["clash", "always"] = "clash"
    workspace: Path | None = None
    world: Literal["workspace"] | None = None
    workspaces: Literal["auto", "copy", "overlay"] = "auto"
    max_steps: Annotated[int, Field(gt=0)] | None = None
    redact: dict[str, str | SecretPattern] = Field(default_factory=dict)
    max_output_characters: Annotated[int, Field(ge=MIN_CHARACTERS)] | None = None
    kept_output_bytes: Annotated[int, Field(gt=0)] | None = None
    on_reset: list[OpeningCall] = Field(default_factory=list)
    durability: Literal["rerun", "restart"] | None = None

    @field_validator("redact")
    @classmethod
    def _known(cls, rules: dict[str, str | SecretPattern]) -> dict[str, str | SecretPattern]:
        for name, rule in rules.items():
            name_secret(name, Variables().fill(rule) if isinstance(rule, str) else rule.compiled())
        return rules

    @property
    def long_outputs(self) -> LongOutputs | None:
        """The settings for long results."""
        if self.max_output_characters is None:
            return None
        if self.kept_output_bytes is None:
            return LongOutputs(self.max_output_characters)
        return LongOutputs(self.max_output_characters, self.kept_output_bytes)

    @model_validator(mode="after")
    def _keeps_only_what_it_cuts(self) -> ProxySettings:
        if self.kept_output_bytes is not None and self.max_output_characters is None:
            raise ValueError("kept_output_bytes has a meaning only with max_output_characters, and that is not set")
        return self


class ProxyConfig(BaseModel):
    """A whole configuration.

    Attributes:
        servers: settings by server name, in order.
        environment: the settings of the environment.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    servers: dict[str, ServerSettings] = Field(alias="mcpServers", min_length=1)
    environment: ProxySettings = Field(alias="mcpenv", default_factory=ProxySettings)

    @model_validator(mode="after")
    def _has_its_world(self) -> ProxyConfig:
        if self.environment.world is not None and not any(server.uses_workspace for server in self.servers.values()):
            raise ValueError(f"mcpenv.world names a workspace, and no server uses one: write {WORKSPACE} in its args")
        return self


def read_config(source: Mapping[str, Any] | str | Path, changes: Mapping[str, str] | None = None) -> ProxyConfig:
    """Return the configuration of a dictionary or of a JSON file. A relative workspace is relative to the file.

    Args:
        source: the dictionary, or the path of the file.
        changes: settings of the environment by name, as text; they override the settings in the source. A relative
            workspace among them is relative to the working directory.

    Raises:
        ConfigurationError: it cannot be read, or is invalid.
    """
    name, file = "the configuration", None
    if isinstance(source, str | Path):
        name, file = str(source), Path(os.path.abspath(source))
        try:
            source = parse(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{name}: {error}") from error
    if not isinstance(source, Mapping):
        raise ConfigurationError(f"{name}: an object with mcpServers is needed")
    own = source.get("mcpenv", {})
    if isinstance(own, Mapping):
        own = {**own, **(changes or {})}
        if isinstance(own.get("workspace"), str | Path):
            root = Path.cwd() if file is None or "workspace" in (changes or {}) else file.parent
            own["workspace"] = root / os.path.expanduser(own["workspace"])
    key = servers_key(source)
    template = own.get("workspace") if isinstance(own, Mapping) else None
    try:
        source = from_host({**source, "mcpenv": own}, file, template if isinstance(template, Path) else None)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: it is nested too deeply") from error
    try:
        config = ProxyConfig.model_validate(source)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # An unknown key is often the reason for a missing one.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        where = place_of([key if part == "mcpServers" else part for part in first["loc"]]) or "it"
        if first["type"] == "extra_forbidden":
            raise ConfigurationError(f"{name}: {where}: {_unknown_key(first['loc'])}") from error
        raise ConfigurationError(f"{name}: {where}: {plain_faults([first])[0]['msg']}") from error
    template = config.environment.workspace
    if template is not None and not template.is_dir():
        raise ConfigurationError(f"{name}: mcpenv.workspace: there is no folder {template}")
    return config


def _unknown_key(location: tuple[int | str, ...]) -> str:
    """Return the message for an unknown key: the key that was probably meant, or all keys."""
    match location:
        case ("mcpenv", _):
            known = list(ProxySettings.model_fields)
        case (_, _, "tools", _, _):
            known = list(ProxiedToolSettings.model_fields)
        case _:
            known = ["type", *ServerSettings.model_fields]
    return unknown_key(str(location[-1]), known)
