"""Tokens made from messages by a chat template, for endpoints that give none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from .as_chat import NotExpressed

_PARTS = {"reasoning_content": "the thought", "content": "the text", "tool_calls": "the calls"}


class ChatTokens:
    """Makes the tokens of a turn by the chat template of a tokenizer of transformers.

    They are what the template says, and not what the model sampled: a model may write one text in several ways.

    Args:
        tokenizer: the tokenizer, with a chat template and an end of sequence.
        template: further arguments of the template, such as ``enable_thinking``.
    """

    def __init__(self, tokenizer: Any, template: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = dict(template or {})

    @classmethod
    def named(cls, name: str) -> ChatTokens:
        """Return those of a tokenizer of transformers.

        Args:
            name: its name at Hugging Face, or its folder.

        Raises:
            ImportError: transformers is not installed.
            OSError, ValueError: it cannot be loaded.
        """
        try:
            from transformers import AutoTokenizer  # large and optional
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "transformers":
                raise
            raise ModuleNotFoundError(
                "a tokenizer needs the package transformers; install it", name="transformers"
            ) from error

        return cls(AutoTokenizer.from_pretrained(name))

    def __call__(self, request: dict[str, Any], answer: dict[str, Any]) -> tuple[list[int], list[int]] | None:
        """Return the tokens of a prompt and of its answer; None if the template writes the prompt differently.

        Args:
            request, answer: bodies of chat completions.

        Raises:
            NotExpressed: the template leaves out the thought, the text or the calls of the answer.
        """
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        said = choice.get("message")
        if not isinstance(said, dict):
            return None
        messages, tools = [_plain(message) for message in request.get("messages") or ()], request.get("tools")
        message = _plain({"role": "assistant", **said})
        prompt = self._tokens(messages, tools, prompt=True)
        whole = self._tokens([*messages, message], tools, prompt=False)
        text = self._rendered([*messages, message], tools)
        for name, what in _PARTS.items():
            part = message.get(name)
            if part and (not isinstance(part, str) or part.strip()):
                less = {**message, name: "" if name == "content" else None}
                if self._tried([*messages, _plain(less)], tools) == text:
                    raise NotExpressed(f"{what} of an answer")
        if whole[: len(prompt)] != prompt:
            return None
        written, end = whole[len(prompt) :], self._tokenizer.eos_token_id
        if end in written:  # what a template writes behind the end is not the model's, nor the end of a cut answer
            cut = choice.get("finish_reason") == "length"
            written = written[: len(written) - written[::-1].index(end) - cut]
        return prompt, written

    def _tried(self, messages: list[dict[str, Any]], tools: Any) -> Any:
        """Return the text of a conversation that no model has said; None if the template refuses it."""
        try:
            return self._rendered(messages, tools)
        except Exception:  # noqa: BLE001 - a template is a program, and raises what it likes
            return None

    def _rendered(self, messages: list[dict[str, Any]], tools: Any) -> Any:
        return self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=False, tokenize=False, **self._template
        )

    def _tokens(self, messages: list[dict[str, Any]], tools: Any, *, prompt: bool) -> list[int]:
        tokens: list[int] = self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=prompt, tokenize=True, return_dict=False, **self._template
        )
        return list(tokens)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as templates take it: the arguments of calls as objects, and a content that is a text."""
    plain = {name: value for name, value in message.items() if value is not None}
    if plain.get("role") == "developer":  # templates drop roles that they do not know
        plain["role"] = "system"
    if isinstance(thought := plain.pop("reasoning", None), str):  # the name of vLLM and OpenRouter
        plain.setdefault("reasoning_content", thought)
    content = plain.get("content", "")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(part.get("text", "") for part in content)
    plain["content"] = content
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        with contextlib.suppress(ValueError):  # the template shows a text that is no JSON as the model wrote it
            function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "function": function}
