"""The calls of the page Play as code and as a task, and the actions that it offers beside the tools."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.extensions.exports.page.evidence import evidence_element
from mcpenv.extensions.exports.page.markup import plain_of
from mcpenv.extensions.records.chat import failed
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered, plain_json
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.values import to_plain

TOKEN = "MCPENV_CONTROL_TOKEN"

OWN_FIELDS = frozenset({"seed", "episode_id", "task", "split", "index", "timeout_s"})
"""The reset options that the page has fields of its own for, or that a visitor has no use for."""

Call = dict[str, Any]
"""A call as the page has it: ``name``, ``arguments``, and ``own`` for an action of the environment's own."""


class PlayedCalls:
    """The handlers. Code reads the token from the environment variable `TOKEN`, where the server has one."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._control = server.control
        self._description = server.description
        self._guarded = server.config.control_token is not None

    def offered(self) -> dict[str, Any]:
        """Return the schema of the ``reset`` options that have a field, and the own ``actions`` as tools."""
        schema = self._description.schema([])
        actions = schema["action"]
        defs, own = actions.get("$defs", {}), []
        for each in actions.get("anyOf") or actions.get("oneOf") or [actions]:
            member = defs[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            name = member.get("properties", {}).get("type", {}).get("const")
            if name not in (None, "call_tool", "list_tools"):
                form = _without(member, {"type", "metadata"}, defs)
                own.append({"name": name, "own": True, "description": member.get("description"), "input_schema": form})
        return {"actions": own, "reset": _without(schema["reset"], OWN_FIELDS, schema["reset"].get("$defs", {}))}

    @answered
    async def task(self, request: Request) -> dict[str, Any]:
        """Answer the episode of a session as a task, whose oracle are the calls that succeeded; of a bug, all calls.

        The body has ``session_id``, ``kind`` ("task", "test" or "bug"), ``id``, ``prompt`` and ``expected``.
        """
        body = await self._control.body(request)
        trajectory = self._pool.seen(str(body.get("session_id"))).execution.episode.trajectory
        if trajectory is None or trajectory.dropped:
            raise InvalidMessage("there is no episode, or its first steps are not kept any more")
        steps = trajectory.steps
        if any(step.outcome.result is None and step.outcome.error is None for step in steps):
            raise InvalidMessage("An oracle has calls of tools only, and this episode has other actions.")
        bug = body.get("kind") == "bug"
        calls = [step.call for step in steps if bug or not failed(step)]
        task = {} if trajectory.task is None else to_plain(trajectory.task, "task")
        made = {
            "id": body.get("id"),
            "split": {"test": "test", "bug": "bugs"}.get(str(body.get("kind")), "train"),
            "prompt": body.get("prompt") or None,
            "options": trajectory.options,
            "seed": trajectory.seed,
            "reward_range": task.get("reward_range"),
            "limits": task.get("limits"),
        }
        if bug:
            seen = None
            if steps and (error := steps[-1].outcome.error) is not None:
                seen = error.message
            elif steps and (result := steps[-1].outcome.result) is not None and result.content:
                seen = result.content[0].get("text")
            made |= {"tags": ["bug"], "metadata": {"expected": body.get("expected"), "seen": seen}}
        oracle = [{"tool_name": call.name, "arguments": call.arguments} for call in calls]
        return {**{name: value for name, value in made.items() if value is not None}, "oracle": oracle}

    @answered
    async def evidence(self, request: Request) -> dict[str, Any] | Response:
        """Answer why an episode has its reward, drawn for the page; null without evidence.

        The body is its trajectory. Of its steps only the rewards count.
        """
        try:
            found = evidence_element(Trajectory.from_plain(await self._control.body(request)))
        except ValueError as error:
            raise InvalidMessage(f"the body is no trajectory: {error}") from error
        return plain_json(None if found is None else plain_of(found))

    @answered
    async def code(self, request: Request) -> dict[str, Any]:
        """Answer ``codes``, pairs of a language and a text, for the ``base`` URL, the ``reset`` and the ``calls``."""
        body = await self._control.body(request)
        base, reset, calls = body.get("base"), body.get("reset"), body.get("calls")
        if not (isinstance(base, str) and isinstance(reset, dict) and isinstance(calls, list) and calls):
            raise InvalidMessage("base, reset and calls are needed")
        codes = [
            ("Python", "\n".join(as_python(base, reset, calls, self._guarded))),
            ("curl", " |\n  ".join(as_curl(base, reset, calls, self._guarded))),
        ]
        if not calls[-1].get("own"):
            last = {"tool_name": calls[-1]["name"], "arguments": calls[-1]["arguments"]}
            codes.append(("Oracle", json.dumps(last, ensure_ascii=False)))
        return {"codes": codes}


def _without(schema: Mapping[str, Any], names: Set[str], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object without some of its properties."""
    properties = {name: each for name, each in schema.get("properties", {}).items() if name not in names}
    required = [name for name in schema.get("required", ()) if name in properties]
    return {"type": "object", "properties": properties, "required": required, "$defs": defs}


def action_of(call: Call) -> dict[str, Any]:
    """Return the action of a call, as it is sent."""
    if call.get("own"):
        return {**call["arguments"], "type": call["name"]}
    return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}


def as_python(base: str, reset: dict[str, Any], calls: Sequence[Call], guarded: bool) -> Iterator[str]:
    """Yield the lines of a program."""
    headers = f', headers={{"Authorization": f"Bearer {{os.environ[{TOKEN!r}]}}"}}' if guarded else ""
    yield from ["import os", ""] if guarded else []
    yield from ["from mcpenv_client import EnvClient", ""]
    yield f"with EnvClient({base!r}{headers}).sync() as env:"
    yield f"    env.reset(**{reset!r})"
    for call in calls:
        made = (
            f"step({action_of(call)!r})" if call.get("own") else f"call_tool({call['name']!r}, {call['arguments']!r})"
        )
        yield f"    step = env.{made}"
    yield "    print(step.text, step.reward, step.done)"


def as_curl(base: str, reset: dict[str, Any], calls: Sequence[Call], guarded: bool) -> Iterator[str]:
    """Yield the parts of a pipeline for a POSIX shell with jq."""
    header = "-H 'Content-Type: application/json'" + (f' -H "Authorization: Bearer ${TOKEN}"' if guarded else "")
    begin = f"id=$(curl -s {header} --data {_quoted(reset)} {shlex.quote(f'{base}/reset')} | jq -r .session_id)\n"
    send = f"curl -s {header} --data @- {shlex.quote(f'{base}/step')}\n"
    for call in calls:
        made = f"jq -n --arg session_id \"$id\" --argjson action {_quoted(action_of(call))} '{{$session_id, $action}}'"
        yield begin + made
        begin = send
    yield send.rstrip("\n")


def _quoted(value: dict[str, Any]) -> str:
    return shlex.quote(json.dumps(value, ensure_ascii=False))
