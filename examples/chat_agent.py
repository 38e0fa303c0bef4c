"""A plain agent: it knows the base URL of a model and the address of an MCP server, nothing of episodes or training.

It stands for any program that cannot be changed, such as Claude Code. ``train_black_box.py`` trains its model. Run it::

    OPENAI_BASE_URL=http://127.0.0.1:8001/v1 python examples/chat_agent.py http://127.0.0.1:8000/mcp "Open the door."
"""

import json
import os
import sys
from typing import Any
from urllib.request import Request, urlopen

TURNS = 4


def post(url: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """Return the JSON of an answer, which may be an event, and the answer's headers."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        lines = [line.removeprefix("data: ") for line in answer.read().decode().splitlines() if "{" in line]
        return json.loads(lines[-1]) if lines else None, dict(answer.headers)


class Server:
    """An MCP server over HTTP."""

    def __init__(self, url: str) -> None:
        self.url, self.headers = url, dict[str, str]()
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
        _, headers = post(url, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}, {})
        self.headers = {name: value for name, value in headers.items() if name.lower() == "mcp-session-id"}
        post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, self.headers)

    def ask(self, method: str, **params: Any) -> Any:
        """Return the result of a request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return post(self.url, body, self.headers)[0]["result"]


def main(server: Server, prompt: str) -> None:
    """Let the model call tools until it writes no call or a call fails."""
    tools = [
        {"type": "function", "function": {"name": each["name"], "parameters": each["inputSchema"]}}
        for each in server.ask("tools/list")["tools"]
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for _ in range(TURNS):
        url, body = f"{os.environ['OPENAI_BASE_URL']}/chat/completions", {"messages": messages, "tools": tools}
        message = post(url, {"model": "tiny", **body}, {"authorization": "Bearer none"})[0]["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            result = server.ask("tools/call", name=function["name"], arguments=json.loads(function["arguments"]))
            if result.get("isError"):
                return
            text = " ".join(part.get("text", "") for part in result["content"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not message.get("tool_calls"):
            return


main(Server(sys.argv[1]), sys.argv[2])
