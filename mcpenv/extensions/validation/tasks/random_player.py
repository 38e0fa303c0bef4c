"""Define `RandomPlayer`, an agent without knowledge that tries every tool and repeats texts that it has read."""

from __future__ import annotations

import random
import re
from typing import Any

from mcpenv.extensions.contract.arguments import arguments_for, fits
from mcpenv_client.formats.references import schema_at
from mcpenv_client.types.tools import Tool

_MAX_WORDS = 500
_MAX_LENGTH = 60
_MAX_DEPTH = 8
_OPTIONAL = 0.5
"""Probability of passing an optional argument."""
_READ = 0.7
"""Probability of using a text or a number that was read before, if there is one."""
_INTEGER = re.compile(r"-?[0-9]{1,12}")
_WORD = re.compile(r"[^\s\"'`,;:(){}\[\]<>]+")


class RandomPlayer:
    """An agent that calls tools at random, with arguments that fit their schemas.

    It takes its words from the prompt and from answers. It therefore solves tasks that require only repeating a
    displayed text.

    Args:
        seed: the same seed gives the same play, if the environment is deterministic.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words: list[str] = []
        self._numbers: list[float] = []

    def read(self, data: Any) -> None:
        """Collect the words and numbers of plain data that an agent can see."""
        if isinstance(data, dict):
            for key, value in data.items():
                self.read(key)
                self.read(value)
        elif isinstance(data, list):
            for value in data:
                self.read(value)
        elif isinstance(data, str):
            self._learn(data)
        elif isinstance(data, int | float) and not isinstance(data, bool):
            self._keep(self._numbers, data)

    def call(self, tools: list[Tool]) -> tuple[str, dict[str, Any]] | None:
        """Return a tool with arguments, or None if there is no tool for which arguments can be made."""
        for tool in self._random.sample(tools, len(tools)):
            arguments = self._arguments(tool.input_schema)
            if arguments is not None:
                return tool.name, arguments
        return None

    def _learn(self, text: str) -> None:
        for word in [text.strip(), *(word.strip(".!?") for word in _WORD.findall(text)[:_MAX_WORDS])]:
            if 0 < len(word) <= _MAX_LENGTH:
                self._keep(self._words, word)
            if _INTEGER.fullmatch(word):
                self._keep(self._numbers, int(word))

    def _keep(self, known: list[Any], value: Any) -> None:
        if value not in known:
            if len(known) >= _MAX_WORDS:
                known[self._random.randrange(_MAX_WORDS)] = value
            else:
                known.append(value)

    def _arguments(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        made = self._value(schema, schema, 0)
        if isinstance(made, dict) and fits(made, schema):
            return made
        return arguments_for(schema)

    def _value(self, schema: Any, root: dict[str, Any], depth: int) -> Any:
        """Return a value for a schema. It may not fit a schema that uses unsupported features."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return self._text({})
        if "$ref" in schema:
            return self._value(schema_at(schema["$ref"], root), root, depth + 1)
        if "const" in schema:
            return schema["const"]
        for word in ("enum", "anyOf", "oneOf", "examples"):
            if schema.get(word):
                chosen = self._random.choice(schema[word])
                return chosen if word in ("enum", "examples") else self._value(chosen, root, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self._random.choice(kind)
        if kind == "object":
            return self._object(schema, root, depth)
        if kind == "array":
            return self._array(schema, root, depth)
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        if kind in ("boolean", "null"):
            return None if kind == "null" else self._random.random() < 0.5
        return self._text(schema)

    def _object(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self._value(own, root, depth + 1)
            for name, own in schema.get("properties", {}).items()
            if name in required or self._random.random() < _OPTIONAL
        }

    def _array(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        size = self._random.randint(least, min(least + 3, schema.get("maxItems", least + 3)))
        return [self._value(schema.get("items", {}), root, depth + 1) for _ in range(size)]

    def _number(self, schema: dict[str, Any], *, whole: bool) -> float:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None or high > 0 else high - 100
        high = low + 100 if high is None else high
        read = [n for n in self._numbers if low <= n <= high and (not whole or n == int(n))]
        if read and self._random.random() < _READ:
            number = self._random.choice(read)
            return int(number) if whole else number
        return self._random.randint(int(low), max(int(low), int(high))) if whole else self._random.uniform(low, high)

    def _text(self, schema: dict[str, Any]) -> str:
        if self._words and self._random.random() < _READ:
            text = self._random.choice(self._words)
        else:
            text = "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=self._random.randint(1, 8)))
        text = text.ljust(schema.get("minLength", 0), "x")
        return text[: schema.get("maxLength", len(text))]
