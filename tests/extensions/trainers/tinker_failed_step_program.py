"""A step that fails by no fault of the agent in rollouts of tinker-cookbook: DISK.

Prints the rewards of three groups, or their errors, as JSON: masked and retried, not masked, masked and not retried.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from door_script import written
from small_tokenizer import tokenizer_of
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from mcpenv_client.trainers.failures import EpisodeFailed
from mcpenv_client.trainers.tinker_cookbook import McpenvDataset


class SavesOnce(TokenCompleter):  # type: ignore[misc]  # tinker-cookbook is not installed here
    """Saves, and stops whatever that answers."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
        """Return one answer."""
        said = "Done." if "<tool_response>" in self.tokenizer.decode(model_input.to_ints()) else written("save", {})
        ids = self.tokenizer.encode(said + "<|im_end|>", add_special_tokens=False)
        return TokensWithLogprobs(ids, [0.0] * len(ids))


def main(disk: str) -> None:
    """Play the groups."""
    tokenizer = tokenizer_of()
    policy, renderer = SavesOnce(tokenizer), get_renderer("qwen3", tokenizer)
    found: list[Any] = []
    for mask, retries in ((True, 1), (False, 1), (True, 0)):
        (group,) = McpenvDataset(disk, renderer, group_size=2, episode={"mask_failed_steps": mask}).get_batch(0)
        try:
            found.append(asyncio.run(do_group_rollout(group, policy, RetryOnFailure(retries))).get_total_rewards())
        except EpisodeFailed as error:
            found.append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
