"""The adapter for TRL: the dataset and the environments of `GRPOTrainer`, from an environment of mcpenv.

Needs the package trl, and Pillow for images.
"""

from __future__ import annotations

import base64
import functools
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset

from mcpenv_client.conversation import OVER, Conversation
from mcpenv_client.errors import ConnectionFailed, ToolNotExpressible, WireError
from mcpenv_client.formats.images import block_of
from mcpenv_client.formats.tool_formats import tools_for
from mcpenv_client.pool.instances import Target
from mcpenv_client.types.turns import NOT_BEGUN, Ending, Message

from .sessions import Sessions
from .templates import left_out

logger = logging.getLogger(__name__)

HIDDEN = ("reset", "get_reward")
"""Names that TRL does not take for tools, beside those that begin with an underscore."""


class ToolSchema(dict[str, Any]):
    """The schema of a tool as chat templates take it whole, which TRL also calls as a method."""

    def __init__(self, listed: Mapping[str, Any], call: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(listed)
        self.__name__: str = listed["function"]["name"]
        self._call = call

    def __call__(self, /, **arguments: Any) -> Any:
        """Call the tool, and return the answer for the model."""
        return self._call(self.__name__, arguments)


class TrainedEpisode:
    """The episodes of one rollout slot of TRL, one after the other. `McpenvSpec.environment_factory` makes it.

    Its tools are attributes with the tools' names. After the end of an episode they answer that it is over.

    Attributes:
        ending: the end of the last episode, with its status, once `get_reward` was asked.
    """

    def __init__(self, spec: McpenvSpec) -> None:
        self._spec = spec
        self._session = spec.sessions.open()
        self._conversation = Conversation(
            self._session, tool_format="hf", max_turns=None, max_malformed=None, images=spec.images
        )
        self.ending: Ending = NOT_BEGUN
        self._begun = False
        for listed in spec.tools:
            self.__dict__[listed["function"]["name"]] = ToolSchema(listed, self._call)

    def reset(self, **row: Any) -> str | list[dict[str, Any]]:
        """Begin an episode, and return its prompt, which TRL appends to the row's.

        A failure that is not the row's is tried again, then masked: the tools answer that the episode is over.

        Raises:
            WireError: the environment refused the row.
        """
        self.ending, self._begun = NOT_BEGUN, False
        named = {name: row[name] for name in ("task", "split", "index", "seed", "options") if row.get(name) is not None}
        for attempt in range(self._spec.retries + 1):
            try:
                opening = self._spec.sessions.run(lambda: self._conversation.begin(named or None))
            except (WireError, ConnectionFailed) as error:
                if isinstance(error, WireError) and error.status is None:
                    raise
                logger.warning("attempt %d to begin an episode of %s failed: %s", attempt + 1, named, error)
            else:
                self._begun = True
                return _content(opening.messages)
        return ""

    def get_reward(self) -> float | None:
        """End the episode, and return its return. None masks it: nothing was scored, or the agent is not to blame."""
        if self._begun:
            self.ending = self._spec.sessions.run(self._conversation.end)
        if not self.ending.status.usable:
            logger.warning("masked an episode: %s, %s", self.ending.status.code.value, self.ending.reason)
        return self.ending.reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        if not self._begun or self._conversation.done:
            return OVER
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        turn = self._spec.sessions.run(lambda: self._conversation.act({"tool_calls": [call]}))
        return _content(turn.messages)


class McpenvSpec:
    """An environment for `GRPOTrainer`: read `train_dataset`, `environment_factory` and `reward_funcs` off it.

    Args:
        target: the URL of a server or an environment in this process, as `Sessions` takes it.
        split: the split whose tasks are the rows; None: rows have seeds instead of tasks.
        num_tasks: the maximum of rows; the number of seeds without a split.
        processing_class: the tokenizer or processor that the trainer gets, to check that its template shows schemas
            whole.
        inline: replace each ``$ref`` in schemas by its definition, for templates that leave ``$defs`` out.
        images: give images of observations to the model, which must take them; else it reads ``[image]``.
        retries: how often the reset of a failed environment is tried again.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Raises:
        ToolNotExpressible: TRL or the template cannot express a tool.
        ValueError: there is neither a split nor a number of tasks.
        WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
    """

    def __init__(
        self,
        target: Target,
        *,
        split: str | None = "train",
        num_tasks: int | None = None,
        processing_class: Any = None,
        inline: bool = False,
        images: bool = False,
        retries: int = 2,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.sessions = Sessions(target, settings, client)
        self.images = images
        self.retries = retries
        # One class for all environments: TRL asks only those of one class for their reward.
        self._class: type[TrainedEpisode] | None = None
        self._rows, tools = self.sessions.listed(split, num_tasks)
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
        """One row for each task: an empty ``prompt``, to which TRL appends the episode's, and what names the task."""
        empty = [{"role": "user", "content": ""}]
        return Dataset.from_list([{**row, "prompt": empty} for row in self._rows])

    @property
    def environment_factory(self) -> Callable[[], TrainedEpisode]:
        """Makes an environment for each rollout slot. Can be pickled if the target can."""
        return functools.partial(_made, self)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """Empty: the environment has `get_reward`, which TRL asks by itself. Add functions of your own to it."""
        return []

    @property
    def episode_class(self) -> type[TrainedEpisode]:
        """The class of the environments. TRL finds tools as functions of it, and calls what an instance has."""
        if self._class is None:
            names = [listed["function"]["name"] for listed in self.tools]
            self._class = type("McpenvEpisode", (TrainedEpisode,), dict.fromkeys(names, _placeholder))
        return self._class

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: everything but the class."""
        return {**self.__dict__, "_class": None}


def _made(spec: McpenvSpec) -> TrainedEpisode:
    """Return an environment."""
    return spec.episode_class(spec)


def _placeholder(self: Any) -> None:
    """Stand for a tool; the instance has the tool itself."""


def _content(messages: Sequence[Message]) -> str | list[dict[str, Any]]:
    """Return the contents of messages as TRL takes them: one text, or parts if there are images."""
    parts: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else map(_part, content)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    block = block_of(part)
    if block is None:
        return part
    from PIL import Image  # a model that takes images needs it

    return {"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(block["data"])))}


__all__ = ["McpenvSpec", "TrainedEpisode"]
