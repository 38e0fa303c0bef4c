"""The generator for SkyRL that retries episodes after a failure of their environment.

Needs the package skyrl, which requires Python 3.12, and torch.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator

from mcpenv_client.errors import ConnectionFailed, WireError

from .failures import EpisodeFailed
from .skyrl import OF_ROLLOUT, McpenvTextEnv

logger = logging.getLogger(__name__)


class RetryingGenerator(SkyRLGymGenerator):
    """`SkyRLGymGenerator` with retries: a failed environment costs its rollout a new attempt, not the batch.

    Attributes:
        retries: maximum new attempts of a rollout; after the last one the error is raised.
    """

    retries = 2

    async def agent_loop(
        self, prompt: Any, env_class: str, env_extras: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Play one rollout.

        Raises:
            EpisodeFailed, WireError, ConnectionFailed: the last attempt failed.
        """
        for attempt in range(self.retries):
            try:
                return await self._attempt(prompt, env_class, dict(env_extras), *args, **kwargs)
            except (EpisodeFailed, WireError, ConnectionFailed) as error:
                logger.warning("attempt %d of a rollout of %s failed: %s", attempt + 1, env_class, error)
        return await self._attempt(prompt, env_class, dict(env_extras), *args, **kwargs)

    async def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        made: list[McpenvTextEnv] = []
        before = OF_ROLLOUT.set(made)
        try:
            return await super().agent_loop(*args, **kwargs)
        except asyncio.CancelledError:  # Ctrl-C, or the end of a batch
            for env in made:
                env.abandon()
            raise
        finally:
            OF_ROLLOUT.reset(before)
