"""The command ``mcpenv inspect``: show what an environment or a server offers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import httpx
from cyclopts import Parameter
from fastmcp import Client
from mcp import MCPError
from pydantic import BaseModel

from mcpenv.cli.instance import instance
from mcpenv.cli.output import Page, author_output, print_json, quiet_logs
from mcpenv.cli.remote import CONNECT_S, Bearer, base_url, connected, list_tools
from mcpenv.cli.tokens import AgentToken
from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.control.metadata import Description
from mcpenv.server.mcp.server_card import NAME, identity_of
from mcpenv.server.mcp.server_card import PATHS as CARD_PATHS
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.targets.place import is_url
from mcpenv.targets.target import Target, load_target
from mcpenv_client.connection.addresses import is_loopback
from mcpenv_client.formats.references import schema_at
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.tools import Mode, Tool

REGISTRY_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
"""The schema of ``server.json``, the description of a server for the MCP registry."""

_BOTH = [mode.value for mode in Mode]


def inspect(
    target: str,
    /,
    *,
    mode: Literal["simulation", "production"] | None = None,
    agent: AgentToken = AgentToken(),  # noqa: B008 - frozen
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    server_json: Annotated[str | None, Parameter(name="--server-json")] = None,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show the tools, schemas and modes of an environment, or of the MCP server at a URL.

    Args:
        target: An environment as for run, or the URL of a server, with or without /mcp.
        mode: Show one mode only. A server at a URL has its own.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document, with whole schemas.
        server_json: Print a server.json for the MCP registry instead, under this name, such as io.github.user/weather.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    token = agent.read(target)
    if is_url(target):
        if mode is not None or settings:
            raise ConfigurationError("--mode and --set are for an environment's code; a running server has its own")
        if server_json is not None:
            print_json(registry_entry(server_json, asyncio.run(_card_of(target))))
            return 0
        document = asyncio.run(_of_server(target, Bearer(token)))
    else:
        with author_output():
            loaded = load_target(target, settings or ())
            if server_json is None:
                document = _of_target(loaded, [Mode(mode)] if mode else loaded.modes)
            else:
                document = registry_entry(server_json, _identity_of(loaded))
        if server_json is not None:
            print_json(document)
            return 0
    if as_json:
        print_json(document)
    else:
        _show(Page(sys.stdout), document)
    return 0


def registry_entry(name: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``server.json`` of a server.

    Args:
        name: the name in the registry (``io.github.user/weather``), whose namespace the publisher must own.
        described: the server's card, or its `identity_of`.

    Raises:
        ConfigurationError: the name is none for the registry.
    """
    if not NAME.fullmatch(name) or not 3 <= len(name) <= 200:
        raise ConfigurationError(f"--server-json {name}: a name for the registry is like io.github.user/weather")
    entry = {**described, "$schema": REGISTRY_SCHEMA, "name": name}
    # The registry takes icons at https URLs only, and knows no protocol versions.
    icons = [icon for icon in entry.pop("icons", ()) if icon["src"].startswith("https://")]
    if icons:
        entry["icons"] = icons
    remotes = [
        {key: value for key, value in remote.items() if key != "supportedProtocolVersions"}
        for remote in entry.pop("remotes", ())
    ]
    if remotes:
        entry["remotes"] = remotes
    return {"$schema": entry.pop("$schema"), **entry}


# -- gathering


def _of_target(target: Target, modes: Sequence[Mode]) -> dict[str, Any]:
    """Return the document of an environment's code, from a temporary instance."""
    with instance(target, modes[0]) as env:
        execution = env._execution
        by_mode: dict[Mode, list[Tool]] = {}
        for mode in modes:
            execution.mode = mode
            by_mode[mode] = env.list_tools()
        rest = execution.blocking.run(_components(env)) if execution.mounted is not None else _no_components()
    source = EnvironmentFactory(target.factory, ServerConfig())
    source.environment_class = type(env)
    described = Description(source, ServerConfig(), target.readme)
    metadata, schema = described.metadata(), described.schema([])
    tasks = type(env).tasks
    return _document(
        metadata,
        schema,
        _merged(by_mode),
        rest,
        modes=[mode.value for mode in modes],
        tasks_source=None if tasks is None else tasks.source,
    )


def _identity_of(target: Target) -> dict[str, Any]:
    """Return the identity of a temporary instance, as MCP clients see it."""
    with instance(target, Mode.PRODUCTION if Mode.PRODUCTION in target.modes else Mode.SIMULATION) as env:
        return identity_of(env.mcp, type(env).__doc__ or "")


async def _card_of(url: str) -> dict[str, Any]:
    """Return the card of a running server.

    Raises:
        ConfigurationError: the server has no card.
    """
    found = await _description(url, CARD_PATHS[0])
    if found is None:
        raise ConfigurationError(f"--server-json: {url} has no server card; is it served by mcpenv, without a handle?")
    return found


async def _components(env: MCPEnvironment) -> dict[str, Any]:
    async with Client(env.mcp) as client:
        return await _components_of(client)


async def _of_server(url: str, bearer: Bearer) -> dict[str, Any]:
    """Return the document of a running server: its MCP listings, and its own descriptions if it has them."""
    async with connected(url, bearer) as client:
        tools = await list_tools(client, url, bearer)
        rest = await _components_of(client)
        info, instructions = client.server_info, client.instructions
    metadata, schema = await _description(url, "/metadata"), await _description(url, "/schema")
    modes = [metadata["mode"]] if metadata and metadata.get("mode") in _BOTH else None
    if metadata is None:
        metadata = {
            "name": info.name if info is not None else url,
            "version": info.version if info is not None else None,
            "description": instructions or "",
        }
    listed = [{**tool.model_dump(mode="json"), "modes": modes} for tool in tools]
    return _document(metadata, schema or {}, listed, rest, modes=modes)


async def _description(url: str, path: str) -> dict[str, Any] | None:
    """Return the JSON object at ``/metadata`` or ``/schema``; None if the server has none, like other MCP servers."""
    async with httpx.AsyncClient(timeout=CONNECT_S, trust_env=not is_loopback(url)) as http:
        try:
            reply = await http.get(base_url(url) + path)
            body = reply.json() if reply.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return None
    return body if isinstance(body, dict) else None


async def _components_of(client: Client[Any]) -> dict[str, Any]:
    """Return the resources and prompts of a server; empty lists if it refuses the listing."""
    found = _no_components()
    with suppress(MCPError):
        found["resources"] = _dumped(await client.list_resources())
        found["resource_templates"] = _dumped(await client.list_resource_templates())
    with suppress(MCPError):
        found["prompts"] = _dumped(await client.list_prompts())
    return found


def _no_components() -> dict[str, Any]:
    return {"resources": [], "resource_templates": [], "prompts": []}


def _dumped(models: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models]


def _merged(by_mode: Mapping[Mode, Sequence[Tool]]) -> list[dict[str, Any]]:
    """Return each tool once, with its modes. A name with different definitions in the two modes is two tools."""
    merged: list[dict[str, Any]] = []
    for mode, tools in by_mode.items():
        for tool in tools:
            dumped = tool.model_dump(mode="json")
            same = next((other for other in merged if {**other, "modes": None} == {**dumped, "modes": None}), None)
            if same is None:
                merged.append({**dumped, "modes": [mode.value]})
            else:
                same["modes"].append(mode.value)
    return merged


def _document(
    metadata: Mapping[str, Any],
    schema: Mapping[str, Any],
    tools: list[dict[str, Any]],
    components: Mapping[str, Any],
    *,
    modes: list[str] | None,
    tasks_source: str | None = None,
) -> dict[str, Any]:
    return {
        **{key: metadata.get(key) for key in ("name", "version", "description")},
        "modes": modes,
        "tasks": metadata.get("tasks"),
        "tasks_source": tasks_source,
        "tools": tools,
        **components,
        **{key: schema.get(key) for key in ("reset", "action", "observation", "reset_observation", "state")},
    }


# -- output


def _show(page: Page, document: Mapping[str, Any]) -> None:
    version = document["version"]
    page.line((str(document["name"]), "bold"), f" {version}" if version else "")
    if document["description"]:
        page.prose(str(document["description"]), indent=2)
    _heading(page, "Tools")
    if not document["tools"]:
        page.line("none", indent=2)
    for tool in document["tools"]:
        _show_tool(page, tool)
    if isinstance(document["tasks"], dict):
        _heading(page, "Tasks")
        for split, size in document["tasks"].items():
            page.line((str(split), "cyan"), f": {size}", indent=2)
        if document["tasks_source"]:
            page.line((f"from {document['tasks_source']}", "dim"), indent=2)
    _show_components(page, document)
    for title, key, known in (
        ("Reset options", "reset", ()),
        ("State", "state", ()),
        # Skip the fields that every observation has.
        ("Observation of a reset", "reset_observation", (*Observation.model_fields, "done")),
    ):
        schema = document[key]
        if schema is not None and not schema.get("properties", {}).keys() <= set(known):
            _heading(page, title)
            _show_fields(page, schema, known)
    own = _own_actions(document["action"])
    if own:
        _heading(page, "Actions of its own")
        for schema, root in own:
            page.line((_action_name(schema), "bold"), f"({_fields(schema, root, skip=('type', 'metadata'))})", indent=2)


def _heading(page: Page, title: str) -> None:
    page.line()
    page.line((title, "bold underline"))


def _show_tool(page: Page, tool: Mapping[str, Any]) -> None:
    schema = tool["input_schema"]
    modes = tool["modes"]
    seen = "" if modes is None else f"  [{modes[0] if len(modes) == 1 else 'both modes'}]"
    returned = f" -> {_returned(tool['output_schema'])}" if tool["output_schema"] else ""
    page.line((tool["name"], "bold cyan"), f"({_fields(schema, schema)}){returned}", (seen, "dim"), indent=2)
    if tool["description"]:
        page.prose(tool["description"], indent=6)
    for name, field in schema.get("properties", {}).items():
        if isinstance(field, dict) and field.get("description"):
            page.prose(f"{name}: {field['description']}", indent=6)


def _show_components(page: Page, document: Mapping[str, Any]) -> None:
    for title, key, address in (
        ("Resources", "resources", "uri"),
        ("Resource templates", "resource_templates", "uriTemplate"),
        ("Prompts", "prompts", "name"),
    ):
        if not document[key]:
            continue
        _heading(page, title)
        for component in document[key]:
            names = ", ".join(argument["name"] for argument in component.get("arguments", ()))
            page.line((component[address], "bold cyan"), f"({names})" if key == "prompts" else "", indent=2)
            if component.get("description"):
                page.prose(component["description"], indent=6)


def _show_fields(page: Page, schema: Mapping[str, Any], skip: Sequence[str]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name in skip:
            continue
        default = f" = {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
        page.line((name, "cyan"), f": {_type(field, schema)}{default}", indent=2)
    if schema.get("additionalProperties") is True:
        page.line("and any others", indent=2)


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any], skip: Sequence[str] = ()) -> str:
    """Return an object's properties as a signature, ``text: string, times: integer = 1``; ``?`` marks optional ones."""
    required = schema.get("required", ())
    parts = []
    for name, field in schema.get("properties", {}).items():
        if name in skip:
            continue
        if "default" in field:
            parts.append(f"{name}: {_type(field, root)} = {json.dumps(field['default'], ensure_ascii=False)}")
        else:
            parts.append(f"{name}{'' if name in required else '?'}: {_type(field, root)}")
    return ", ".join(parts)


def _type(schema: Any, root: Mapping[str, Any]) -> str:
    """Return a short form of a JSON Schema: ``integer``, ``"a" | "b"``, ``string[]``, or a model's name."""
    if not isinstance(schema, dict) or not schema:
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        target = _resolved(schema, root)
        return _type(target, root) if "enum" in target or "const" in target else name
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(_type(option, root) for option in schema[key]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(kind)
    if kind == "array":
        item = _type(schema.get("items"), root)
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object" and "properties" in schema:
        return str(schema["title"]) if "title" in schema else f"{{{_fields(schema, root)}}}"
    return str(kind)


def _returned(schema: Mapping[str, Any]) -> str:
    wrapped = schema.get("x-fastmcp-wrap-result") and schema.get("properties", {}).get("result")
    return _type(wrapped or schema, schema)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    found = schema_at(schema["$ref"], root)
    return found if isinstance(found, dict) else {}


def _own_actions(schema: Mapping[str, Any] | None) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the schemas of the environment's own actions, each with the schema that has its definitions."""
    if schema is None:
        return []
    options = schema.get("anyOf") or schema.get("oneOf") or [schema]
    resolved = [_resolved(option, schema) if "$ref" in option else option for option in options]
    return [(option, schema) for option in resolved if _action_name(option) not in ("call_tool", "list_tools")]


def _action_name(schema: Mapping[str, Any]) -> str:
    kind = schema.get("properties", {}).get("type", {})
    return str(kind.get("const") or kind.get("default") or schema.get("title", "action"))
