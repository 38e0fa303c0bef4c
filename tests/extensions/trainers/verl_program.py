"""Rollouts by verl's agent loop worker in a Python that has it and the client: DOORS SHOP DIARY BOOTH DISK ROWS.

The generator is scripted. ROWS are exported samples. Prints what the worker returned as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from door_script import call_of, written
from hydra import compose, initialize_config_module
from small_tokenizer import tokenizer_of
from transformers import PreTrainedTokenizerFast, Qwen3Config
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

from mcpenv_client.trainers.verl import rows

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "</tools><|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES_ONLY = TEMPLATE.replace("tool | tojson", "tool.function.name")
BROKEN = "<tool_call>\n{not JSON}\n</tool_call>"


class ScriptedServer:
    """Stands for verl's client of its inference servers, and answers as the script says."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.prompts: list[str] = []

    async def generate(self, request_id: str, prompt_ids: list[int], **given: Any) -> TokenOutput:
        """Return one answer."""
        text = self.tokenizer.decode(prompt_ids)
        self.prompts.append(text)
        answers = [turn.partition("</tool_response>")[0] for turn in text.split("<tool_response>")[1:]]
        read = [answer for answer in answers if "Error" not in answer]
        call = call_of(text, read)
        said = "Done." if call is None else written(*call)
        if "Number 1." in text and not answers:
            said = BROKEN
        ids = self.tokenizer.encode(said + "<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


class Rollouts:
    """The worker of one server, with the files that a user has."""

    def __init__(
        self,
        url: str,
        *overrides: str,
        template: str = TEMPLATE,
        mask: bool = True,
        server: Any = ScriptedServer,
        **given: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        small = tokenizer_of()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=small.backend_tokenizer, pad_token="<pad>", eos_token="<|im_end|>"
        )
        tokenizer.chat_template = template
        tokenizer.save_pretrained(self.folder)
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 1}
        Qwen3Config(architectures=["Qwen3ForCausalLM"], **sizes).save_pretrained(self.folder)
        (self.folder / "loop.yaml").write_text(
            f"- name: mcpenv\n  _target_: mcpenv_client.trainers.verl.McpenvLoop\n  url: {url}\n"
            f"  mask_failed_steps: {mask}\n"
        )
        Dataset.from_list(rows(url, **given)).to_parquet(self.folder / "train.parquet")
        rollout = "actor_rollout_ref.rollout"
        with initialize_config_module("verl.trainer.config", version_base=None):
            self.config = compose(
                "ppo_trainer",
                overrides=[
                    f"actor_rollout_ref.model.path={self.folder}",
                    f"{rollout}.name=vllm",
                    f"{rollout}.prompt_length=4096",
                    f"{rollout}.response_length=1000",
                    f"{rollout}.agent.agent_loop_config_path={self.folder / 'loop.yaml'}",
                    f"data.train_files={self.folder / 'train.parquet'}",
                    "data.filter_overlong_prompts=False",
                    *overrides,
                ],
            )
        self.server = server(tokenizer)
        self.tokenizer = tokenizer
        self.worker = AgentLoopWorker(self.config, self.server)
        self.dataset = RLHFDataset(str(self.folder / "train.parquet"), tokenizer, self.config.data)

    async def play(self, *indices: int, n: int = 2) -> list[dict[str, Any]]:
        """Play rows of the dataset ``n`` times each, as verl's trainer does."""
        batch = DataProto.from_single_dict(collate_fn([self.dataset[index] for index in indices]))
        output = await self.worker.generate_sequences(batch.repeat(repeat_times=n, interleave=True))
        return [self._read(output, at) for at in range(len(output))]

    def _read(self, output: Any, at: int) -> dict[str, Any]:
        responses, mask = output.batch["responses"][at], output.batch["response_mask"][at]
        real = output.batch["attention_mask"][at][-len(responses) :].bool()
        ids, kept = responses[real].tolist(), mask[real].tolist()
        scores = output.batch["rm_scores"][at]
        return {
            "text": self.tokenizer.decode(ids),
            "trained": self.tokenizer.decode([token for token, each in zip(ids, kept, strict=True) if each]),
            "reward": scores.sum().item(),
            "rewarded": scores.nonzero().flatten().tolist() == [len(ids) - 1],
            "logprobs": len(output.batch["rollout_log_probs"][at][real]) == len(ids),
            "status": output.non_tensor_batch["episode_status"][at],
            "parts": output.non_tensor_batch["episode_parts"][at],
        }


async def read(rollouts: Rollouts, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return verl's batch of exported rows, without the padding, and its own advantages of their groups."""
    groups = np.array([row.pop("uid") for row in rows])
    outputs = [AgentLoopOutput.model_validate({"metrics": AgentLoopMetrics(), **row}) for row in rows]
    padded = [await rollouts.worker._agent_loop_postprocess(each, False, raw_prompt=[]) for each in outputs]
    made = rollouts.worker._postprocess(padded)
    scores, mask = made.batch["rm_scores"], made.batch["response_mask"]
    advantages, _ = compute_grpo_outcome_advantage(scores, mask, groups)
    lengths = [len(row["response_ids"]) for row in rows]
    columns = {name: made.batch[name] for name in ("responses", "response_mask", "rm_scores", "rollout_log_probs")}
    columns["advantages"] = advantages
    cut = {
        name: [each[:end].tolist() for each, end in zip(column, lengths, strict=True)]
        for name, column in columns.items()
    }
    return {**cut, "turn_scores": made.non_tensor_batch["turn_scores"].tolist(), "unknown": unknown(rows)}


def unknown(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names in rows that verl's class does not have, and would leave out."""
    return sorted({name for row in rows for name in row} - set(AgentLoopOutput.model_fields))


async def raised(rollouts: Rollouts, index: int) -> str:
    """Return the error of one row."""
    try:
        await rollouts.play(index, n=1)
    except Exception as error:  # noqa: BLE001  # the worker raises what the loop raised
        return f"{type(error).__name__}: {error}"
    return "nothing"


async def main(doors: str, shop: str, diary: str, booth: str, disk: str, exported: list[dict[str, Any]]) -> None:
    """Play all."""
    found: dict[str, Any] = {}
    rollouts = Rollouts(doors)
    found["columns"] = sorted(rollouts.dataset[0])
    found["groups"] = await rollouts.play(0, 1)
    found["read"] = await read(rollouts, exported)
    asked = len(rollouts.server.prompts)
    found["failed"] = await raised(rollouts, 2)
    found["asked of the failed"] = len(rollouts.server.prompts) - asked
    short = Rollouts(doors, "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=1")
    found["cut"] = await short.play(0, n=1)
    bought = Rollouts(shop)
    found["bought"] = await bought.play(0, n=1)
    found["tool"] = json.loads(bought.server.prompts[0].split("<tools>\n")[1].split("\n</tools>")[0])
    found["booth"] = await Rollouts(booth).play(0)
    for name, mask in (("masked", True), ("kept", False)):
        found[name] = await Rollouts(disk, mask=mask).play(0, n=1)
    found["unscored"] = await raised(Rollouts(diary), 0)
    found["refused"] = await raised(Rollouts(shop, template=NAMES_ONLY), 0)
    print(json.dumps(found, default=np.ndarray.tolist))


if __name__ == "__main__":
    given = [json.loads(line) for line in Path(sys.argv[6]).read_text().splitlines()]
    doors, shop, diary, booth, disk = sys.argv[1:6]
    asyncio.run(main(doors, shop, diary, booth, disk, given))
