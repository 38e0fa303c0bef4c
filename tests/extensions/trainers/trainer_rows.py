"""Small readers of rows for slime and NeMo RL, in the shape of their own code, which `test_trainer_sources` compares.

Needs nothing, so that programs in other virtual environments can import it.
"""

from __future__ import annotations

from typing import Any

SLIME_FIELDS = {
    "group_index", "index", "rollout_id", "prompt", "tokens", "multimodal_inputs", "multimodal_train_inputs",
    "multimodal_train_input_id", "apply_chat_template_kwargs", "response", "response_length", "label", "reward",
    "loss_mask", "weight_versions", "rollout_log_probs", "rollout_top_p_token_ids", "rollout_top_p_token_offsets",
    "rollout_routed_experts", "remove_sample", "teacher_log_probs", "status", "metadata", "generate_function_path",
    "custom_rm_path", "train_metadata", "session_id", "non_generation_time", "spec_info", "prefix_cache_info",
}  # fmt: skip
"""The fields of slime's ``Sample``; another would become an attribute that nothing reads."""

SLIME_STATUSES = {"pending", "completed", "truncated", "aborted", "failed"}


def slime_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what slime 0.3.1 trains on: ``Sample.from_dict``, then ``_convert_samples_to_train_data``."""
    masks: list[list[int]] = []
    for row in rows:
        assert set(row) <= SLIME_FIELDS, set(row) - SLIME_FIELDS
        assert row["status"] in SLIME_STATUSES
        assert len(row["loss_mask"]) == row["response_length"] <= len(row["tokens"])
        masks.append([0] * row["response_length"] if row["remove_sample"] else row["loss_mask"])
    sums: dict[int, int] = {}
    for row, mask in zip(rows, masks, strict=True):
        sums[row["rollout_id"]] = sums.get(row["rollout_id"], 0) + sum(mask)
    return {
        "tokens": [row["tokens"] for row in rows],
        "response_lengths": [row["response_length"] for row in rows],
        "raw_reward": [row["reward"] for row in rows],
        "truncated": [int(row["status"] == "truncated") for row in rows],
        "rollout_ids": [row["rollout_id"] for row in rows],
        "loss_masks": masks,
        "rollout_mask_sums": [sums[row["rollout_id"]] for row in rows],
        "rollout_log_probs": [row["rollout_log_probs"] for row in rows],
    }


def nemo_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what NeMo RL trains on: masks and log-probabilities by message, put together and padded."""
    lengths = [sum(len(message["token_ids"]) for message in row["message_log"]) for row in rows]
    assert lengths == [row["length"] for row in rows]
    batch: dict[str, Any] = {"token_ids": [], "token_loss_mask": [], "generation_logprobs": []}
    for row, length in zip(rows, lengths, strict=True):
        flat: dict[str, list[Any]] = {name: [] for name in batch}
        for message in row["message_log"]:
            ids = message["token_ids"]
            trained = message["role"] == "assistant" and "generation_logprobs" in message
            logprobs = message.get("generation_logprobs", [0.0] * len(ids))
            assert len(logprobs) == len(ids)
            flat["token_ids"] += ids
            flat["token_loss_mask"] += [int(trained)] * len(ids)
            flat["generation_logprobs"] += logprobs
        for name, values in flat.items():
            batch[name].append([*values, *[0] * (max(lengths) - length)])
    return {**batch, "input_lengths": lengths}
