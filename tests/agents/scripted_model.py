"""A model endpoint for agent programs: it calls a tool whose name ends with ``add`` twice, and then says so.

It speaks the streams of four APIs: Anthropic's messages, OpenAI's responses and chat completions, and Gemini's
``streamGenerateContent``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMES = 2
"""Calls of the tool in one conversation."""

DONE = "I have counted to two."

SEARCH = "ToolSearch"
"""The tool by which Claude Code's model asks for the schemas of further tools."""

JSON = dict[str, Any]


class ScriptedModel:
    """The endpoint.

    Args:
        answering: returns content type and body of the answer to a path and a body.

    Attributes:
        url: its base URL.
        asked: the path and the body of every request, in order.
    """

    def __init__(self, answering: Callable[[str, JSON], tuple[str | None, bytes]]) -> None:
        self.asked: list[tuple[str, JSON]] = []
        self._lock = threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                with model._lock:
                    model.asked.append((self.path, body))
                kind, answer = answering(self.path, body)
                self.send_response(200 if kind else 404)
                self.send_header("content-type", kind or "application/json")
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                self.send_response(404)
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def results(self) -> list[str]:
        """Return the numbers that the tool's results have in the last conversation that has any, in order."""
        for path, body in reversed(self.asked):
            found = [match for text in _result_texts(path, body) for match in re.findall(r"\d+", text)[-1:]]
            if found:
                return found
        return []

    def serve(self) -> None:
        self._server.serve_forever(0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def scripted_model(
    answering: Callable[[str, JSON], tuple[str | None, bytes]] | None = None,
) -> Iterator[ScriptedModel]:
    """Serve a model in a thread: the one of this module, or another."""
    model = ScriptedModel(answering or answered)
    thread = threading.Thread(target=model.serve)
    thread.start()
    try:
        yield model
    finally:
        model.stop()
        thread.join()


def answered(path: str, body: JSON) -> tuple[str | None, bytes]:
    """Return content type and body of the answer to one request; None and an error for other paths."""
    path = path.partition("?")[0]
    if path.endswith("/messages/count_tokens"):
        return "application/json", b'{"input_tokens": 10}'
    if path.endswith("/messages"):
        return stream_of(_anthropic(body)) if body.get("stream") else ("application/json", _dumps(_message(body)))
    if path.endswith("/responses"):
        return stream_of(_responses(body))
    if path.endswith("/chat/completions"):
        return _chat(body)
    if ":streamGenerateContent" in path:
        return stream_of([(None, _gemini(body))])
    if ":generateContent" in path:
        return "application/json", _dumps(_gemini(body))
    if ":countTokens" in path:
        return "application/json", b'{"totalTokens": 10}'
    return None, b"{}"


def _next(tools: list[str], results: int) -> str | None:
    """Return the name of the tool to call next; None to end."""
    found = [name for name in tools if name.endswith("add")]
    return found[0] if found and results < TIMES else None


def _result_texts(path: str, body: JSON) -> Iterator[str]:
    """Yield the text of each result of the tool in a request."""
    if "/messages" in path:
        blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
        adding = {block["id"] for block in blocks if block["type"] == "tool_use" and block["name"].endswith("add")}
        for block in blocks:
            if block["type"] == "tool_result" and block["tool_use_id"] in adding:
                yield _text(block["content"])
    elif "/responses" in path:
        for item in body["input"]:
            if item.get("type") == "function_call_output":
                yield _text(item["output"])
    elif "/chat/completions" in path:
        for message in body["messages"]:
            if message["role"] == "tool":
                yield _text(message["content"])
    else:
        for content in body.get("contents", ()):
            for part in content.get("parts", ()):
                if "functionResponse" in part:
                    yield json.dumps(part["functionResponse"]["response"])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


# -- Anthropic's messages


def _message(body: JSON) -> JSON:
    blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
    used = [block["name"] for block in blocks if block["type"] == "tool_use"]
    names = [tool["name"] for tool in body.get("tools", ())]
    tool: str | None = _next(names, sum(name.endswith("add") for name in used))
    given: JSON = {"by": 1}
    deferred = re.search(r"mcp__\w+?__add\b", json.dumps(body))
    if tool is None and SEARCH in names and deferred is not None and not used:
        # Claude Code lists the tools of MCP servers by name only, until the model asks for them.
        tool, given = SEARCH, {"query": f"select:{deferred[0]}"}
    content: JSON = {"type": "text", "text": DONE}
    if tool is not None:
        content = {"type": "tool_use", "id": f"toolu_{len(blocks)}", "name": tool, "input": given}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": [content],
        "stop_reason": "end_turn" if tool is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def _anthropic(body: JSON) -> list[tuple[str | None, JSON]]:
    message = _message(body)
    (block,) = message["content"]
    if block["type"] == "text":
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    started = {**message, "content": [], "stop_reason": None}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events: list[JSON] = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


# -- OpenAI's responses and chat completions


def _responses(body: JSON) -> list[tuple[str | None, JSON]]:
    results = sum(item.get("type") == "function_call_output" for item in body["input"])
    names, namespace = _functions(body.get("tools", ()))
    tool = _next(names, results)
    item: JSON = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": DONE, "annotations": []}]
    if tool is not None:
        item = {"type": "function_call", "id": f"fc_{results}", "call_id": f"call_{results}", "name": tool}
        item |= {"arguments": '{"by": 1}', "status": "completed"}
        if namespace.get(tool):
            item["namespace"] = namespace[tool]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    response = {"id": f"resp_{results}", "object": "response", "status": "in_progress", "output": []}
    completed = {**response, "status": "completed", "output": [item], "usage": usage}
    events: list[JSON] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": completed},
    ]
    return [(event["type"], event) for event in events]


def _functions(tools: Any) -> tuple[list[str], dict[str, str]]:
    """Return the names of functions, and their namespaces where they stand in one."""
    names, namespaces = [], {}
    for tool in tools:
        if tool.get("type") == "function":
            names.append(tool["name"])
        elif tool.get("type") == "namespace":
            for function in tool.get("tools", ()):
                names.append(function["name"])
                namespaces[function["name"]] = tool["name"]
    return names, namespaces


def _chat(body: JSON) -> tuple[str | None, bytes]:
    results = sum(message["role"] == "tool" for message in body["messages"])
    tool = _next([each["function"]["name"] for each in body.get("tools", ())], results)
    message: JSON = {"role": "assistant", "content": DONE}
    if tool is not None:
        function = {"name": tool, "arguments": '{"by": 1}'}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"index": 0, "id": f"call_{results}", "type": "function", "function": function}]
    reason = "stop" if tool is None else "tool_calls"
    whole = {"id": "chat_1", "created": 1, "model": body.get("model", "scripted")}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return "application/json", _dumps({**whole, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**whole, "object": "chat.completion.chunk"}
    chunks = [
        {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    ]
    kind, data = stream_of([(None, each) for each in chunks])
    return kind, data + b"data: [DONE]\n\n"


# -- Gemini


def _gemini(body: JSON) -> JSON:
    parts = [part for content in body.get("contents", ()) for part in content.get("parts", ())]
    declared = [each for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
    tool = _next([each["name"] for each in declared], sum("functionResponse" in part for part in parts))
    part: JSON = {"text": DONE} if tool is None else {"functionCall": {"name": tool, "args": {"by": 1}}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}


def stream_of(events: list[tuple[str | None, JSON]]) -> tuple[str, bytes]:
    """Return content type and body of a stream of named events."""
    lines = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(event)}\n\n" for name, event in events]
    return "text/event-stream", "".join(lines).encode()


def _dumps(value: JSON) -> bytes:
    return json.dumps(value).encode()
