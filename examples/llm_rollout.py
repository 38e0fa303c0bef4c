"""Let a model act in an environment through its tools, on any OpenAI-compatible endpoint.

Run it::

    python examples/llm_rollout.py --base-url http://127.0.0.1:11434/v1 --model qwen3
    python examples/llm_rollout.py --base-url https://api.openai.com/v1 --model gpt-5-mini   # OPENAI_API_KEY

Prints one line per call and the return. ``--env URL`` plays on a server instead of in this process.
"""

import argparse
import json
import os
from typing import Any

import httpx
from write_an_environment import GuessNumber

from mcpenv_client import EnvClient


def rollout(env: Any, model: httpx.Client, name: str, seed: int, max_turns: int = 20) -> float:
    """Play one episode and return its return. ``env`` is an environment, or ``EnvClient(url).sync()``."""
    first = env.reset(seed=seed)
    task = getattr(first, "observation", first).metadata["task"]
    tools = [tool.to_openai() for tool in env.list_tools()]
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    score: float = 0.0
    for _ in range(max_turns):
        request = {"model": name, "messages": messages, "tools": tools}
        reply = model.post("chat/completions", json=request).raise_for_status().json()["choices"][0]["message"]
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        for call in reply["tool_calls"]:
            step = env.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
            print(f"{call['function']['name']}({call['function']['arguments']}): {step.text}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": step.text})
            score = step.info["return"] or 0.0  # None while nothing was scored
            if step.done:
                return score
    return score


arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--base-url", required=True)
arguments.add_argument("--model", required=True)
arguments.add_argument("--env", metavar="URL", help="a server: mcpenv run examples/write_an_environment.py")
arguments.add_argument("--seed", type=int, default=7)
given = arguments.parse_args()
headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}

with httpx.Client(base_url=given.base_url, headers=headers, timeout=120) as model:
    with EnvClient(given.env).sync() if given.env else GuessNumber() as env:
        score = rollout(env, model, given.model, given.seed)
print(f"return: {score}")
assert -1.2 <= score <= 1.0
