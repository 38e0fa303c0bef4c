"""A step that fails by no fault of the agent in TRL's GRPOTrainer on CPU: DISK MASK.

Of a group of four, three episodes save once and the last does nothing. Prints the rewards, statuses and advantages of a
group by environments and of one by rollouts, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from door_script import written
from on_cpu import arguments_of
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl.chat_template_utils import qwen3_chat_template
from trl_masked_program import Recording
from trl_program import tokenizer_of

from mcpenv_client.trainers.trl import McpenvSpec
from mcpenv_client.trainers.trl_rollouts import McpenvRollouts

GROUP = 4


def answers(tokenizer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Return the model's next message of each episode."""
    texts = ["Done."] * len(prompts)
    if all("\n<tool_response>" not in tokenizer.decode(prompt) for prompt in prompts):
        texts[:-1] = [written("save", {})] * (GROUP - 1)
    return [tokenizer(f"{text}<|im_end|>")["input_ids"] for text in texts]


class Scripted(Recording):
    """The trainer, whose model follows the script."""

    def _generate_single_turn(self, prompt_ids: Any, *given: Any, **more: Any) -> Any:
        return answers(self.processing_class, prompt_ids), None


def main(disk: str, mask: bool) -> None:
    """Train a step in each way."""
    torch.set_num_threads(1)
    set_seed(1)
    tokenizer = tokenizer_of(qwen3_chat_template)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    given: dict[str, Any] = {
        "model": Qwen3ForCausalLM(
            Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **sizes, **heads, **ends)
        ),
        "args": arguments_of(
            max_steps=1, per_device_train_batch_size=GROUP, num_generations=GROUP, max_completion_length=100
        ),
        "processing_class": tokenizer,
    }
    spec = McpenvSpec(disk, mask_failed_steps=mask)
    trainer = Scripted(
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        **given,
    )
    trainer.train()
    endings = [each.ending for each in trainer.environments]
    found = {"spec": [[each.reward for each in endings], [each.status.code.value for each in endings]]}
    found["spec"].append(trainer.advantages)

    def script(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        return answers(tokenizer, prompts)

    rollouts = McpenvRollouts(disk, generate=script, mask_failed_steps=mask)
    trainer = Recording(
        train_dataset=rollouts.train_dataset, rollout_func=rollouts, reward_funcs=rollouts.reward_funcs, **given
    )
    trainer.train()
    endings = [each.ending for each in rollouts._slots]
    found["rollouts"] = [[each.reward for each in endings], [each.status.code.value for each in endings]]
    found["rollouts"].append(trainer.advantages)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "True")
