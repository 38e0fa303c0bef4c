"""Trainers that get Ctrl-C: TRAINER URL [API]. Each prints ``ready`` where its model is asked and does not answer soon.

In the world of `Stuck`, the model calls the tool that does not return.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from typing import Any

CALL = '<tool_call>\n{"name": "stick", "arguments": {}}\n</tool_call><|im_end|>'


def ready() -> None:
    """Say that the model is asked."""
    print("ready", flush=True)


def trl(url: str, by: str) -> None:
    """Train a tiny model of TRL, whose first answer is long."""
    import torch
    from on_cpu import arguments_of
    from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template
    from trl_program import tokenizer_of

    from mcpenv_client.trainers.trl import McpenvSpec
    from mcpenv_client.trainers.trl_rollouts import McpenvRollouts, generate

    class Says(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            ready()

    def stuck(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        return [tokenizer(CALL)["input_ids"] for _ in prompts]

    torch.set_num_threads(1)
    tokenizer = tokenizer_of(qwen3_chat_template)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 65536}
    marks = {"eos_token_id": None, "pad_token_id": tokenizer.pad_token_id}  # so that the answer has no end
    if by == "spec":
        spec: Any = McpenvSpec(url, split=None, num_tasks=4)
        given = {"environment_factory": spec.environment_factory}
    else:
        spec = McpenvRollouts(url, split=None, num_tasks=4, generate=stuck if by == "tool" else generate)
        given = {"rollout_func": spec}
    GRPOTrainer(
        model=Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads, **marks)),
        args=arguments_of(
            max_steps=9,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=60_000,
        ),
        processing_class=tokenizer,
        train_dataset=spec.train_dataset,
        reward_funcs=spec.reward_funcs,
        callbacks=[Says()],
        **given,
    ).train()


async def tinker(url: str, by: str) -> None:
    """Play a group of tinker-cookbook."""
    from small_tokenizer import tokenizer_of
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from mcpenv_client.trainers.tinker_cookbook import McpenvDataset

    tokenizer = tokenizer_of()

    class Asked(TokenCompleter):  # type: ignore[misc]  # tinker-cookbook is not installed here
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            if by == "model":
                await silence()
            ids = tokenizer.encode(CALL, add_special_tokens=False)
            return TokensWithLogprobs(ids, [0.0] * len(ids))

    dataset = await asyncio.to_thread(
        McpenvDataset, url, get_renderer("qwen3", tokenizer), split=None, num_tasks=1, group_size=2
    )
    await do_group_rollout(dataset.get_batch(0)[0], Asked())


async def atropos(url: str, by: str, api: str) -> None:
    """Play groups for the API of Atropos."""
    from mcpenv_client.pool import EnvPool
    from mcpenv_client.trainers.atropos import AtroposGroups

    async def policy(episode: Any) -> None:
        await (silence() if by == "model" else episode.call_tool("stick"))

    async with (
        EnvPool(url, 4, backend="remote") as pool,
        AtroposGroups(api, name="stuck", group_size=2, max_token_length=9) as groups,
    ):
        await groups.run(pool, policy, itertools.repeat({"seed": 1}))


async def agent(url: str, by: str) -> None:
    """Play an episode by an agent function, whose model's endpoint is asked within this process."""
    import httpx

    from mcpenv_client.trainers.agent_function import EpisodeAgent

    async def answer(request: httpx.Request) -> httpx.Response:
        if by == "model":
            await silence()
        function = {"name": "stick", "arguments": "{}"}
        message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        return httpx.Response(200, json={"choices": [{"message": message}]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await EpisodeAgent(url).run({"seed": 1}, base_url="http://model/v1", http_client=http)


async def skyrl(url: str, by: str) -> None:
    """Play a group by SkyRL's generator."""
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
    from skyrl_program import ScriptedEngine, generated
    from small_tokenizer import tokenizer_of

    from mcpenv_client.trainers.skyrl import register, rows
    from mcpenv_client.trainers.skyrl_generator import RetryingGenerator

    class Engine(ScriptedEngine):
        async def generate(self, engine_input: Any, model: str | None = None) -> dict[str, Any]:
            if by == "model":
                await silence()
            ids = self.tokenizer.encode(CALL)
            return {"responses": [CALL], "response_ids": [ids], "stop_reasons": ["stop"], "response_logprobs": None}

    register("stuck", url)
    tokenizer = tokenizer_of()
    config = GeneratorConfig(max_turns=5, max_input_length=100_000)
    generator = RetryingGenerator(config, SkyRLGymConfig(), Engine(tokenizer), tokenizer)
    (row,) = await asyncio.to_thread(rows, "stuck", url, split=None, num_tasks=1)
    await generated(generator, [{**row, "task_id": "1"}])


async def verl(url: str, by: str) -> None:
    """Play a row by verl's agent loop worker."""
    from verl.workers.rollout.replica import TokenOutput
    from verl_program import Rollouts, ScriptedServer

    class Server(ScriptedServer):
        async def generate(self, request_id: str, prompt_ids: list[int], **given: Any) -> TokenOutput:
            if by == "model":
                await silence()
            ids = self.tokenizer.encode(CALL, add_special_tokens=False)
            return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))

    await Rollouts(url, server=Server, split=None, num_tasks=1).play(0)


async def ors(url: str, by: str) -> None:
    """Play an episode by the client of the Open Reward Standard."""
    from openreward import AsyncOpenReward

    environment = AsyncOpenReward(api_key="any").environments.get("Stuck", base_url=url)
    async with environment.session(split="train", index=0) as session:
        await (silence() if by == "model" else session.call_tool("stick", {}))


async def nemo_gym(url: str, by: str, row: str) -> None:
    """Play a row by NeMo Gym's environment server and agent."""
    from nemo_gym_program import request_of, stack_of

    environment, served, _ = stack_of(url, silence if by == "model" else None)
    running = [asyncio.create_task(server.serve(sockets=[listening])) for server, listening in served]
    try:
        await environment.run_request(request_of(environment, json.loads(row), 0))
    finally:
        for server, _ in served:
            server.should_exit = True
        await asyncio.gather(*running)


async def silence() -> None:
    """Wait for ever, as for a model that does not answer."""
    ready()
    await asyncio.Event().wait()


TRAINERS: dict[str, Any] = {each.__name__: each for each in (tinker, atropos, agent, skyrl, verl, ors, nemo_gym)}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    name, *rest = sys.argv[1:]
    if name == "trl":
        trl(*rest)
    else:
        asyncio.run(TRAINERS[name](*rest))
