"""Evaluate a model: it plays an environment twice from each of five seeds.

Here the model is a script behind a real endpoint of chat completions, so that this runs without a model. With one::

    mcpenv eval examples/write_an_environment.py --model gpt-5-mini -n 5 -k 2 --pass-threshold 1   # OPENAI_API_KEY

Run it::

    python examples/evaluate_a_model.py
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from mcpenv.extensions.evaluation import ModelAgent, evaluate
from mcpenv.trajectories import read_episodes

GUESS_NUMBER = Path(__file__).resolve().parent / "write_an_environment.py"


class Script(BaseHTTPRequestHandler):
    """A model that plays by bisection. In every second conversation it first asks for a hint, which costs 0.1."""

    conversations = 0

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        message = {"role": "assistant", "content": None, "tool_calls": self.next_calls(messages)}
        usage = {"prompt_tokens": 50 * len(messages), "completion_tokens": 10}
        body = json.dumps({"choices": [{"finish_reason": "tool_calls", "message": message}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def next_calls(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(messages) == 1:
            Script.conversations += 1
            if Script.conversations % 2 == 0:
                return [call("hint")]
        low, high, guessed = 1, 100, 0
        for message in messages:
            for made in message.get("tool_calls", ()):
                guessed = json.loads(made["function"]["arguments"]).get("number", 0)
            if message["content"] in ("higher", "lower"):
                low, high = (guessed + 1, high) if message["content"] == "higher" else (low, guessed - 1)
        return [call("guess", number=(low + high) // 2)]

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def call(name: str, **arguments: int) -> dict[str, Any]:
    return {"id": "call", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@contextmanager
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


with endpoint() as url, TemporaryDirectory() as out:
    model = ModelAgent("script", base_url=url)
    # An interrupted evaluation can be resumed by the same call, because finished episodes are in the folder.
    done = evaluate(str(GUESS_NUMBER), model, n=5, k=2, concurrency=1, pass_threshold=1.0, out=out)
    recorded = list(read_episodes(Path(out) / "record"))
    again = evaluate(str(GUESS_NUMBER), model, n=5, k=2, concurrency=1, pass_threshold=1.0, out=out)

summary = done.summary
for k, estimate in summary.pass_at.items():
    print(f"pass@{k}: {estimate.value:.2f}, tasks {estimate.tasks}, interval {estimate.interval}")
print(f"mean return: {summary.mean_return}, steps: {summary.mean_steps}, failures: {summary.failures}")
assert summary.finished == len(recorded) == Script.conversations == 10 and again.results == done.results
assert (summary.pass_at[1].value, summary.pass_at[2].value) == (0.5, 1.0)
assert summary.mean_return is not None and abs(summary.mean_return.value - 0.95) < 1e-9
assert not summary.failures
assert all(episode.messages and episode.messages[0]["role"] == "user" for episode in recorded)
