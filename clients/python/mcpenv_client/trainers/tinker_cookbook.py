"""The adapter for tinker-cookbook: datasets, groups and message environments from an environment on a server.

Needs the package tinker-cookbook.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import chz
from tinker_cookbook.renderers import Renderer, get_renderer, get_text_content
from tinker_cookbook.rl.message_env import EnvFromMessageEnv
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from mcpenv_client.errors import ToolNotExpressible
from mcpenv_client.formats.tool_formats import tools_for

from .sessions import Sessions
from .templates import left_out
from .tinker_messages import EpisodeMessages


class McpenvGroup(EnvGroupBuilder):
    """A group of episodes with one task and seed. It can be pickled.

    Args:
        url, row, renderer: as `EpisodeMessages` takes them.
        group_size: the number of episodes.
        episode: other arguments of `EpisodeMessages`.
        limits: arguments of `EnvFromMessageEnv`, such as ``max_trajectory_tokens``.
    """

    def __init__(
        self,
        url: str,
        row: Mapping[str, Any],
        renderer: Renderer,
        group_size: int,
        *,
        episode: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url
        self.row = dict(row)
        self.renderer = renderer
        self.group_size = group_size
        self._episode = dict(episode or {})
        self._limits = dict(limits or {})
        self._made: list[EpisodeMessages] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts to pickle: everything but sessions."""
        return {**self.__dict__, "_made": []}

    async def make_envs(self) -> Sequence[Env]:
        """Return the environments. Each begins its episode at its first observation."""
        made = [EpisodeMessages(self.url, self.row, self.renderer, **self._episode) for _ in range(self.group_size)]
        self._made += made
        return [EnvFromMessageEnv(self.renderer, each, **self._limits) for each in made]

    async def cleanup(self) -> None:
        """End the sessions of all episodes, including interrupted ones."""
        while self._made:
            await self._made.pop().close()

    def logging_tags(self) -> list[str]:
        """Return the split, or nothing for seeds."""
        return [self.row["split"]] if "split" in self.row else []


class McpenvDataset(RLDataset):
    """Batches of groups, one group for each task of a split, or for each seed. A task is read with its batch.

    Args:
        url: the server.
        renderer: the renderer, which must write tools whole.
        split: the split; None: groups have seeds.
        batch_size: the groups of a batch.
        group_size: the episodes of a group.
        num_tasks: the maximum of groups; the number of seeds without a split.
        client: arguments of `EnvClient`.
        options: other arguments of `McpenvGroup`.

    Raises:
        ToolNotExpressible: the renderer omits parts of a tool's schema, or an API refuses its name.
        ValueError: there are no tasks.
        WireError, ConnectionFailed: the server cannot list tools or tasks.
    """

    def __init__(
        self,
        url: str,
        renderer: Renderer,
        *,
        split: str | None = "train",
        batch_size: int = 8,
        group_size: int = 8,
        num_tasks: int | None = None,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        rows, tools = Sessions(url, client=client).listed(split, num_tasks)
        listed = tools_for("openai", tools).listed
        try:
            problems = left_out(_Written(renderer), listed)
        except NotImplementedError:
            names = [tool["function"]["name"] for tool in listed]
            problems = dict.fromkeys(names, "this renderer writes no tools; choose another")
        if problems:
            raise ToolNotExpressible(type(renderer).__name__, problems)
        episode = {**options.pop("episode", {}), "client": client}
        self._rows = rows
        self._url = url
        self._given = {"renderer": renderer, "group_size": group_size, "episode": episode, **options}
        self._batch_size = batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return a batch. The last may be smaller."""
        rows = self._rows[index * self._batch_size : (index + 1) * self._batch_size]
        return [McpenvGroup(self._url, row, **self._given) for row in rows]

    def __len__(self) -> int:
        return math.ceil(len(self._rows) / self._batch_size)


@chz.chz
class McpenvDatasetBuilder(RLDatasetBuilder):
    """The datasets of ``tinker_cookbook.rl.train.Config``.

    Attributes:
        url: the server.
        model_name_for_tokenizer, renderer_name: as in the cookbook's own builders.
        batch_size, group_size: the groups of a batch, the episodes of a group.
        split, eval_split: the splits to train and to evaluate on; None as ``eval_split``: none.
    """

    url: str
    model_name_for_tokenizer: str
    renderer_name: str
    batch_size: int
    group_size: int
    split: str = "train"
    eval_split: str | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the datasets."""
        model = self.model_name_for_tokenizer
        renderer = get_renderer(self.renderer_name, get_tokenizer(model), model_name=model)
        size = self.batch_size
        train = McpenvDataset(self.url, renderer, split=self.split, batch_size=size, group_size=self.group_size)
        if self.eval_split is None:
            return train, None
        return train, McpenvDataset(self.url, renderer, split=self.eval_split, batch_size=size, group_size=1)


class _Written:
    """A renderer's text of tools, in the form of a tokenizer's template."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def apply_chat_template(self, messages: Any, tools: Sequence[Mapping[str, Any]], tokenize: bool) -> str:
        prefix = self._renderer.create_conversation_prefix_with_tools([tool["function"] for tool in tools], "")
        return "\n".join(get_text_content(message) for message in prefix)


__all__ = ["EpisodeMessages", "McpenvDataset", "McpenvDatasetBuilder", "McpenvGroup"]
