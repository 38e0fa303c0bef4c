"""The adapter for TRL: the dataset and the environments of `GRPOTrainer`, from an environment of mcpenv.

Needs the package trl, and Pillow for images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset

from mcpenv_client.errors import ToolNotExpressible
from mcpenv_client.formats.tool_formats import tools_for

from .sessions import Place, Sessions
from .templates import left_out
from .trl_dataset import dataset_of
from .trl_episode import TrainedEpisode
from .trl_rewards import masked

HIDDEN = ("reset", "get_reward")
"""Names that TRL does not accept for tools, in addition to names with an underscore at the beginning."""


class McpenvSpec:
    """An environment for `GRPOTrainer`: it provides `train_dataset`, `environment_factory` and `reward_funcs`.

    Args:
        target: servers or an environment in this process, as `Sessions` takes it.
        split: the split with the tasks for the rows; None: rows have seeds instead of tasks.
        num_tasks: the maximum of rows; the number of seeds without a split.
        processing_class: the trainer's tokenizer or processor, for the check that its template shows schemas whole.
        inline: replace each ``$ref`` in schemas by its definition, for templates that omit ``$defs``.
        images: give images of observations to the model, which must take them; else it reads ``[image]``.
        retries: the number of retries of a reset after the environment failed.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Attributes:
        rows: the tasks' columns, read when they are used.
        name: the name under which TRL logs the rewards.
        tools: the tools as chat templates take them.

    Raises:
        ToolNotExpressible: TRL or the template cannot express a tool.
        ValueError: there is neither a split nor a number of tasks.
        WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
    """

    def __init__(
        self,
        target: Place,
        *,
        split: str | None = "train",
        num_tasks: int | None = None,
        processing_class: Any = None,
        inline: bool = False,
        images: bool = False,
        retries: int = 2,
        mask_failed_steps: bool = True,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.sessions = Sessions(target, settings, client)
        self.name = "McpenvEpisode"
        self.images = images
        self.retries = retries
        self.mask_failed_steps = mask_failed_steps
        # One class for all environments: TRL calls `get_reward` only on environments of a single class.
        self._class: type[TrainedEpisode] | None = None
        self.rows, tools = self.sessions.listed(split, num_tasks)
        hidden = [tool.name for tool in tools if tool.name in HIDDEN or tool.name.startswith("_")]
        if hidden:
            raise ToolNotExpressible(
                "trl", dict.fromkeys(hidden, "TRL does not take this name for a tool's; rename it")
            )
        self.tools = tools_for("hf", tools, inline=inline).listed
        if processing_class is not None:
            problems = left_out(processing_class, self.tools)
            if problems:
                raise ToolNotExpressible("chat template", problems)

    @property
    def train_dataset(self) -> Dataset:
        """One row for each task: an empty ``prompt``, to which TRL appends the episode's, and the task's columns.

        A row is read when the trainer takes it: `dataset_of`.
        """
        return dataset_of(self.rows)

    @property
    def environment_factory(self) -> Callable[[], TrainedEpisode]:
        """Makes an environment for each rollout slot. Can be pickled if the target can."""
        return functools.partial(_made, self)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Empty: TRL calls the environment's `get_reward` itself. Add functions of your own to it, each `masked`."""
        return []

    @property
    def episode_class(self) -> type[TrainedEpisode]:
        """The class of the environments.

        TRL finds tools as functions of the class, and calls the attributes of an instance.
        """
        if self._class is None:
            names = [listed["function"]["name"] for listed in self.tools]
            self._class = type(self.name, (TrainedEpisode,), dict.fromkeys(names, _placeholder))
        return self._class

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts to pickle: everything but the class."""
        return {**self.__dict__, "_class": None}


def _made(spec: McpenvSpec) -> TrainedEpisode:
    """Return an environment."""
    return spec.episode_class(
        spec.sessions,
        spec.tools,
        images=spec.images,
        retries=spec.retries,
        mask_failed_steps=spec.mask_failed_steps,
    )


def _placeholder(self: Any) -> None:
    """Stand for a tool; the instance has the tool itself."""


__all__ = ["McpenvSpec", "TrainedEpisode", "masked"]
