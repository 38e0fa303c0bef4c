"""The model's side of programs: a proxy for their model's endpoint, and the variables that name the proxy."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mcpenv.extensions.model_proxy.app import proxied
from mcpenv.extensions.model_proxy.store import TurnMemory
from mcpenv.extensions.model_proxy.turns import EpisodeTurns
from mcpenv.extensions.model_proxy.upstream import PLACEHOLDER, Upstream

from .agent import Acted
from .results import Failure

MODEL_URL = "MCPENV_MODEL_URL"

_BASES = {
    "OPENAI_BASE_URL": "/v1",
    "OPENAI_API_BASE": "/v1",
    "OPENAI_HOST": "",
    "ANTHROPIC_BASE_URL": "",
    "ANTHROPIC_HOST": "",
    "GOOGLE_GEMINI_BASE_URL": "",
}
"""The variables in which programs look for a base URL, and the path that their clients expect at its end."""

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CODEX_API_KEY", "GEMINI_API_KEY")
_OTHER_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "GOOGLE_API_KEY")

_ENDPOINTS_FAULT = frozenset({401, 403, 404, 405, 408, 409, 425, 429})


@dataclass(frozen=True)
class ModelAccess:
    """The access of one episode's program to its model.

    Attributes:
        url: the base URL of Anthropic's clients. Clients of OpenAI expect ``/v1`` after it.
        turns: the turns so far.
        own_keys: True if the program uses its own keys.
    """

    url: str
    turns: EpisodeTurns
    own_keys: bool

    def variables(self) -> dict[str, str]:
        """Return the environment variables that give programs the model's address."""
        keys = {} if self.own_keys else dict.fromkeys(_KEYS, PLACEHOLDER)
        return {MODEL_URL: self.url, **{name: f"{self.url}{end}" for name, end in _BASES.items()}, **keys}

    def counted(self, acted: Acted) -> Acted:
        """Return the outcome of a play with the turns, and with tokens and cost if the endpoint reported them.

        A program that crashed after its endpoint failed does not count as failed itself.
        """
        turns = self.turns.turns
        acted.model_turns = turns
        acted.turns = sum(turn.status == 200 for turn in turns)
        usages = [turn.usage for turn in turns if turn.usage is not None]
        if usages:
            acted.prompt_tokens = sum(usage.input_tokens or 0 for usage in usages)
            acted.completion_tokens = sum(usage.output_tokens or 0 for usage in usages)
        costs = [usage.cost for usage in usages if usage.cost is not None]
        acted.cost = sum(costs) if costs else None
        last = turns[-1] if turns else None
        if acted.failure is Failure.AGENT_CRASHED and last is not None:
            failed = last.status is None or last.status >= 500 or last.status in _ENDPOINTS_FAULT
            if failed and last.cut != "agent":
                said = "no answer" if last.status is None else f"status {last.status}"
                acted.fail(Failure.MODEL_ERROR, f"{last.error or said} ({acted.detail})")
        return acted


class ModelSide:
    """The proxy of all episodes of an evaluation.

    Args:
        upstream: the endpoint.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._store = TurnMemory()
        self._url: str | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the proxy while the block runs.

        Raises:
            ConfigurationError: the endpoint's key is missing, or no port is free.
        """
        async with proxied(self.upstream, self._store) as self._url:
            yield

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[ModelAccess]:
        """Yield the access of one episode. The programs of other episodes cannot guess its id."""
        episode_id = secrets.token_urlsafe(16)
        async with self._store.episode(episode_id) as turns:
            yield ModelAccess(f"{self._url}/episodes/{episode_id}", turns, self.upstream.api_key_env is None)

    def without_keys(self, variables: dict[str, str]) -> dict[str, str]:
        """Return environment variables without the endpoint's key, and without credentials that would be used for it.

        They are unchanged if programs use their own keys.
        """
        key = self.upstream.api_key_env
        if key is None:
            return variables
        return {name: value for name, value in variables.items() if name not in (key, *_OTHER_CREDENTIALS)}


@asynccontextmanager
async def model_of(side: ModelSide | None) -> AsyncIterator[ModelAccess | None]:
    """Yield the access of one episode; None if its program's model is not recorded."""
    async with contextlib.AsyncExitStack() as stack:
        yield None if side is None else await stack.enter_async_context(side.episode())
