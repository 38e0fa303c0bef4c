"""The observations that a reset or a step returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, computed_field, field_validator, model_validator

from .models import Model
from .tools import Tool, ToolFailure, ToolResult
from .values import refuse_non_finite, without_computed


class _Default:
    """An attribute of instances without a field of its name. A subclass or an extra field may define that field."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            # Pydantic would take a class attribute of a field's name for the field's default.
            raise AttributeError(self._name)
        extra = instance.__pydantic_extra__
        return extra.get(self._name, self._value) if extra else self._value


class _Prompt(_Default):
    """The same for the prompt, which is in the metadata."""

    def __get__(self, instance: Any, owner: type) -> Any:
        given = super().__get__(instance, owner) or instance.metadata.get("prompt")
        return given if isinstance(given, str) else ""


class Observation(Model):
    """Base of all observations; an environment's own observations subclass it.

    Attributes:
        reward: the reward of the step, None if it was not scored (None is not 0.0). Always finite.
        terminated: the task ended.
        truncated: a limit ended it (``max_steps``, a deadline).
        metadata: the author's own, part of the observation; after a reset that began a task, with its ``prompt``.
        info: the framework's: ``episode_id``, ``mcp_url``, ``reward`` (its components), ``return`` (the sum
            of rewards so far), ``reset`` ("implicit" where a first step reset the environment), ``task`` (id, split
            and version, after a reset), ``status`` and ``episode_status`` (`Status`, as plain data).

    ``done`` is derived (either of the two); ``done=True`` alone means terminated.

    Raises:
        NotSerializable: the reward is NaN or infinite.
    """

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        arbitrary_types_allowed=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ignored_types=(_Default,),
    )

    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            reward: float | None = None,
            terminated: bool = False,
            truncated: bool = False,
            done: bool = False,
            metadata: dict[str, Any] = ...,
            info: dict[str, Any] = ...,
            **fields: Any,
        ) -> None: ...

        @property
        def text(self) -> str:
            """The text for an agent; empty unless the observation is a tool's."""
            ...

        @property
        def error(self) -> ToolFailure | None:
            """The reason why a tool call has no result; None for every other observation."""
            ...

        @property
        def prompt(self) -> str:
            """The task's prompt after a reset that began a task, ``metadata["prompt"]``; else empty."""
            ...

    else:
        text = _Default("text", "")
        error = _Default("error", None)
        prompt = _Prompt("prompt", "")

    @model_validator(mode="before")
    @classmethod
    def _derive_done(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "prompt" in data and "prompt" not in cls.model_fields and cls.model_config.get("extra") == "forbid":
            raise ValueError('prompt is read from the metadata: Observation(metadata={"prompt": ...})')
        data = without_computed(cls, data, keep="done")
        if "done" not in data:
            return data
        done = data["done"]
        data = {name: value for name, value in data.items() if name != "done"}
        ended = bool(data.get("terminated") or data.get("truncated"))
        if done and not ended:
            data["terminated"] = True
        elif ended and not done:
            raise ValueError("done=False contradicts terminated or truncated")
        return data

    @field_validator("reward", mode="after")
    @classmethod
    def _finite(cls, reward: float | None) -> float | None:
        refuse_non_finite(reward, "reward")
        return reward

    @computed_field  # type: ignore[prop-decorator]
    @property
    def done(self) -> bool:
        """True if the episode is over."""
        return self.terminated or self.truncated


class ListToolsObservation(Observation):
    """The observation of the environment's tools in its mode."""

    tools: list[Tool] = Field(default_factory=list)


class CallToolObservation(Observation):
    """The observation of one tool call: a ``result`` or an ``error``, never both."""

    tool_name: str
    result: ToolResult | None = None
    error: ToolFailure | None = None  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def text(self) -> str:
        """The result's text, or the error's message."""
        if self.error is not None:
            return self.error.message
        return "" if self.result is None else self.result.text


class AnyObservation(Observation):
    """The observation of a class that the client does not know. Its fields are attributes."""

    model_config = ConfigDict(extra="allow")
