"""The endpoint of OpenAI's chat completions, which also streams, whose model plays by `door_script`."""

from __future__ import annotations

import json
import threading
from typing import Any

from door_script import call_of, written
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class DoorPlayer:
    """The endpoint.

    Attributes:
        asked: the bodies of all requests.

    Args:
        as_text: the model's calls are left in its text, as by an endpoint that does not read them.
        cut: the model's messages are cut off before they have a call.
    """

    def __init__(self, *, as_text: bool = False, cut: bool = False) -> None:
        self.as_text = as_text
        self.cut = cut
        self.asked: list[dict[str, Any]] = []
        path = "/v1/chat/completions"
        self.app = Starlette(routes=[Route(path, self._complete, methods=["POST"])])

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the last request."""
        found: list[dict[str, Any]] = self.asked[-1]["tools"]
        return found

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        prompt = "\n".join(_text_of(message) for message in body["messages"] if message["role"] == "user")
        answers = [_text_of(message) for message in body["messages"] if message["role"] == "tool"]
        names = {tool["function"]["name"] for tool in body.get("tools") or ()}
        called = call_of(prompt, answers, speaks="respond" in names)
        message: dict[str, Any] = {"role": "assistant", "content": "Done." if called is None else ""}
        if self.cut:
            message["content"] = "Let me"
        elif called is not None and self.as_text:
            message["content"] = written(*called)
        elif called is not None:
            function = {"name": called[0], "arguments": json.dumps(called[1])}
            message["tool_calls"] = [
                {"index": 0, "id": f"call-{len(answers)}", "type": "function", "function": function}
            ]
        reason = "length" if self.cut else "tool_calls" if "tool_calls" in message else "stop"
        if not body.get("stream"):
            return JSONResponse(_chunk(body, "chat.completion", {"message": message, "finish_reason": reason}))
        chunks = [
            _chunk(body, "chat.completion.chunk", {"delta": message, "finish_reason": None}),
            _chunk(body, "chat.completion.chunk", {"delta": {}, "finish_reason": reason}),
        ]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        return StreamingResponse(iter(lines), media_type="text/event-stream")


class Stalls(DoorPlayer):
    """The player, which answers that many requests. Those after them last until their clients leave."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers
        self.stalled = threading.Event()

    async def _complete(self, request: Request) -> Response:
        answer = await super()._complete(request)
        if len(self.asked) > self.answers:
            self.stalled.set()
            while (await request.receive())["type"] != "http.disconnect":
                pass
        return answer


def _chunk(body: dict[str, Any], kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    head = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"], "usage": usage}
    return {**head, "choices": [{"index": 0, **choice}]}


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
