"""Samples as the data of other people's trainers. Versions are those whose code was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from .sample import Sample

UNTRAINED = -100
"""The mask of a token that is not trained on, in Atropos."""

NO_LOGPROB = 1.0
"""Stands for the log-probability of a token that the model did not write, in Atropos."""


def _about(sample: Sample) -> dict[str, Any]:
    """Return what trainers have no field for."""
    return {
        "episode_id": sample.episode_id,
        "environment": sample.environment,
        "task": sample.task,
        "seed": sample.seed,
        **sample.labels,
        "parts": dict(sample.parts),
        "turn_rewards": [span.reward for span in sample.spans],
        "turn_parts": [dict(span.parts) for span in sample.spans],
        "end_reward": sample.end_reward,
        "end_parts": dict(sample.end_parts),
        "status": sample.status,
        "truncated": sample.truncated,
        "policy_version": sample.policy_version,
        "tree": sample.tree,
        "tree_step": sample.tree_step,
        "piece": sample.piece,
        "pieces": sample.pieces,
        "tokenizer": sample.tokenizer,
    }


def verl(sample: Sample) -> dict[str, Any]:
    """Return the fields of verl 0.9's ``AgentLoopOutput``, with ``uid`` for its groups."""
    about = _about(sample)
    turn_scores = about.pop("turn_rewards")  # verl's name
    return {
        "uid": sample.group,
        "prompt_ids": sample.prompt_ids,
        "response_ids": sample.completion_ids,
        "response_mask": sample.completion_mask,
        "response_logprobs": sample.completion_logprobs,
        "reward_score": sample.reward,
        "num_turns": len(sample.spans),
        "extra_fields": {**about, "advantage": sample.advantage, "turn_scores": turn_scores},
    }


def slime(sample: Sample) -> dict[str, Any]:
    """Return slime 0.3's ``Sample.to_dict()``. A sample that is not usable has ``remove_sample``."""
    truncated = sample.truncated or sample.status == "truncated"
    status = "failed" if not sample.usable else "truncated" if truncated else "completed"
    return {
        "group_index": sample.group,
        # The samples of one episode are one rollout, so that it does not weigh more for having several.
        "rollout_id": None
        if sample.episode_id is None
        else int(sha256(sample.episode_id.encode()).hexdigest()[:12], 16),
        "prompt": "",
        "tokens": sample.tokens,
        "response": "",
        "response_length": len(sample.completion_ids),
        "reward": sample.reward,
        "loss_mask": sample.completion_mask,
        "rollout_log_probs": sample.completion_logprobs,
        "weight_versions": [str(span.policy_version) for span in sample.spans if span.policy_version is not None],
        "remove_sample": not sample.usable,
        "status": status,
        "metadata": {**_about(sample), "advantage": sample.advantage},
    }


def nemo(sample: Sample) -> dict[str, Any]:
    """Return a datum of NeMo RL: a ``message_log`` whose messages have their tokens, and the total reward."""
    messages: list[dict[str, Any]] = []
    at = 0
    for span in sample.spans:
        if span.start > at:
            messages.append({"role": "user", "content": "", "token_ids": sample.tokens[at : span.start]})
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "",
            "token_ids": sample.tokens[span.start : span.end],
        }
        if sample.logprobs is not None:
            message["generation_logprobs"] = sample.logprobs[span.start : span.end]
        messages.append(message)
        at = span.end
    if at < len(sample.tokens):
        messages.append({"role": "user", "content": "", "token_ids": sample.tokens[at:]})
    return {
        "idx": sample.group,
        "message_log": messages,
        "length": len(sample.tokens),
        "total_reward": sample.reward,
        "loss_multiplier": 1.0 if sample.usable else 0.0,
        "truncated": sample.truncated,
        "extra_env_info": {**_about(sample), "advantage": sample.advantage},
    }


def trl(sample: Sample) -> dict[str, Any]:
    """Return what a ``rollout_func`` of TRL 1.16 returns for one prompt."""
    return {
        "prompt_ids": sample.prompt_ids,
        "completion_ids": sample.completion_ids,
        "logprobs": sample.completion_logprobs,
        "env_mask": sample.completion_mask,
        "episode_reward": sample.reward,
        "episode_status": sample.status,
        "group": sample.group,
        "advantage": sample.advantage,
        "about": _about(sample),
    }


def longest_of(samples: Sequence[Sample]) -> Sample:
    """Return the sample of an episode that has most tokens of the model."""
    return max(samples, key=lambda sample: sum(sample.mask))


def atropos(group: Sequence[Sample]) -> dict[str, Any]:
    """Return a group as Atropos 0.4's ``/scored_data`` takes it, without the environment's number.

    Args:
        group: samples of one group with rewards, one of each episode: Atropos compares sequences.
    """
    unknown = any(sample.logprobs is None for sample in group)
    return {
        "tokens": [sample.tokens for sample in group],
        "masks": [
            [token if kept else UNTRAINED for token, kept in zip(sample.tokens, sample.mask, strict=True)]
            for sample in group
        ],
        "scores": [sample.reward for sample in group],
        "messages": None if any(s.messages is None for s in group) else [s.messages for s in group],
        "inference_logprobs": None if unknown else [_atropos_logprobs(sample) for sample in group],
    }


def _atropos_logprobs(sample: Sample) -> list[float]:
    given = sample.logprobs or []
    return [value if kept else NO_LOGPROB for value, kept in zip(given, sample.mask, strict=True)]


ROWS: dict[str, Callable[[Sample], dict[str, Any]]] = {"verl": verl, "slime": slime, "nemo": nemo, "trl": trl}
"""The formats with one row for each sample."""
