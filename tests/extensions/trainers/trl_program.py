"""A run of TRL's GRPOTrainer on CPU with a tiny model, in a Python that has trl but no server: URL SHOP_URL.

Prints what the trainer logged, and what its chat template shows of a tool's schema, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from door_script import BOUGHT, written
from on_cpu import arguments_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template, qwen3_template

from mcpenv_client import ToolNotExpressible
from mcpenv_client.trainers.trl import McpenvSpec
from mcpenv_client.trainers.trl_rollouts import McpenvRollouts

MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALL = '<tool_call>\n{"name": "open_door", "arguments": {"colour": "red"}}\n</tool_call><|im_end|>'


def tokenizer_of(text: str) -> Any:
    """Return a small tokenizer, trained on a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=500, special_tokens=["<pad>", *MARKS], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = qwen3_chat_template
    tokenizer.response_template = qwen3_template
    return tokenizer


def imitate(model: Any, tokenizer: Any, prompts: list[str]) -> None:
    """Teach the model to open the red door, and then to stop, so that there are calls to learn from."""
    answered = "<|im_start|>user\n<tool_response>\nopened\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    texts = [(f"{prompt}", f"{CALL}") for prompt in prompts]
    texts += [(f"{prompt}{CALL}\n{answered}", "Done.<|im_end|>") for prompt in prompts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        for before, after in texts:
            given, wanted = tokenizer(before)["input_ids"], tokenizer(after)["input_ids"]
            ids = torch.tensor([given + wanted])
            labels = torch.tensor([[-100] * len(given) + wanted])
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def scripted(url: str, trainer: Any, tokenizer: Any) -> dict[str, Any]:
    """Return what rollouts give for a model that looks, then opens the red door or breaks the verifier."""
    look = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
    broken = '<tool_call>\n{"name": "break_verifier", "arguments": {}}\n</tool_call><|im_end|>'

    def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        texts = []
        for at, text in enumerate(map(tokenizer.decode, prompts)):
            texts.append([look, broken if at else CALL, "Done.<|im_end|>"][text.count("\n<tool_response>")])
        return [tokenizer(text)["input_ids"] for text in texts]

    rollouts = McpenvRollouts(url, generate=generate, max_turns=3)
    given = rollouts([row["prompt"] for row in rollouts.train_dataset.select([0, 1])], trainer)
    trained = [
        tokenizer.decode([token for token, kept in zip(ids, mask, strict=True) if kept])
        for ids, mask in zip(given["completion_ids"], given["env_mask"], strict=True)
    ]
    return {**given, "trained": trained, "texts": [tokenizer.decode(ids) for ids in given["completion_ids"]]}


def met(url: str, trainer: Any, tokenizer: Any) -> list[str]:
    """Return the texts of four rollouts whose tool returns once all of them call it."""
    texts = ['<tool_call>\n{"name": "meet", "arguments": {}}\n</tool_call><|im_end|>', "Done.<|im_end|>"]

    def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        turns = [tokenizer.decode(prompt).count("\n<tool_response>") for prompt in prompts]
        return [tokenizer(texts[turn])["input_ids"] for turn in turns]

    rollouts = McpenvRollouts(url, split=None, num_tasks=4, generate=generate)
    given = rollouts([row["prompt"] for row in rollouts.train_dataset], trainer)
    return [tokenizer.decode(ids) for ids in given["completion_ids"]]


def bought(url: str, trainer: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the tool in the prompt of a rollout, and the reward for a call with nested arguments."""
    texts = [f"{written('buy', BOUGHT)}<|im_end|>", "Done.<|im_end|>"]

    def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        turns = [tokenizer.decode(prompt).count("\n<tool_response>") for prompt in prompts]
        return [tokenizer(texts[turn])["input_ids"] for turn in turns]

    rollouts = McpenvRollouts(url, generate=generate)
    given = rollouts([row["prompt"] for row in rollouts.train_dataset], trainer)
    (prompt,) = map(tokenizer.decode, given["prompt_ids"])
    shown = json.loads(prompt.partition("<tools>\n")[2].partition("\n</tools>")[0])
    return {"tool": shown, "rewards": given["episode_reward"]}


def twice(url: str, trainer: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the texts of a rollout whose first answer has two calls: all, and what is trained on."""
    look = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    texts = {0: f"{look}\n{look}<|im_end|>", 2: CALL}

    def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        seen = [tokenizer.decode(prompt).count("\n<tool_response>") for prompt in prompts]
        return [tokenizer(texts[answers])["input_ids"] for answers in seen]

    rollouts = McpenvRollouts(url, generate=generate, max_turns=3)
    given = rollouts([rollouts.train_dataset[0]["prompt"]], trainer)
    ids, mask = given["completion_ids"][0], given["env_mask"][0]
    trained = [token for token, kept in zip(ids, mask, strict=True) if kept]
    return {"text": tokenizer.decode(ids), "trained": tokenizer.decode(trained), "reward": given["episode_reward"][0]}


def unbegun(url: str, trainer: Any) -> dict[str, Any]:
    """Return what a rollout gives whose reset fails each time."""
    rollouts = McpenvRollouts(url, split=None, num_tasks=2, retries=1)
    given = rollouts([rollouts.train_dataset[1]["prompt"]], trainer)
    return {**given, "end": trainer.processing_class.eos_token_id}


def main(url: str, shop_url: str, together_url: str, late_url: str) -> None:
    """Train for two steps."""
    torch.set_num_threads(1)
    set_seed(1)
    tokenizer = tokenizer_of(qwen3_chat_template + CALL + '{"type": "function", "properties": {"colour": {}}}' * 9)
    shop = McpenvSpec(shop_url, processing_class=tokenizer)
    shown = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tools=shop.tools, tokenize=False)
    lines = shown.partition("<tools>\n")[2].partition("\n</tools>")[0]
    whole = json.loads(lines) == shop.tools[0]
    tokenizer.chat_template = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}"
    try:
        McpenvSpec(shop_url, processing_class=tokenizer)
    except ToolNotExpressible as error:
        refused = str(error)
    tokenizer.chat_template = qwen3_chat_template

    spec = McpenvSpec(url, processing_class=tokenizer)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"Number {at}."}], tools=spec.tools, tokenize=False, add_generation_prompt=True
        )
        for at in range(3)
    ]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), max_position_embeddings=4096, tie_word_embeddings=True, **sizes, **heads, **ends
        )
    )
    imitate(model, tokenizer, prompts)
    arguments = arguments_of(
        max_steps=2,
        per_device_train_batch_size=6,
        num_generations=2,
        max_completion_length=120,
        max_tool_calling_iterations=3,
    )
    trainer = GRPOTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
    )
    trainer.train()
    rollouts = McpenvRollouts(url, max_turns=3)
    beside = GRPOTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=rollouts.train_dataset,
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
    beside.train()
    side = {"logged": beside.state.log_history, "example": scripted(url, beside, tokenizer)}
    side["bought"] = bought(shop_url, beside, tokenizer)
    side["twice"] = twice(url, beside, tokenizer)
    side["unbegun"] = unbegun(late_url, beside)
    side["met"] = met(together_url, beside, tokenizer)
    ended = [environment.ending.status.code.value for environment in trainer.environments]
    print(
        json.dumps(
            {"logged": trainer.state.log_history, "ended": ended, "whole": whole, "refused": refused, "side": side}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
