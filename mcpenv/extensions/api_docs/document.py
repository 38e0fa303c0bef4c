"""The OpenAPI document of a server's routes, and its page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.convertors import IntegerConvertor
from starlette.routing import compile_path

from mcpenv.server.extension import SESSION_ID, Access, Doc, Schema, ServerRoute, component
from mcpenv.tools.json_schema import embedded
from mcpenv_client.errors import ErrorCode
from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo
from mcpenv_client.types.status import Stage, StatusCode
from mcpenv_client.wire.version import PROTOCOL_VERSION

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_STATUS = {
    "type": "object",
    "description": "What became of it, beside the reward",
    "properties": {
        "code": {"type": "string", "enum": [code.value for code in StatusCode]},
        "stage": {"type": "string", "enum": [stage.value for stage in Stage]},
        "retryable": {"type": "boolean", "description": "A new attempt at the episode may end otherwise"},
        "limit": {"type": "string", "description": "The limit that was passed"},
    },
    "required": ["code", "retryable"],
}
_OBSERVATION = {
    "type": "object",
    "properties": {
        "observation": {"type": "object"},
        "reward": {"type": ["number", "null"]},
        **{name: {"type": "boolean"} for name in ("done", "terminated", "truncated")},
        "metadata": {"type": "object"},
        "info": {
            "type": "object",
            "description": "The framework's: episode_id, return, reward components",
            "properties": {"status": _STATUS, "episode_status": _STATUS},
        },
        "session_id": SESSION_ID,
    },
    "required": ["observation", "reward", "done"],
}
_ERROR = {
    "type": "object",
    "properties": {
        "message": _TEXT,
        "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
        "errors": {"type": "array", "items": {"type": "object"}},
        "incident": _TEXT,
        "status": _STATUS,
    },
    "required": ["message", "code"],
}


def document(
    metadata: Mapping[str, Any], schemas: Mapping[str, Any], table: Iterable[ServerRoute], tokens: Sequence[str]
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server.

    Args:
        metadata: the description of the environment, as at ``/metadata``.
        schemas: its JSON Schemas, as at ``/schema``.
        table: the routes.
        tokens: which tokens there are: "controlToken", "metricsToken".
    """
    schemes = {name: {"type": "http", "scheme": "bearer"} for name in tokens}
    schemas = {name: embedded(schemas[name]) for name in ("action", "state", "reset")}
    paths: dict[str, Any] = {}
    for route in table:
        docs = route.docs if isinstance(route.docs, Mapping) else {route.methods[0]: route.docs}
        for method, doc in docs.items():
            if doc is None or method not in route.methods or (doc.of_tasks and metadata["tasks"] is None):
                continue
            _, path, convertors = compile_path(route.path)
            if doc.of_tasks:
                path, convertors = path.replace("{name}", metadata["name"]), {}
            whole = {name for name, each in convertors.items() if isinstance(each, IntegerConvertor)}
            parameters = [
                {"name": name, "in": "path", "required": True, "schema": _COUNT if name in whole else _TEXT}
                for name in convertors
            ]
            item = paths.setdefault(path, {"parameters": parameters} if parameters else {})
            # As with requests, the first route of a path and method counts.
            item.setdefault(method.lower(), _operation(doc, schemas, _needed(route.access, tokens), bool(parameters)))
    _, types = models_json_schema(
        [(SessionInfo, "serialization"), (ServerCapacityStatus, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": metadata["name"],
            # The version of this interface, not of the environment. Clients (also OpenEnv's) read it as such.
            "version": f"{PROTOCOL_VERSION}.0",
            "description": f"{metadata['description']}\n\nVersion {metadata['version']}. MCP clients use `/mcp`.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Observation": _OBSERVATION, "Error": _ERROR, **types["$defs"]},
            **({"securitySchemes": schemes} if schemes else {}),
        },
    }


def _needed(access: Access, tokens: Iterable[str]) -> list[str]:
    """Return the names of the tokens, one of which a route needs."""
    if access in (Access.GUARDED, Access.PUBLIC):
        return []
    return [name for name in tokens if name == "controlToken" or access is Access.SCRAPED]


def _operation(doc: Doc, schemas: Mapping[str, Any], tokens: list[str], has_arguments: bool) -> dict[str, Any]:
    content = {doc.answer: {"schema": _TEXT}} if isinstance(doc.answer, str) else _json(doc.answer, schemas)
    errors = {} if doc.error is None else _json(doc.error, schemas)
    responses: dict[str, Any] = {"200": {"description": doc.gives or doc.summary, "content": content}}
    for status, cause in doc.errors.items():
        responses[str(status)] = {"description": cause, **({"content": errors} if errors else {})}
    if has_arguments and "404" in responses:
        # No route matches an argument with a line break. The router answers in plain text.
        responses["404"]["content"] = {**errors, "text/plain": {"schema": _TEXT}}
    described: dict[str, Any] = {"summary": doc.summary, "responses": responses}
    if doc.text:
        described["description"] = doc.text
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in doc.query.items()]
    if doc.answer == "text/event-stream":
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": _TEXT})
    if parameters:
        described["parameters"] = parameters
    if doc.body is not None:
        content = _json(doc.body, schemas)
        needed = "required" in content["application/json"]["schema"]
        described["requestBody"] = {"required": needed, "content": content}
    if tokens:
        described["security"] = [{name: []} for name in tokens]
        responses["401"] = {
            "description": "The token is missing or wrong",
            "content": _json(component("Error"), schemas),
        }
    return described


def _json(schema: Schema, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a body of JSON."""
    return {"application/json": {"schema": schema if isinstance(schema, Mapping) else schema(schemas)}}


def page(spec: dict[str, Any]) -> str:
    """Return the document as a page that loads nothing from elsewhere."""
    rows = []
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            if method == "parameters":
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            shown = "" if body is None else f"<h3>Body</h3><pre>{html.escape(json.dumps(body, indent=2))}</pre>"
            answers = "".join(
                f"<tr><td>{status}</td><td>{html.escape(answer['description'])}</td></tr>"
                for status, answer in operation["responses"].items()
            )
            rows.append(
                f"<details><summary><code class='{method}'>{method.upper()}</code> <code>{html.escape(path)}</code> "
                f"{html.escape(operation['summary'])}</summary><p>{html.escape(operation.get('description', ''))}</p>"
                f"{shown}<h3>Answers</h3><table>{answers}</table></details>"
            )
    info = spec["info"]
    return _PAGE.format(
        title=html.escape(info["title"]),
        version=html.escape(info["version"]),
        description=html.escape(info["description"]),
        rows="\n".join(rows),
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
 :root {{ color-scheme: light dark; }}
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
 h1 small {{ font-weight: normal; opacity: .6; font-size: 1rem; }}
 .about {{ white-space: pre-wrap; }}
 details {{ border: 1px solid #8884; border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem; }}
 summary {{ cursor: pointer; }}
 code.get, code.post {{ border-radius: 4px; padding: .1rem .4rem; color: #fff; background: #2563eb; }}
 code.post {{ background: #15803d; }}
 pre {{ overflow-x: auto; background: #8881; padding: .8rem; border-radius: 6px; font-size: .85rem; }}
 td {{ padding: .1rem 1rem .1rem 0; vertical-align: top; }}
 h3 {{ font-size: 1rem; margin: .6rem 0 .2rem; }}
</style></head><body>
<h1>{title} <small>{version}</small></h1>
<p class="about">{description}</p>
{rows}
<p><a href="openapi.json">openapi.json</a> · <a href="schema">schema</a> · <a href="metadata">metadata</a></p>
</body></html>
"""
