"""Make preference data (DPO) of groups of episodes: in each group the best conversation and the worst one.

Run it::

    python examples/preference_pairs.py --out pairs.jsonl     # a careless script plays envs/ledger_mcp
    python examples/preference_pairs.py --out pairs.jsonl --env envs/office_mcp --base-url http://127.0.0.1:8000/v1

Each line has ``prompt``, ``chosen``, ``rejected`` and ``tools`` (a JSON text), as TRL's ``DPOTrainer`` takes chats.
A group whose returns are equal says nothing about what is better and makes no pair. An episode in which the world
failed, and not the agent, is in no pair.
"""

import argparse
import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from mcpenv import load
from mcpenv_client.pool import EnvPool, Episode, Played
from mcpenv_client.scores import equal

Message = dict[str, Any]
Model = Callable[[list[Message], list[Message]], Awaitable[Message]]


def careless(oracle: list[Any], seed: int) -> Model:
    """Return a model that makes the calls of a solution, but forgets some."""
    dice = random.Random(seed)
    left = [call for call in oracle if dice.random() < 0.8]

    async def model(messages: list[Message], tools: list[Message]) -> Message:
        if not left:
            return {"role": "assistant", "content": "Done."}
        call = left.pop(0)
        function = {"name": call.tool_name, "arguments": json.dumps(call.arguments)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        }

    return model


def endpoint(http: httpx.AsyncClient, name: str) -> Model:
    """Return the model of an endpoint of OpenAI's chat completions."""

    async def model(messages: list[Message], tools: list[Message]) -> Message:
        answer = await http.post("chat/completions", json={"model": name, "messages": messages, "tools": tools})
        message: Message = answer.raise_for_status().json()["choices"][0]["message"]
        return message

    return model


def pair_of(group: list[Played]) -> dict[str, Any] | None:
    """Return the preference that a group shows; None if it shows none."""
    scored = sorted((each for each in group if each.reward is not None), key=lambda each: each.reward or 0.0)
    if len(scored) < 2 or equal(scored[0].reward or 0.0, scored[-1].reward or 0.0):
        return None
    (worst, tools), (best, _) = scored[0].value, scored[-1].value
    prompt = [message for message in best if message["role"] in ("system", "user")][:1]
    answers = {"chosen": best[len(prompt) :], "rejected": worst[len(prompt) :]}
    return {"prompt": prompt, **answers, "tools": json.dumps(tools)}  # `load_dataset` would merge their schemas


async def main(given: argparse.Namespace) -> None:
    """Play the groups and write the pairs."""
    with load(given.env) as environment:
        tasks = environment.tasks.range(given.split, 0, given.tasks)
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
    groups: dict[int, list[Played]] = {}
    async with (
        httpx.AsyncClient(base_url=given.base_url or "http://localhost", headers=headers, timeout=300) as http,
        EnvPool(given.env, size=given.group) as pool,
    ):

        async def policy(episode: Episode) -> tuple[list[Message], list[Message]]:
            oracle = episode.assignment.row.oracle or []
            model = endpoint(http, given.model) if given.base_url else careless(oracle, episode.assignment.number)
            conversation = await episode.chat(max_turns=given.max_turns)
            while not conversation.done:
                seen = [dict(message) for message in conversation.visible]
                await conversation.act(await model(seen, conversation.tools.listed))
            return conversation.messages, conversation.tools.listed

        async for played in pool.play(policy, tasks, group=given.group, mask_failed_steps=True):
            groups.setdefault(played.assignment.group, []).append(played)
    pairs = [pair for group in groups.values() if (pair := pair_of(group)) is not None]
    if given.out is not None:
        given.out.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    print(f"{len(pairs)} pairs of {len(groups)} groups of {given.group} episodes")


arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--out", type=Path, help="the file of the pairs; without one, they are counted only")
arguments.add_argument("--env", default="envs/ledger_mcp")
arguments.add_argument("--split", default="train")
arguments.add_argument("--tasks", type=int, default=8, help="the number of tasks")
arguments.add_argument("--group", type=int, default=4, help="the episodes of each task")
arguments.add_argument("--max-turns", type=int, default=30)
arguments.add_argument("--base-url", help="an OpenAI-compatible endpoint; without one, a script plays")
arguments.add_argument("--model", default="default")
asyncio.run(main(arguments.parse_args()))
