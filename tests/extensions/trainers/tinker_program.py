"""Rollouts by tinker-cookbook in a Python that has it and the client, but no server: DOORS SHOP DIARY BOOTH.

The policy is scripted. Prints what the group rollouts returned as JSON.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from typing import Any

import tinker
from door_script import call_of
from small_tokenizer import tokenizer_of
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tokenizer_utils import register_tokenizer

from mcpenv_client import ToolNotExpressible
from mcpenv_client.trainers.failures import EpisodeFailed
from mcpenv_client.trainers.tinker_cookbook import McpenvDataset, McpenvDatasetBuilder


class ScriptedPolicy(TokenCompleter):
    """Answers as the script says, by the text of the prompt."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.prompts: list[str] = []

    async def __call__(self, model_input: tinker.ModelInput, stop: Any, *, max_tokens: int | None = None) -> Any:
        """Return one answer."""
        text = self.tokenizer.decode(model_input.to_ints())
        self.prompts.append(text)
        _, *turns = text.split("<tool_response>")
        answers = [turn.partition("</tool_response>")[0] for turn in turns]
        call = call_of(text, [answer for answer in answers if "Error" not in answer])
        said = (
            "Done."
            if call is None
            else f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"
        )
        if "Number 1." in text and not turns:
            said = "<tool_call>\n{not JSON}\n</tool_call>"
        ids = self.tokenizer.encode(said + "<|im_end|>", add_special_tokens=False)
        return TokensWithLogprobs(ids, [0.0] * len(ids))


class Names(Qwen3Renderer):
    """A renderer that writes the names of tools only."""

    def create_conversation_prefix_with_tools(self, tools: Any, system_prompt: str = "") -> Any:
        """Return the names."""
        return [{"role": "system", "content": " ".join(tool["name"] for tool in tools)}]


def main(doors: str, shop: str, diary: str, booth: str, many: str) -> None:
    """Play all groups."""
    tokenizer = tokenizer_of()
    register_tokenizer("test/tokenizer", lambda: tokenizer)
    policy = ScriptedPolicy(tokenizer)
    builder = McpenvDatasetBuilder(
        url=doors, model_name_for_tokenizer="test/tokenizer", renderer_name="qwen3", batch_size=2, group_size=2
    )
    dataset, _ = asyncio.run(builder())
    batches = [list(dataset.get_batch(index)) for index in range(len(dataset))]
    found: dict[str, Any] = {"batches": [len(batch) for batch in batches], "groups": {}}
    for group in (group for batch in batches for group in batch):
        copied = pickle.loads(pickle.dumps(group))
        try:
            played = asyncio.run(do_group_rollout(copied, policy, RetryOnFailure(max_retries=4)))
        except Exception as error:  # noqa: BLE001  # the strategy raises what the environment raised
            found["groups"][copied.row["task_id"]] = f"{type(error).__name__}: {error}"
        else:
            metrics = [trajectory.transitions[-1].metrics for trajectory in played.trajectories_G]
            found["groups"][copied.row["task_id"]] = {"rewards": played.get_total_rewards(), "metrics": metrics}
    renderer = get_renderer("qwen3", tokenizer)
    (group,) = McpenvDataset(shop, renderer, group_size=1).get_batch(0)
    found["bought"] = asyncio.run(do_group_rollout(group, policy)).get_total_rewards()
    bought = policy.prompts[-1]
    (group,) = McpenvDataset(booth, renderer, group_size=2).get_batch(0)
    played = asyncio.run(do_group_rollout(group, policy))
    turns = [len(trajectory.transitions) for trajectory in played.trajectories_G]
    found["booth"] = {"rewards": played.get_total_rewards(), "turns": turns, "last": policy.prompts[-1]}
    (group,) = McpenvDataset(diary, renderer, group_size=1).get_batch(0)
    try:
        asyncio.run(do_group_rollout(group, policy))
    except EpisodeFailed as error:
        found["unscored"] = str(error)
    dataset = McpenvDataset(many, renderer, batch_size=4, group_size=2)
    last = [group.row["task_id"] for group in dataset.get_batch(len(dataset) - 1)]
    found["many"] = {"batches": len(dataset), "tasks": last}
    found["tool"] = json.loads(bought.split("<tools>\n")[1].split("\n</tools>")[0])
    try:
        McpenvDataset(shop, Names(tokenizer))
    except ToolNotExpressible as error:
        found["refused"] = str(error)
    try:
        McpenvDataset(shop, get_renderer("llama3", tokenizer))
    except ToolNotExpressible as error:
        found["without tools"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
