"""The descriptions of the kernel's routes, which the tables in `app` name."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from pydantic import BaseModel

from mcpenv.server.extension import SESSION_ID, Doc, Schema, component, object_of
from mcpenv.server.sessions.pause import MAX_PAUSE_S
from mcpenv_client.wire.protocol import MAX_REASON, MAX_TIMEOUT_S

from .task_routes import RangeBody, SplitBody, TaskBody

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_SESSION, _OBSERVATION = component("SessionInfo"), component("Observation")
_CALLED = {
    "session_id": {**SESSION_ID, "type": ["string", "null"]},
    "timeout_s": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "exclusiveMaximum": MAX_TIMEOUT_S,
        "description": "Seconds that this may take",
    },
}

_BODY = {400: "The body is not JSON", 413: "The body is too large", 422: "The body does not fit its schema"}
_UNKNOWN = {404: "No such session"}
_CALL = {
    **_BODY,
    **_UNKNOWN,
    409: "The episode is over, or there is none yet",
    429: "The session has too many running and waiting calls",
    500: "The environment failed",
    503: "Every session slot is taken; see Retry-After",
    504: "The deadline passed",
}
_TASK = {**_BODY, 400: "No such split or task; or the body is not JSON"}


def _closed(properties: Mapping[str, Any], *needed: str) -> dict[str, Any]:
    """Return the schema of an object with no other properties than these."""
    required = {"required": list(needed)} if needed else {}
    return {"type": "object", "properties": properties, **required, "additionalProperties": False}


def _episode(summary: str, text: str, body: Schema) -> Doc:
    return Doc(summary, _OBSERVATION, body, text=text, gives="The observation", errors=_CALL)


def _tasks(summary: str, answer: Mapping[str, Any], body: type[BaseModel]) -> Doc:
    takes, gives, refused = body.model_json_schema(), object_of(answer), object_of({"detail": _TEXT})
    return Doc(summary, gives, takes, gives="The answer", errors=_TASK, error=refused, of_tasks=True)


HEALTH = Doc("The process answers")
READY = Doc("New sessions are taken", errors={503: "Not ready"}, error=None)
METADATA = Doc("What this server is")
SCHEMA = Doc("JSON Schemas of actions, observations, state, tools, reset options")
METRICS = Doc("The metrics of the whole server", "text/plain", gives="Prometheus' text")

SESSIONS = {
    "GET": Doc("The sessions", object_of({"sessions": {"type": "array", "items": _SESSION}})),
    "POST": Doc("Open a session without resetting it", _SESSION, errors=_CALL),
}
SESSION = {
    "GET": Doc("One session", _SESSION, errors=_UNKNOWN),
    "DELETE": Doc("End a session", object_of({"session_id": SESSION_ID, "closed": _FLAG}), errors=_UNKNOWN),
}
PAUSE = Doc(
    "Pause a session: its next calls wait",
    object_of({"session_id": _TEXT, "paused_until": {"type": "number"}, "begun": _FLAG}),
    _closed({"timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_PAUSE_S}}),
    errors=_UNKNOWN | _BODY,
)
RESUME = Doc("End the pause of a session", object_of({"session_id": _TEXT, "resumed": _FLAG}), errors=_UNKNOWN | _BODY)
CAPACITY = Doc("How many sessions there are and may be", component("ServerCapacityStatus"))

RESET = _episode(
    "Begin an episode",
    "In the session of session_id, or in a new session whose id the reply has.",
    lambda own: {**own["reset"], "properties": own["reset"]["properties"] | _CALLED},
)
STEP = _episode(
    "Take a step",
    "In the session of session_id; without one, in an episode that is thrown away afterwards.",
    lambda own: _closed({"action": own["action"], **_CALLED}, "action"),
)
END = _episode(
    "End the episode",
    "The agent has stopped: the reward of the end, and the return. Of one that is over: its last answer.",
    _closed(
        {
            "session_id": SESSION_ID,
            "truncated": {**_FLAG, "default": False},
            "reason": {"type": ["string", "null"], "maxLength": MAX_REASON},
        },
        "session_id",
    ),
)
STATE = Doc("The state of the environment", itemgetter("state"), query={"session_id": SESSION_ID}, errors=_CALL)

ENVIRONMENTS = Doc("The environment that is served", {"type": "array"}, of_tasks=True)
SPLITS = Doc("The splits of its tasks", _OBJECTS, of_tasks=True)
NUM_TASKS = _tasks("How many tasks a split has", {"num_tasks": {"type": "integer", "minimum": 0}}, SplitBody)
TASK = _tasks("A task", {"task": {"type": "object"}, "env_name": _TEXT}, TaskBody)
TASK_RANGE = _tasks("Tasks of a split, from start to stop", {"tasks": _OBJECTS, "env_name": _TEXT}, RangeBody)
TASKS = _tasks("All tasks of a split", {"tasks": _OBJECTS, "env_name": _TEXT}, SplitBody)
