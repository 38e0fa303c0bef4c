"""The calls of the page Play as code: Python, curl, and the oracle of a task."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv_client.errors import InvalidMessage

TOKEN = "MCPENV_CONTROL_TOKEN"

Call = dict[str, Any]
"""A call as the page has it: ``name``, ``arguments``, and ``own`` for an action of the environment's own."""


class SameAsCode:
    """The handler. The code reads the token from the environment variable `TOKEN`, where the server has one."""

    def __init__(self, server: EnvServer) -> None:
        self._control = server.control
        self._guarded = server.config.control_token is not None

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
