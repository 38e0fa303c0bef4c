"""Every kind of client that OpenEnv has, on the echo environment; prints what each saw as one JSON object."""

import asyncio
import json
import sys
from typing import Any

from openenv import GenericEnvClient
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Observation, State
from openenv.core.mcp_client import MCPToolClient
from pydantic import BaseModel

ECHO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "two words"}}


class Echoed(BaseModel):
    """Return the answer."""

    text: str


class EchoState(State):  # type: ignore[misc]
    """The state of the echo environment."""

    words: int = 0


class EchoClient(EnvClient[str, Echoed, EchoState]):  # type: ignore[misc]
    """A typed client: text in, `Echoed` out."""

    def _step_payload(self, action: str) -> dict[str, Any]:
        return {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": action}}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Echoed]:
        result = (payload["observation"] or {}).get("result") or {}
        return StepResult(Echoed(text=result.get("data", "")), payload.get("reward"), payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> EchoState:
        return EchoState(**payload)


async def generic(url: str) -> dict[str, Any]:
    async with GenericEnvClient(base_url=url) as env:
        reset = await env.reset(seed=1, episode_id="mine")
        listed = await env.step({"type": "list_tools"})
        step = await env.step(ECHO)
        unknown = await env.step({"type": "call_tool", "tool_name": "shout", "arguments": {}})
        try:
            await env.step({"type": "dance"})
            refused = None
        except RuntimeError as error:
            refused = str(error)
        end = await env.step({"type": "call_tool", "tool_name": "say_goodbye", "arguments": {}})
        return {
            "reset": [reset.reward, reset.done],
            "tools": [tool["name"] for tool in listed.observation["tools"]],
            "step": [step.observation["result"]["data"], step.reward, step.done],
            "unknown": unknown.observation["error"]["error_type"],
            "refused": refused,
            "end": end.done,
            "state": await env.state(),
        }


def blocking(url: str) -> dict[str, Any]:
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        step = env.step(ECHO)
        return {"step": [step.observation["result"]["data"], step.reward, step.done]}


async def tools(url: str) -> dict[str, Any]:
    async with MCPToolClient(base_url=url) as client:
        listed = await client.list_tools()
        called = await client.call_tool("echo_message", message="two words")
        step = await client.step(CallToolAction(tool_name="echo_message", arguments={"message": "one"}))
        try:
            await client.call_tool("shout")
            unknown = None
        except RuntimeError as error:
            unknown = str(error)
        return {
            "tools": [tool.name for tool in listed],
            "schema": (await client.get_tool("echo_message")).input_schema,
            "called": called,
            "step": [step.observation.result["data"], step.reward],
            "unknown": unknown,
            "steps": (await client.state()).step_count,
            "reset": isinstance((await client.reset()).observation, Observation),
            "steps_after_reset": (await client.state()).step_count,
        }


async def typed(url: str) -> dict[str, Any]:
    async with EchoClient(base_url=url) as env:
        await env.reset()
        step = await env.step("two words")
        state = await env.state()
        return {"step": [step.observation.text, step.reward, step.done], "words": state.words}


def main(url: str) -> None:
    seen = {
        "generic": asyncio.run(generic(url)),
        "blocking": blocking(url),
        "tools": asyncio.run(tools(url)),
        "typed": asyncio.run(typed(url)),
    }
    print(json.dumps(seen))


main(sys.argv[1])
