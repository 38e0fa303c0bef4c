"""Reward functions of a user's own in TRL's GRPOTrainer on CPU, with a tiny model: COIN BOOTH.

Prints the rewards of the environment and the advantages of each episode of a batch, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from door_script import written
from on_cpu import arguments_of
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from trl_program import tokenizer_of

from mcpenv_client.trainers.trl import McpenvSpec, masked
from mcpenv_client.trainers.trl_rollouts import McpenvRollouts
from mcpenv_client.trainers.trl_world_rollouts import MixedRollouts
from mcpenv_client.trainers.trl_worlds import MixedSpec


class Recording(GRPOTrainer):  # type: ignore[misc]  # trl has no types
    """The trainer, which keeps the advantages and the prompts, as the model gets them, of its last batch."""

    advantages: list[float]
    prompts: list[str]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.advantages = output["advantages"].tolist()
        self.prompts = self.processing_class.batch_decode(output["prompt_ids"])
        return output


def half(completions: list[Any], **columns: Any) -> list[float | None]:
    """Return half a point for each episode."""
    return [0.5] * len(completions)


async def late(completions: list[Any], **columns: Any) -> list[float | None]:
    """Return the same later."""
    return half(completions)


FUNCTIONS: dict[str, Any] = {"plain": half, "masked": masked(half), "async": late, "masked async": masked(late)}


def spoken(url: str, trainer: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the rollout of a model that writes to its user."""
    texts = ["How many?", written("sell", {"count": 2}), "Here you are."]

    def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        turns = [tokenizer.decode(prompt).count("<|im_start|>assistant") - 1 for prompt in prompts]
        return [tokenizer(f"{texts[turn]}<|im_end|>")["input_ids"] for turn in turns]

    rollouts = McpenvRollouts(url, generate=generate)
    given = rollouts([row["prompt"] for row in rollouts.train_dataset], trainer)
    (ids,) = given["completion_ids"]
    return {"rewards": given["episode_reward"], "text": tokenizer.decode(ids)}


def cut(url: str, trainer: Any, tokenizer: Any) -> list[Any]:
    """Return if episodes with one answer are truncated: cut at the limit, cut before, as long as the limit, short."""
    limit = trainer.max_completion_length
    word, end = tokenizer("a")["input_ids"], [tokenizer.eos_token_id]
    answers = [word * limit, word * 5, [*word * (limit - 1), *end], [*word, *end]]
    rollouts = McpenvRollouts(url, generate=lambda trainer, prompts: [answer for _ in prompts])
    ends = []
    for answer in answers:
        given = rollouts([row["prompt"] for row in rollouts.train_dataset], trainer)
        assert given["completion_ids"] == [answer]
        ends.append(rollouts.slots(1)[0].ending.truncated)
    return ends


def mixed_rollouts(coin: str, booth: str, **trained: Any) -> dict[str, Any]:
    """Train on two worlds at once by rollouts; return what a reward function sees of each episode, and the logs."""
    seen: list[list[Any]] = []
    batches: list[int] = []
    tokenizer = trained["processing_class"]

    def look(world: list[str], task_id: list[str], episode_reward: list[Any], **columns: Any) -> list[float]:
        seen.extend([*each] for each in zip(world, task_id, episode_reward, strict=True))
        return [0.0] * len(world)

    def stop(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        batches.append(len(prompts))
        return [tokenizer("Done.<|im_end|>")["input_ids"]] * len(prompts)

    rollouts = MixedRollouts({"coin": coin, "booth": booth}, generate=stop, max_turns=2)
    trainer = Recording(
        train_dataset=rollouts.train_dataset,
        rollout_func=rollouts,
        reward_funcs=[*rollouts.reward_funcs, masked(look)],
        **trained,
    )
    trainer.train()
    return {"seen": seen, "prompts": trainer.prompts, "logged": trainer.state.log_history, "batches": batches}


def mixed(coin: str, booth: str, **trained: Any) -> dict[str, Any]:
    """Train on two worlds at once; return what a reward function sees of each episode, and the logs."""
    seen: list[list[Any]] = []

    def look(environments: list[Any], world: list[str], task_id: list[str], **columns: Any) -> list[float]:
        seen.extend(
            [of, type(each).__name__, each.get_reward(), task]
            for each, of, task in zip(environments, world, task_id, strict=True)
        )
        return [0.0] * len(environments)

    spec = MixedSpec({"coin": coin, "booth": booth})
    trainer = Recording(
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=[*spec.reward_funcs, masked(look)],
        **trained,
    )
    trainer.train()
    return {"seen": seen, "prompts": trainer.prompts, "logged": trainer.state.log_history}


def main(coin: str, booth: str) -> None:
    """Score a batch for each function, by environments and by rollouts."""
    torch.set_num_threads(1)
    tokenizer = tokenizer_of(qwen3_chat_template)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **sizes, **heads, **ends)
    )
    arguments = arguments_of(
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=100,
    )

    def stop(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        return [tokenizer("Done.<|im_end|>")["input_ids"]] * len(prompts)

    found: dict[str, Any] = {}
    for name, function in FUNCTIONS.items():
        set_seed(1)
        spec = McpenvSpec(coin)
        trainer = Recording(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=[*spec.reward_funcs, function],
        )
        trainer.train()
        rewards = [each.ending.reward for each in trainer.environments]
        found[f"{name}, spec"] = [rewards, trainer.advantages]
        rollouts = McpenvRollouts(coin, generate=stop)
        trainer = Recording(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=rollouts.train_dataset,
            rollout_func=rollouts,
            reward_funcs=[*rollouts.reward_funcs, function],
        )
        trainer.train()
        found[f"{name}, rollouts"] = [[each.ending.reward for each in rollouts._slots], trainer.advantages]
    arguments.num_generations, arguments.logging_steps = 2, 1
    trained = {"model": model, "args": arguments, "processing_class": tokenizer}
    both = {"mixed": mixed(coin, booth, **trained), "mixed rollouts": mixed_rollouts(coin, booth, **trained)}
    ends = {"spoken": spoken(booth, trainer, tokenizer), "cut": cut(coin, trainer, tokenizer)}
    print(json.dumps({"batches": found, **ends, **both}))


if __name__ == "__main__":
    main(*sys.argv[1:])
