"""Cut the long output of a tool: a short answer for the agent, and the whole text for the episode."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.tools.outputs import Keeper, KeptOutputs, Output, OutputPolicy
from mcpenv.tools.registry import BoundTool
from mcpenv_client.types.records import ToolCall, ToolOutcome
from mcpenv_client.types.tools import OUTPUT_META, ToolResult

from .tools import SEARCH, VIEW, tools_for_outputs

MIN_CHARACTERS = 500
"""Minimum of `LongOutputs.max_characters`. A page of search results needs as much."""


@dataclass(frozen=True)
class LongOutputs(OutputPolicy):
    """The settings of an environment that keeps long outputs. Set it as the class attribute `long_outputs`.

    Attributes:
        max_characters: maximum characters of text that an answer has, apart from the note about the rest.
        kept_bytes: maximum bytes of outputs that an episode keeps, as UTF-8. The oldest are dropped first.

    Raises:
        ConfigurationError: a limit is too small.
    """

    max_characters: int = 10_000
    kept_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_characters < MIN_CHARACTERS:
            raise ConfigurationError(f"max_characters is {self.max_characters}; it must be {MIN_CHARACTERS} or more")
        if self.kept_bytes < 1:
            raise ConfigurationError(f"kept_bytes is {self.kept_bytes}; it must be 1 or more")

    def cut(self, call: ToolCall, outcome: ToolOutcome, outputs: KeptOutputs) -> ToolOutcome:
        """Return the outcome of a step as the agent gets it. Keep its text in ``outputs`` if it is cut.

        Images and other content without text pass unchanged.
        """
        value = outcome.value
        if call.name in (SEARCH, VIEW) or (type(value) is str and len(value) <= self.max_characters):
            return outcome
        if outcome.error is not None:
            if len(outcome.error.message) <= self.max_characters:
                return outcome
            shown, _ = _shown(call, outcome.error.message, outputs, self)
            error = outcome.error.model_copy(update={"message": shown})
            return ToolOutcome(error=error, duration_s=outcome.duration_s)
        result = outcome.result
        if result is None:
            return outcome
        texts = [text for block in result.content if (text := _text_of(block)) is not None]
        whole = "\n".join(texts)
        if len(whole) <= self.max_characters:
            return outcome
        shown, about = _shown(call, whole, outputs, self)
        return ToolOutcome(_cut_result(result, shown, about), None, None, outcome.duration_s)

    def tools(self, keeper: Keeper) -> Iterator[BoundTool]:
        """Return the tools that search and page outputs."""
        return tools_for_outputs(keeper, self.max_characters)


def _text_of(block: dict[str, Any]) -> str | None:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    resource = block.get("resource")
    return str(resource["text"]) if isinstance(resource, dict) and "text" in resource else None


def _cut_result(result: ToolResult, shown: str, about: dict[str, Any]) -> ToolResult:
    content: list[dict[str, Any]] = []
    placed = False
    for block in result.content:
        if _text_of(block) is None:
            content.append(block)
        elif not placed:
            content.append({"type": "text", "text": shown})
            placed = True
    # A cut text is structured content only where the whole one was: a wrapped string.
    wrapped = isinstance(result.data, str) and result.structured_content == {"result": result.data}
    meta = {key: value for key, value in (result.meta or {}).items() if wrapped or key != "fastmcp"}
    return ToolResult.model_construct(
        content=content,
        structured_content={"result": shown} if wrapped else None,
        data=shown if wrapped else None,
        is_error=result.is_error,
        meta={**meta, OUTPUT_META: about},
    )


def _shown(call: ToolCall, text: str, outputs: KeptOutputs, settings: LongOutputs) -> tuple[str, dict[str, Any]]:
    """Keep a text. Return its beginning and end with a note, and data about it for programs."""
    data = text.encode()
    output = Output(f"output-{call.step}", text, len(data), call.principal)
    kept = outputs.add(output, settings.kept_bytes)
    end = settings.max_characters // 4
    begin = settings.max_characters - end
    left_out = f"{len(text) - begin - end} of {len(text)} characters are left out here."
    if kept:
        where = f'The whole output has the id "{output.id}": read it with {SEARCH} and {VIEW}.'
    else:
        where = f"The rest is lost: an episode keeps at most {settings.kept_bytes} bytes of outputs."
    shown = f"{text[:begin]}\n\n[{left_out} {where}]\n\n{text[-end:]}"
    about = {
        "id": output.id,
        "characters": len(text),
        "lines": text.count("\n") + 1,
        "kept": kept,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return shown, about
