"""Let a model do tasks of the Fleet platform, on any OpenAI-compatible endpoint.

Run it::

    export FLEET_API_KEY=...
    python clients/fleet/examples/fleet_rollout.py tasks.json --base-url http://127.0.0.1:11434/v1 --model qwen3

``tasks.json`` are tasks that the platform has exported. Prints one line per call, and the score of each task.
"""

import argparse
import json
import os
import sys
from typing import Any

import httpx

from mcpenv_fleet import FleetEnv, FleetTask, VerificationFailed, load_tasks


def rollout(task: FleetTask, model: httpx.Client, name: str, max_turns: int = 40) -> float | None:
    """Play one task, and return the score that the platform's verifier gives."""
    env, tools = FleetEnv.from_task(task, max_steps=max_turns, ttl_seconds=3600)
    with env:
        messages: list[dict[str, Any]] = [{"role": "user", "content": env.reset().prompt}]
        for _ in range(max_turns):
            request = {"model": name, "messages": messages, "tools": tools.to_openai()}
            reply = model.post("chat/completions", json=request).raise_for_status().json()["choices"][0]["message"]
            messages.append(reply)
            if not reply.get("tool_calls"):
                return env.end(final_answer=reply.get("content")).reward
            for call in reply["tool_calls"]:
                function = call["function"]
                step = env.call_tool(function["name"], json.loads(function["arguments"] or "{}"))
                print(f"  {function['name']}({function['arguments']}): {step.text}")
                if step.done:
                    return step.reward
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": step.text})
        return env.end().reward


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("tasks", help="a file of tasks")
parser.add_argument("--base-url", required=True)
parser.add_argument("--model", required=True)
given = parser.parse_args()
if not os.environ.get("FLEET_API_KEY"):
    sys.exit("set FLEET_API_KEY to the API key of your account at Fleet")

headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
scores: list[float] = []
with httpx.Client(base_url=given.base_url, headers=headers, timeout=120) as model:
    for task in load_tasks(given.tasks):
        print(f"{task.key}: {task.prompt}")
        try:
            score = rollout(task, model, given.model)
        except VerificationFailed as failure:
            print(f"  {failure}")
            continue
        print(f"  score: {score}")
        if score is not None:
            scores.append(score)
print(f"{len(scores)} tasks scored, mean {sum(scores) / len(scores) if scores else 0.0:g}")
