"""Train the model of an agent that cannot be changed on the tokens of the agent's own requests: rejection sampling.

``chat_agent.py`` stands for a coding agent: a process that knows a base URL and an MCP address. It plays
``coloured_doors.py``. A proxy records the token ids and log-probabilities of its model, and joins its calls to the
steps that were scored. The asserts hold for the tiny model and its server, which are here. With a real endpoint, such
as vLLM's, and a real command, such as Claude Code's, replace the model, what it learns, and the asserts::

    python examples/train_black_box.py 1
"""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from coloured_doors import COLOURS, ColouredDoors
from serving import HERE
from tiny_model import TinyModel

from mcpenv import read_episodes
from mcpenv.extensions.evaluation import ProgramAgent, evaluate
from mcpenv.extensions.model_proxy.upstream import Upstream
from mcpenv_client.samples import Sample, samples_of_recorded

ROUNDS, TASKS, TIMES, FULL = 3, 20, 4, 1.25


def completion(model: TinyModel, request: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of chat completions, with the fields that vLLM adds for ``return_token_ids``."""
    prompt: list[int] = []
    for message in request["messages"]:  # the chat template: texts, and calls as the model wrote them
        prompt += model.read(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            prompt += model.read(
                " ".join([call["function"]["name"], *json.loads(call["function"]["arguments"]).values()])
            )
    ids, logprobs = model.write(prompt)
    name, *values = words = model.text(ids)
    function = {"name": name, "arguments": json.dumps({"colour": values[0]} if values else {})}
    call = {"id": f"call-{len(prompt)}", "type": "function", "function": function}
    choice = {
        "index": 0,
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "token_ids": ids,
        "logprobs": {"content": [{"token": each[0], "logprob": each[1]} for each in zip(words, logprobs, strict=True)]},
    }
    return {"model": "tiny", "choices": [choice], "prompt_token_ids": prompt}


@contextmanager
def endpoint(model: TinyModel) -> Iterator[str]:
    """Yield the base URL of a server of the model."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(completion(model, request)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.send_header("x-policy-version", str(model.version))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def samples(record: Path) -> list[Sample]:
    """Return the samples of a record: the tokens of the agent's requests, with the rewards of its steps."""
    found: list[Sample] = []
    for episode in read_episodes(record):
        found += samples_of_recorded(episode.model_turns or [], episode.trajectory)
        assert not found[-1].left_out and found[-1].gap is None  # the agent changed nothing that its model had seen
    return [sample for sample in found if sample.usable]


def main(seed: int) -> None:
    """Play rounds of episodes and learn after each. Print the rewards of tasks that are not trained on."""
    model = TinyModel({"read_sign": [], "open_door": COLOURS}, seed)
    with TemporaryDirectory() as folder, endpoint(model) as url:
        command = f"{sys.executable} {HERE / 'chat_agent.py'} {{mcp_url}} {{prompt}}"
        agent = ProgramAgent(
            command, isolation="none", endpoint=Upstream(url, request_fields={"return_token_ids": True})
        )
        before = evaluate(ColouredDoors, agent, out=f"{folder}/before", split="test", n=24).summary.mean_return
        kept: list[Sample] = []
        for number in range(ROUNDS):
            out = Path(folder, f"round-{number}")
            evaluate(ColouredDoors, agent, out=out, split="train", n=TASKS, k=TIMES, seed=number)
            played = samples(out / "record")
            for sample in played:  # the tokens, the mask and the log-probabilities are those of this very model
                for at in [at for at, mine in enumerate(sample.mask) if mine]:
                    assert sample.policy_version == number and sample.logprobs
                    assert math.isclose(model.logs_at(sample, at)[sample.tokens[at]], sample.logprobs[at])
            good = [sample for sample in played if (sample.reward or 0.0) >= FULL]
            kept += [replace(each, advantage=2 / len(each.spans)) for each in good]  # a detour counts less
            model.learn(kept, rate=0.5, clip=None, epochs=40)
            print(f"round {number}: {len(played)} episodes, {len(kept)} samples kept so far")
        after = evaluate(ColouredDoors, agent, out=f"{folder}/after", split="test", n=24).summary.mean_return
    assert before is not None and after is not None
    print(f"reward {before.value:.2f} before, {after.value:.2f} after")
    assert after.value > before.value + 0.1


main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
