"""Endpoint: a model that plays `Counting` as each prompt says; a real server of OpenAI's chat completions."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
Messages = list[dict[str, Any]]


def said(text: str, finish_reason: str = "stop", **message: Any) -> Answer:
    return 200, _completion({"role": "assistant", "content": text, **message}, finish_reason)


def called(*calls: tuple[str, Any]) -> Answer:
    """Calls in one message; arguments as JSON, or as the text that they are."""
    listed = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    return 200, _completion({"role": "assistant", "content": None, "tool_calls": listed}, "tool_calls")


def _completion(message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": message}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}}


def refused(status: int, message: str) -> Answer:
    return status, {"error": {"message": message}}


def counted(turn: int) -> Answer:
    """Add once a turn up to two, then stop."""
    return called(("add", {"by": 1})) if turn < 2 else said("I am there.")


SCRIPTS: dict[str, Callable[[int, int], Answer]] = {
    "solve": lambda turn, sample: counted(turn),
    "miss": lambda turn, sample: said("I would rather not."),
    "sometimes": lambda turn, sample: counted(turn) if turn or sample % 2 else said("Not today."),
    "loop": lambda turn, sample: called(("add", {"by": 0})),
    "cut": lambda turn, sample: called(("add", {"by": 0}), ("add", {"by": 0}), ("add", {"by": 0}), ("add", {"by": 0})),
    "scrawl": lambda turn, sample: called(("add", '{"by": ')),
    "stutter": lambda turn, sample: called(("add", "[1]")) if turn == 0 else counted(turn - 1),
    "both": lambda turn, sample: called(("add", {}), ("no_such", {}), ("add", "")) if turn == 0 else said("Both."),
    "refuse": lambda turn, sample: said("", refusal="I cannot help with that."),
    "long": lambda turn, sample: said("One, and then", "length"),
    "down": lambda turn, sample: (503, {}),
    "too_long": lambda turn, sample: counted(turn) if turn < 2 else refused(400, "too many tokens"),
    "odd_name": lambda turn, sample: called(("look_at_it", {})) if turn == 0 else counted(turn - 1),
    "Draw a number": lambda turn, sample: called(("draw", {})),
    "break_verify": lambda turn, sample: counted(turn),
}


class Endpoint:
    """The server.

    Attributes:
        url: its base URL.
        conversations: how many were begun, by prompt.
        asked: every request's body, in the order in which they came.
        keys: the Authorization header of each.
        hold_after: conversations that may begin; later ones wait until `release`.
    """

    def __init__(self) -> None:
        self.conversations: Counter[str] = Counter()
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.first: list[Answer] = []
        self.hold_after: int | None = None
        self.holding = threading.Semaphore(0)
        self._mutex = threading.Lock()
        self._samples: dict[str, int] = {}
        self._let_go = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = endpoint._answer(self.path, self.headers.get("Authorization"), body)
                data = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.send_header("Retry-After", "0")
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    """Whoever asked was killed."""

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def release(self) -> None:
        """Let conversations that wait begin, and all that come."""
        self.hold_after = None
        self._let_go.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, path: str, key: str | None, body: dict[str, Any]) -> Answer:
        messages: Messages = body["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages)
        with self._mutex:
            self.asked.append(body)
            self.keys.append(key)
            if path != "/v1/chat/completions":
                return refused(404, f"there is no {path}")
            if self.first:
                return self.first.pop(0)
            if turn == 0:
                self.conversations[prompt] += 1
            sample = self.conversations[prompt] - 1
            held = turn == 0 and self.hold_after is not None and self.conversations.total() > self.hold_after
        if held:
            self.holding.release()
            self._let_go.wait()
        # What a real endpoint refuses: a call without its answer, in its order, and arguments that are no JSON.
        asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        for message in messages:
            for call in message.get("tool_calls") or ():
                json.loads(call["function"]["arguments"])
        if asked != answered:
            return refused(400, f"calls {asked}, answers {answered}")
        return SCRIPTS[prompt.partition(":")[0]](turn, sample)


@contextmanager
def scripted_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    try:
        yield endpoint
    finally:
        endpoint.close()
