"""A program whose model is recorded: it asks the model that its variables name, and makes the calls that it answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

from mcp import Client

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
print("key:", os.environ.get("OPENAI_API_KEY"), "upstream:", os.environ.get("THE_KEY"))


def completed(messages: list[dict[str, Any]]) -> dict[str, Any]:
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    body = json.dumps({"model": "m", "messages": messages, "tools": TOOLS}).encode()
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


async def play(url: str, model_url: str) -> None:
    assert model_url == os.environ["MCPENV_MODEL_URL"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.stdin.read()}]
    async with Client(url) as client:
        while (message := completed(messages)).get("tool_calls"):
            messages.append(message)
            for call in message["tool_calls"]:
                function = call["function"]
                result = await client.call_tool(function["name"], json.loads(function["arguments"]))
                text = "".join(block.text for block in result.content if block.type == "text")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


asyncio.run(play(sys.argv[1], sys.argv[2]))
