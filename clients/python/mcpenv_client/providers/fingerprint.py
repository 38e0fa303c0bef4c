"""The hash of the state in which a server begins episodes, for comparing a used server with a new one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mcpenv_client.client import GenericEnvClient

from .provider import Instance

EPISODE_ID = "mcpenv-fingerprint"
"""The id of the episode, which is part of some environments' state."""


async def state_hash(instance: Instance, options: Mapping[str, Any], timeout_s: float) -> str:
    """Begin an episode in a session of its own; return the hash of its observation, state and tools.

    Args:
        instance: the server.
        options: the options of the reset, with a seed.
        timeout_s: seconds to wait for each answer.

    Raises:
        ConnectionFailed: the server does not answer.
        WireError: it refused, or the session was lost.
    """
    async with GenericEnvClient(
        instance.url, headers=instance.headers, message_timeout_s=timeout_s, capacity_timeout_s=timeout_s
    ) as client:
        result = await client.reset(episode_id=EPISODE_ID, **options)
        tools = [tool.model_dump(mode="json") for tool in await client.list_tools()]
        begun = [result.observation, result.reward, result.done, await client.state(), tools]
    return hashlib.sha256(json.dumps(begun, sort_keys=True, default=str).encode()).hexdigest()
