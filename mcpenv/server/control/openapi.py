"""The description of the HTTP routes, for programs (``/openapi.json``) and for people (``/docs``)."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from mcpenv.server.sessions.pause import MAX_PAUSE_S
from mcpenv.tools.json_schema import embedded
from mcpenv_client.errors import ErrorCode
from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo
from mcpenv_client.types.status import Stage, StatusCode
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.protocol import MAX_REASON, MAX_TIMEOUT_S
from mcpenv_client.wire.version import PROTOCOL_VERSION

from .metadata import Description

_SESSION_ID = {"type": "string", "minLength": 1, "maxLength": 255, "description": "From POST /reset"}
_MAYBE_SESSION_ID = {**_SESSION_ID, "type": ["string", "null"]}
_TIMEOUT = {
    "type": ["number", "null"],
    "exclusiveMinimum": 0,
    "exclusiveMaximum": MAX_TIMEOUT_S,
    "description": "Seconds that this may take",
}
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
_INFO = {
    "type": "object",
    "description": "The framework's: episode_id, return, reward components",
    "properties": {"status": _STATUS, "episode_status": _STATUS},
}


def document(
    description: Description, mode: Mode, further: Mapping[str, Any], *, guarded: bool, metered: bool = False
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server in this mode.

    Args:
        further: the path items of extensions' routes.
        guarded: True if there is a control token, which the control routes then need.
        metered: True if there is a metrics token.
    """
    tokens = {"controlToken": guarded, "metricsToken": metered}
    schemes = {name: {"type": "http", "scheme": "bearer"} for name, given in tokens.items() if given}
    metadata = description.metadata()
    schemas = description.schema([])
    paths: dict[str, Any] = {
        "/health": {"get": operation("The process answers", {"type": "object"})},
        "/ready": {"get": operation("New sessions are taken", {"type": "object"}, {"503": _plain("Not ready")})},
        "/metadata": {"get": operation("What this server is", {"type": "object"})},
        "/schema": {
            "get": operation("JSON Schemas of actions, observations, state, tools, reset options", {"type": "object"})
        },
    }
    control: dict[str, Any] = {}
    if mode is Mode.SIMULATION or guarded:
        control |= _sessions()
    if mode is Mode.SIMULATION:
        control["/sessions"] |= _opened_session()
        control |= _control(schemas)
        if metadata["tasks"] is not None:
            control |= _tasks(metadata["name"])
    control |= copy.deepcopy(dict(further))
    if guarded:
        _guard(control, {"controlToken": []})
    paths |= control
    if mode is Mode.SIMULATION or schemes:
        metrics = _metrics()
        if schemes:
            _guard(metrics, *({name: []} for name in schemes))
        paths |= metrics
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
            "schemas": {"Observation": _observation(), "Error": _error(), **_server_types()},
            **({"securitySchemes": schemes} if schemes else {}),
        },
    }


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


_END: dict[str, Any] = {
    "type": "object",
    "properties": {
        "session_id": _SESSION_ID,
        "truncated": {"type": "boolean", "default": False},
        "reason": {"type": ["string", "null"], "maxLength": MAX_REASON},
    },
    "required": ["session_id"],
    "additionalProperties": False,
}


def _control(schemas: dict[str, Any]) -> dict[str, Any]:
    reset = json.loads(json.dumps(schemas["reset"]))
    reset["properties"] |= {"session_id": _MAYBE_SESSION_ID, "timeout_s": _TIMEOUT}
    step = {
        "type": "object",
        "properties": {
            "action": embedded(schemas["action"]),
            "session_id": _MAYBE_SESSION_ID,
            "timeout_s": _TIMEOUT,
        },
        "required": ["action"],
        "additionalProperties": False,
    }
    observation = _component("Observation")
    return {
        "/reset": {
            "post": _post(
                "Begin an episode",
                "In the session of session_id, or in a new session whose id the reply has.",
                embedded(reset),
                observation,
                required=False,
            )
        },
        "/step": {
            "post": _post(
                "Take a step",
                "In the session of session_id; without one, in an episode that is thrown away afterwards.",
                step,
                observation,
            )
        },
        "/end": {
            "post": _post(
                "End the episode",
                "The agent has stopped: the reward of the end, and the return. Of one that is over: its last answer.",
                _END,
                observation,
            )
        },
        "/state": {
            "get": operation("The state of the environment", embedded(schemas["state"]), _refusals())
            | {"parameters": [{"name": "session_id", "in": "query", "required": False, "schema": _SESSION_ID}]}
        },
    }


def _sessions() -> dict[str, Any]:
    """Return the routes about sessions, which a server in production has too."""
    session, unknown = _component("SessionInfo"), refusal_of("No such session")
    # No route matches an id with a line break. The router answers in plain text.
    unknown["content"]["text/plain"] = {"schema": {"type": "string"}}
    return {
        "/sessions": {"get": operation("The sessions", object_of({"sessions": {"type": "array", "items": session}}))},
        "/sessions/{session_id}": {
            "parameters": [{"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": operation("One session", session, {"404": unknown}),
            "delete": operation(
                "End a session",
                object_of({"session_id": _SESSION_ID, "closed": {"type": "boolean"}}),
                {"404": unknown},
            ),
        },
        **_watching(unknown),
        **_pausing(unknown),
        "/capacity": {"get": operation("How many sessions there are and may be", _component("ServerCapacityStatus"))},
    }


_NAMED_SESSION = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}


def _watching(unknown: dict[str, Any]) -> dict[str, Any]:
    """Return the routes with which sessions are watched."""
    refused = {
        "409": refusal_of("The session has no episode"),
        "422": refusal_of("There is no such place in an episode"),
    }
    after = {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}}
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    at = "/sessions/{session_id}"
    return {
        "/sessions/events": {"parameters": [last], "get": _streamed("The list of sessions, as it changes", refused)},
        f"{at}/trajectory": {
            "parameters": [_NAMED_SESSION, after],
            "get": operation(
                "The episode of a session, and its steps after a number of them",
                {"type": "object"},
                {"404": unknown, **refused},
            ),
        },
        f"{at}/events": {
            "parameters": [_NAMED_SESSION, last],
            "get": _streamed("The steps of a session, as they happen", {"404": unknown, **refused}),
        },
        f"{at}/steps/{{step}}/content/{{block}}": {
            "parameters": [
                _NAMED_SESSION,
                *(
                    {"name": name, "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
                    for name in ("step", "block")
                ),
            ],
            "get": file_operation("An image or sound that a step returned", "*/*", "No such content", **refused),
        },
    }


def _pausing(unknown: dict[str, Any]) -> dict[str, Any]:
    """Return the routes that pause a session."""
    name, seconds = {"type": "string"}, {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_PAUSE_S}
    pause = {"type": "object", "properties": {"timeout_s": seconds}, "additionalProperties": False}
    paused = {"session_id": name, "paused_until": {"type": "number"}, "begun": {"type": "boolean"}}
    more = {"404": unknown, **{status: _refusals()[status] for status in ("400", "413", "422")}}
    body = {"required": False, "content": {"application/json": {"schema": pause}}}
    return {
        "/sessions/{session_id}/pause": {
            "parameters": [_NAMED_SESSION],
            "post": {**operation("Pause a session: its next calls wait", object_of(paused), more), "requestBody": body},
        },
        "/sessions/{session_id}/resume": {
            "parameters": [_NAMED_SESSION],
            "post": operation(
                "End the pause of a session", object_of({"session_id": name, "resumed": {"type": "boolean"}}), more
            ),
        },
    }


def file_operation(summary: str, media_type: str, unknown: str, **refused: Any) -> dict[str, Any]:
    """Return the operation that answers a file."""
    answer = {"description": "The file", "content": {media_type: {"schema": {"type": "string"}}}}
    missing = refusal_of(unknown)
    # No route matches an id with a line break. The router answers in plain text.
    missing["content"]["text/plain"] = {"schema": {"type": "string"}}
    return {"summary": summary, "responses": {"200": answer, "404": missing, **refused}}


def _opened_session() -> dict[str, Any]:
    return {"post": operation("Open a session without resetting it", _component("SessionInfo"), _refusals())}


def _metrics() -> dict[str, Any]:
    answer = {"description": "Prometheus' text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"/metrics": {"get": {"summary": "The metrics of the whole server", "responses": {"200": answer}}}}


def _tasks(name: str) -> dict[str, Any]:
    """Return the routes of an environment that has tasks."""
    split, place = {"type": "string"}, {"type": "integer", "minimum": 0}
    maybe = {"type": ["integer", "null"], "minimum": 0}
    task, tasks = {"type": "object"}, {"type": "array", "items": {"type": "object"}}
    return {
        "/list_environments": {"get": operation("The environment that is served", {"type": "array"})},
        f"/{name}/splits": {"get": operation("The splits of its tasks", tasks)},
        f"/{name}/num_tasks": _ask_tasks("How many tasks a split has", {"split": split}, {"num_tasks": place}),
        f"/{name}/task": _ask_tasks("A task", {"split": split, "index": place}, {"task": task, "env_name": split}),
        f"/{name}/task_range": _ask_tasks(
            "Tasks of a split, from start to stop",
            {"split": split, "start": maybe, "stop": maybe},
            {"tasks": tasks, "env_name": split},
        ),
        f"/{name}/tasks": _ask_tasks("All tasks of a split", {"split": split}, {"tasks": tasks, "env_name": split}),
    }


def _ask_tasks(summary: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    needed = [name for name in body if name in ("split", "index")]
    takes = {"type": "object", "properties": body, "required": needed, "additionalProperties": False}
    gives, detail = object_of(answer), object_of({"detail": {"type": "string"}})
    refused = {
        "400": "No such split or task; or the body is not JSON",
        "413": "The body is too large",
        "422": "The body does not fit its schema",
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": takes}}},
            "responses": {
                "200": {"description": "The answer", "content": {"application/json": {"schema": gives}}},
                **{
                    status: {"description": cause, "content": {"application/json": {"schema": detail}}}
                    for status, cause in refused.items()
                },
            },
        }
    }


def _guard(paths: dict[str, Any], *tokens: dict[str, Any]) -> None:
    """Mark each operation as one that needs one of these tokens."""
    for methods in paths.values():
        for name, operation in methods.items():
            if name != "parameters":
                operation["security"] = list(tokens)
                operation["responses"]["401"] = refusal_of("The token is missing or wrong")


def _component(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _server_types() -> dict[str, Any]:
    """Return the schemas of the client's models of sessions and capacity, and of the types in them."""
    _, schemas = models_json_schema(
        [(SessionInfo, "serialization"), (ServerCapacityStatus, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions


def _observation() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "observation": {"type": "object"},
            "reward": {"type": ["number", "null"]},
            "done": {"type": "boolean"},
            "terminated": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "metadata": {"type": "object"},
            "info": _INFO,
            "session_id": _SESSION_ID,
        },
        "required": ["observation", "reward", "done"],
    }


def _error() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "message": {"type": "string"},
            "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
            "errors": {"type": "array", "items": {"type": "object"}},
            "incident": {"type": "string"},
            "status": _STATUS,
        },
        "required": ["message", "code"],
    }


def _plain(text: str) -> dict[str, Any]:
    return {"description": text}


def refusal_of(text: str) -> dict[str, Any]:
    """Return the description of an answer with an error."""
    return {
        "description": text,
        "content": {"application/json": {"schema": _component("Error")}},
    }


def _refusals() -> dict[str, Any]:
    return {
        "400": refusal_of("The body is not JSON"),
        "404": refusal_of("No such session"),
        "409": refusal_of("The episode is over, or there is none yet"),
        "413": refusal_of("The body is too large"),
        "422": refusal_of("The body does not fit its schema"),
        "429": refusal_of("The session has too many running and waiting calls"),
        "500": refusal_of("The environment failed"),
        "503": refusal_of("Every session slot is taken; see Retry-After"),
        "504": refusal_of("The deadline passed"),
    }


def operation(summary: str, schema: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an operation whose answer with status 200 has a schema.

    Args:
        more: further answers by status.
    """
    answer = {"description": summary, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {"200": answer, **(more or {})}}


def _streamed(summary: str, more: dict[str, Any]) -> dict[str, Any]:
    answer = {"description": summary, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"summary": summary, "responses": {"200": answer, **more}}


def _post(
    summary: str, text: str, body: dict[str, Any], answer: dict[str, Any], *, required: bool = True
) -> dict[str, Any]:
    return {
        "summary": summary,
        "description": text,
        "requestBody": {"required": required, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The observation", "content": {"application/json": {"schema": answer}}},
            **_refusals(),
        },
    }


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
