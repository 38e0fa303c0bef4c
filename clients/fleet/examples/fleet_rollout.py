"""Let a model do tasks of the Fleet platform, on any OpenAI-compatible endpoint.

Run it::

    export FLEET_API_KEY=...
    python clients/fleet/examples/fleet_rollout.py tasks.json --base-url http://127.0.0.1:11434/v1 --model qwen3

``tasks.json`` are tasks that the platform has exported. Prints one line per call, and the score of each task. With
``--context-tokens`` the model manages its own context: it drops old turns, and finds them again.
"""

import argparse
import json
import os
import sys
from typing import Any

import httpx

from mcpenv_client import ContextManager, MalformedToolCall
from mcpenv_fleet import FleetEnv, FleetTask, VerificationFailed, load_tasks


def rollout(
    task: FleetTask, model: httpx.Client, name: str, context_tokens: int | None, max_turns: int = 40
) -> float | None:
    """Play one task, and return the score that the platform's verifier gives."""
    context = ContextManager(context_tokens)
    of_context = [] if context_tokens is None else [tool.to_openai() for tool in context.tools]
    env, tools = FleetEnv.from_task(task, max_steps=max_turns, ttl_seconds=3600)
    with env:
        context.add({"role": "user", "content": env.reset().prompt})
        for _ in range(max_turns):
            request = {"model": name, "messages": context.visible, "tools": tools.to_openai() + of_context}
            reply = model.post("chat/completions", json=request).raise_for_status().json()["choices"][0]["message"]
            context.add(reply)
            if not reply.get("tool_calls"):
                return env.end(final_answer=reply.get("content")).reward
            for call in reply["tool_calls"]:
                called, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
                if context.owns(called):
                    text = answer_of(context, called, arguments)
                else:
                    step = env.call_tool(called, arguments)
                    if step.done:
                        return step.reward
                    text = step.text
                print(f"  {called}({json.dumps(arguments)}): {text}")
                context.add({"role": "tool", "tool_call_id": call["id"], "content": text})
        return env.end().reward


def answer_of(context: ContextManager, name: str, arguments: dict[str, Any]) -> str:
    """Return the answer of a context tool, or what is wrong with the call."""
    try:
        return context.answer(name, arguments)
    except MalformedToolCall as error:
        return str(error)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("tasks", help="a file of tasks")
parser.add_argument("--base-url", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--context-tokens", type=int, help="the tokens of the model's context, which it then manages")
given = parser.parse_args()
if not os.environ.get("FLEET_API_KEY"):
    sys.exit("set FLEET_API_KEY to the API key of your account at Fleet")

headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
scores: list[float] = []
with httpx.Client(base_url=given.base_url, headers=headers, timeout=120) as model:
    for task in load_tasks(given.tasks):
        print(f"{task.key}: {task.prompt}")
        try:
            score = rollout(task, model, given.model, given.context_tokens)
        except VerificationFailed as failure:
            print(f"  {failure}")
            continue
        print(f"  score: {score}")
        if score is not None:
            scores.append(score)
print(f"{len(scores)} tasks scored, mean {sum(scores) / len(scores) if scores else 0.0:g}")
