"""Turns: the model turns of one episode, stored without repeated parts of their requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from mcpenv_client.types.model_turns import CONVERSATION, Api, ModelTurn, Repeated

COMPARED = 8
"""The number of latest turns to compare a request with. Agents interleave several conversations."""


@dataclass(frozen=True)
class _Kept:
    index: int
    api: Api
    request: dict[str, Any]


@dataclass
class Shortening:
    """The latest requests of an episode, for comparison with the next ones.

    Attributes:
        count: the number of turns so far.
    """

    count: int = 0
    _latest: deque[_Kept] = field(default_factory=lambda: deque(maxlen=COMPARED))

    def shortened(self, turn: ModelTurn) -> ModelTurn:
        """Return the next turn of the episode without the parts that an earlier request has.

        `request_of` reverses it.
        """
        kept = _Kept(self.count, turn.api, turn.request)
        same = [each for each in self._latest if each.api == kept.api]
        before = max(same, key=lambda each: (_common(each, kept), each.index), default=None)
        self._latest.append(kept)
        self.count += 1
        return turn if before is None else _without(turn, before, _common(before, kept))


def _messages(kept: _Kept) -> list[Any]:
    """Return the conversation of a request; an empty one if it is a text, which the responses API allows."""
    found = kept.request.get(CONVERSATION[kept.api])
    return found if isinstance(found, list) else []


def _common(before: _Kept, now: _Kept) -> int:
    """Return the length of the common prefix of two requests' messages."""
    pairs = zip(_messages(before), _messages(now), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _without(turn: ModelTurn, before: _Kept, messages: int) -> ModelTurn:
    conversation = CONVERSATION[turn.api]
    same = [
        name
        for name, value in turn.request.items()
        if name != conversation and name in before.request and before.request[name] == value
    ]
    if not same and not messages:
        return turn
    request = {name: value for name, value in turn.request.items() if name not in same}
    if messages:
        request[conversation] = request[conversation][messages:]
    return replace(turn, request=request, repeated=Repeated(before.index, messages, same))


class EpisodeTurns:
    """The turns of one episode, in the order in which they ended."""

    def __init__(self) -> None:
        self.turns: list[ModelTurn] = []
        self._shortening = Shortening()

    def add(self, turn: ModelTurn) -> None:
        """Add the next turn."""
        self.turns.append(self._shortening.shortened(turn))
