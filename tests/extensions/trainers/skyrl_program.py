"""Rollouts by SkyRL's own generator in a Python that has it and the client, but no server.

Arguments: DOORS SHOP DIARY BOOTH DISK.

The inference engine is scripted. Prints what the generator returned as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import skyrl_gym
from door_script import call_of, written
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.base import TrajectoryID
from small_tokenizer import tokenizer_of

from mcpenv_client.trainers.failures import EpisodeFailed
from mcpenv_client.trainers.skyrl import register, rows
from mcpenv_client.trainers.skyrl_generator import RetryingGenerator


class ScriptedEngine:
    """Answers as the script says, by the text of the prompt."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.prompts: list[str] = []

    async def generate(self, engine_input: Any, model: str | None = None) -> dict[str, Any]:
        """Return one answer."""
        text = self.tokenizer.decode(engine_input["prompt_token_ids"][0])
        self.prompts.append(text)
        _, *turns = text.split("<tool_response>")
        call = call_of(text, [turn.partition("</tool_response>")[0] for turn in turns])
        said = (
            "Done." if call is None else f"<tool_call>{json.dumps({'name': call[0], 'arguments': call[1]})}</tool_call>"
        )
        ids = self.tokenizer.encode(said + "<|im_end|>")
        return {"responses": [said], "response_ids": [ids], "stop_reasons": ["stop"], "response_logprobs": None}

    async def finish_session(self, session_id: str) -> None:
        """Do nothing."""


async def generated(generator: Any, given: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the generator makes of rows, each twice as one group."""
    batch = [(row, repetition) for row in given for repetition in range(2)]
    extras = [{name: value for name, value in row.items() if name not in ("prompt", "env_class")} for row, _ in batch]
    return dict(
        await generator.generate(
            {
                "prompts": [row["prompt"] for row, _ in batch],
                "env_classes": [row["env_class"] for row, _ in batch],
                "env_extras": extras,
                "sampling_params": None,
                "trajectory_ids": [TrajectoryID(row["task_id"], repetition) for row, repetition in batch],
                "batch_metadata": None,
            }
        )
    )


def main(doors: str, shop: str, diary: str, booth: str, disk: str) -> None:
    """Play all rows."""
    register("doors", doors)
    register("shop", shop)
    tokenizer = tokenizer_of()
    engine = ScriptedEngine(tokenizer)
    config = GeneratorConfig(max_turns=5, max_input_length=100_000)
    generator = RetryingGenerator(config, SkyRLGymConfig(), engine, tokenizer)
    *sound, broken = rows("doors", doors)
    made = asyncio.run(generated(generator, sound))
    found: dict[str, Any] = {
        "rewards": [sum(each) if isinstance(each, list) else each for each in made["rewards"]],
        "groups": [each.to_string() for each in made["trajectory_ids"] or []],
        "metrics": made["rollout_metrics"],
        "masked": [0 in mask and 1 in mask for mask in made["loss_masks"]],
    }
    begun = len(engine.prompts)
    try:
        asyncio.run(generated(generator, [broken]))
    except EpisodeFailed as error:
        found["failed"] = str(error)
    found["attempts"] = sum("Number 2." in prompt for prompt in engine.prompts[begun:])
    made = asyncio.run(generated(generator, rows("shop", shop)))
    found["bought"] = [sum(each) if isinstance(each, list) else each for each in made["rewards"]]
    (tools,) = {prompt.split("<tools>\n")[1].split("\n</tools>")[0] for prompt in engine.prompts[-2:]}
    found["tool"] = json.loads(tools)
    register("booth", booth)
    made = asyncio.run(generated(generator, rows("booth", booth)))
    found["booth"] = [sum(each) if isinstance(each, list) else each for each in made["rewards"]]
    found["prompt of booth"] = engine.prompts[-1]
    for name, mask in (("disk, masked", True), ("disk, kept", False)):
        register(name, disk, mask_failed_steps=mask)
        made = asyncio.run(generated(generator, rows(name, disk)))
        found[name] = sorted(sum(each) if isinstance(each, list) else each for each in made["rewards"])
    env = skyrl_gym.make("doors", extras={"split": "train", "index": 0})
    env.init([])
    env.step('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    found["cut"] = env.get_metrics()
    env.close()
    register("diary", diary)
    env = skyrl_gym.make("diary", extras={"split": "train", "index": 0})
    for unscored in (lambda: env.step(written("write", {"text": "Dear diary"})), env.get_metrics):
        env.init([])
        try:
            unscored()
        except EpisodeFailed as error:
            found.setdefault("unscored", []).append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
