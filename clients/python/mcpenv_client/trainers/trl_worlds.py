"""Several environments in one run of TRL's `GRPOTrainer`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from datasets import Dataset

from mcpenv_client.pool.assignment import WORLD

from .sessions import Place
from .trl import McpenvSpec
from .trl_dataset import dataset_of
from .trl_episode import TrainedEpisode


class MixedSpec:
    """Several environments for `GRPOTrainer`, each with the attributes of `McpenvSpec`, in one dataset.

    The columns ``world`` and ``environment`` of a row name its environment. TRL plays the row there, with the tools of
    that environment alone, and logs the rewards of each under its name.

    Args:
        worlds: by name, servers or an environment in this process, or a `McpenvSpec` with arguments of its own.
        options: the arguments of `McpenvSpec` for the others.

    Raises:
        ValueError: there is no world.
        ToolNotExpressible, WireError, ConnectionFailed, PoolError: as `McpenvSpec` does.
    """

    def __init__(self, worlds: Mapping[str, McpenvSpec | Place], **options: Any) -> None:
        if not worlds:
            raise ValueError("a mixed spec needs at least one world")
        self.specs = {
            name: world if isinstance(world, McpenvSpec) else McpenvSpec(world, **options)
            for name, world in worlds.items()
        }
        for name, spec in self.specs.items():
            spec.name = name

    @property
    def train_dataset(self) -> Dataset:
        """The rows of all worlds, one world after the other; TRL shuffles them. A row is read when it is taken."""
        return dataset_of(WorldRows({name: spec.rows for name, spec in self.specs.items()}))

    @property
    def environment_factory(self) -> dict[str, Callable[[], TrainedEpisode]]:
        """For each world, what makes an environment."""
        return {name: spec.environment_factory for name, spec in self.specs.items()}

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Empty, as of `McpenvSpec`."""
        return []


class WorldRows(Sequence[dict[str, Any]]):
    """The rows of several worlds, one world after the other."""

    def __init__(self, worlds: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._worlds = list(worlds.items())
        self._begins = [0, *accumulate(len(rows) for _, rows in self._worlds)]

    def __len__(self) -> int:
        return self._begins[-1]

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return [self[place] for place in range(start, stop, step)]
            return [
                _of_world(name, row)
                for begin, (name, rows) in zip(self._begins, self._worlds, strict=False)
                for row in rows[max(start - begin, 0) : max(stop - begin, 0)]
            ]
        at = range(len(self))[at]
        place = bisect_right(self._begins, at) - 1
        name, rows = self._worlds[place]
        return _of_world(name, rows[at - self._begins[place]])


def _of_world(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, WORLD: name, "environment": name}
