"""Several environments in one ``rollout_func`` of TRL's `GRPOTrainer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset

from mcpenv_client.pool.assignment import WORLD

from .sessions import Place
from .trl_dataset import dataset_of
from .trl_rollouts import Generate, McpenvRollouts, generate, play, prompted, rows_of
from .trl_worlds import WorldRows


class MixedRollouts:
    """Several environments as one ``rollout_func``, with the attributes of `McpenvRollouts` and one dataset.

    The episodes of a batch run in lockstep in all environments, with one batch of generation for each turn. The column
    ``world`` of a row names its environment; TRL logs the rewards of each under its name.

    Args:
        worlds: by name, servers or an environment in this process, or a `McpenvRollouts` with arguments of its own.
        generate: generates for all of them.
        options: the arguments of `McpenvRollouts` for the others.

    Raises:
        ValueError: there is no world.
        WireError, ConnectionFailed, PoolError: as `McpenvRollouts` does.
    """

    def __init__(
        self, worlds: Mapping[str, McpenvRollouts | Place], *, generate: Generate = generate, **options: Any
    ) -> None:
        if not worlds:
            raise ValueError("mixed rollouts need at least one world")
        self.rollouts = {
            name: world if isinstance(world, McpenvRollouts) else McpenvRollouts(world, **options)
            for name, world in worlds.items()
        }
        self._generate = generate

    @property
    def train_dataset(self) -> Dataset:
        """The rows of all worlds, as of `MixedSpec`, with the prompts of `McpenvRollouts`."""
        return dataset_of(WorldRows({name: each.rows for name, each in self.rollouts.items()}), prompted)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """For each world, the returns of its episodes; None for those of others, and as `McpenvRollouts` says."""
        return [_return_in(name) for name in self.rollouts]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play one episode for each prompt, and return the data that TRL trains on."""
        rows = rows_of(prompts)
        counts = Counter(row[WORLD] for row in rows)
        free = {name: iter(self.rollouts[name].slots(count)) for name, count in counts.items()}
        return play([next(free[row[WORLD]]) for row in rows], rows, self._generate, trainer)


def _return_in(name: str) -> Callable[..., list[float | None]]:
    def rewards(episode_reward: list[float | None], world: list[str], **columns: Any) -> list[float | None]:
        return [reward if each == name else None for reward, each in zip(episode_reward, world, strict=True)]

    rewards.__name__ = name
    return rewards
