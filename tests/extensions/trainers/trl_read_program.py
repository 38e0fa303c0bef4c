"""Trains on exported rows: FILE, of one group. Prints what the trainer's loss got of them, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from on_cpu import arguments_of
from small_tokenizer import tokenizer_of
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOTrainer

INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages")


class Shown(GRPOTrainer):  # type: ignore[misc]
    """A trainer that keeps what its loss gets."""

    got: dict[str, Any]

    def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
        self.got = {name: inputs[name].tolist() for name in INPUTS}
        return super().compute_loss(model, inputs, **options)


def main(file: str) -> None:
    """Train for one step."""
    set_seed(1)
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    tokenizer = tokenizer_of()
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 16}
    config = Qwen3Config(vocab_size=len(tokenizer), num_hidden_layers=1, intermediate_size=16, **heads)
    arguments = arguments_of(
        max_steps=1,
        learning_rate=0.1,
        per_device_train_batch_size=len(rows),
        num_generations=len(rows),
    )
    trainer = Shown(
        model=Qwen3ForCausalLM(config),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "Go."}]),
        rollout_func=lambda prompts, trainer: {name: [row[name] for row in rows] for name in rows[0]},
        reward_funcs=lambda episode_reward, **_: episode_reward,
    )
    before = [each.detach().clone() for each in trainer.model.parameters()]
    trainer.train()
    learned = any(not torch.equal(one, other) for one, other in zip(before, trainer.model.parameters(), strict=True))
    (step,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(json.dumps({**trainer.got, "learned": learned, "reward": step["reward"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
