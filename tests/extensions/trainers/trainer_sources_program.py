"""Reads rows by the code of slime and NeMo RL: SOURCES FOLDER. SOURCES has their packages, ``slime`` and ``nemo_rl``.

Where a module needs Ray or Megatron, its one function is taken out of the file. Prints the batches as JSON.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch


def taken_out(file: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Return functions of a file, or of its classes, that are compiled without the rest of it."""
    found = [each for each in ast.walk(ast.parse(file.read_text())) if getattr(each, "name", None) in names]
    module = ast.parse("from __future__ import annotations")
    module.body += cast("list[ast.stmt]", found)
    space: dict[str, Any] = {"torch": torch, "cast": cast, **given}
    exec(compile(module, str(file), "exec"), space)
    return space


def slime(sources: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the batch of slime."""
    from slime.utils.types import Sample  # type: ignore[import-not-found]

    names = ("_post_process_rewards", "_convert_samples_to_train_data")
    space = taken_out(sources / "slime/ray/rollout.py", *names, Sample=Sample, get_source=lambda sample: "")
    args = SimpleNamespace(advantage_estimator="ppo", rewards_normalization=False, reward_key=None)
    manager = SimpleNamespace(
        args=args, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None
    )
    manager._post_process_rewards = lambda samples: space["_post_process_rewards"](manager, samples)
    samples = [Sample.from_dict(row) for row in rows]
    fields = set(Sample.__dataclass_fields__)
    statuses = {status.value for status in Sample.Status}
    batch = space["_convert_samples_to_train_data"](manager, samples)
    return {"batch": batch, "fields": sorted(fields), "statuses": sorted(statuses)}


def nemo(sources: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the batch of NeMo RL."""
    from nemo_rl.data.llm_message_utils import (  # type: ignore[import-not-found]
        batched_message_log_to_flat_message,
    )

    name = "add_grpo_token_loss_masks_and_generation_logprobs"
    kinds = {"LLMMessageLogType": list, "VLMMessageLogType": list, "backfill_missing_routed_experts": len}
    space = taken_out(sources / "nemo_rl/algorithms/grpo.py", name, **kinds)
    logs = [
        [
            {name: torch.tensor(value) if isinstance(value, list) else value for name, value in message.items()}
            for message in row["message_log"]
        ]
        for row in rows
    ]
    space[name](logs)
    flat, lengths = batched_message_log_to_flat_message(logs, pad_value_dict={"token_ids": 0})
    wanted = ("token_ids", "token_loss_mask", "generation_logprobs")
    return {**{name: flat[name].tolist() for name in wanted}, "input_lengths": lengths.tolist()}


if __name__ == "__main__":
    sources, folder = map(Path, sys.argv[1:])
    sys.path.insert(0, str(sources))
    rows = {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("slime", "nemo")
    }
    print(json.dumps({"slime": slime(sources, rows["slime"]), "nemo": nemo(sources, rows["nemo"])}))
