"""The beginning of an episode, with retries if the environment failed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mcpenv_client.conversation import Conversation
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.rows import COLUMNS
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.turns import Ending, Opening

logger = logging.getLogger(__name__)

UNBEGUN = Ending(None, {}, Status(StatusCode.ENV_ERROR, Stage.RESET, True), True, "the episode could not begin")
"""The ending of an episode whose reset failed each time."""


async def begun(conversation: Conversation, row: Mapping[str, Any], retries: int) -> Opening | None:
    """Begin the episode of a row; return None if the environment or the connection failed each time.

    Args:
        row: columns of a trainer's dataset; columns that do not identify an episode are ignored.
        retries: the number of retries.

    Raises:
        WireError: the environment refused the row.
    """
    named = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    for attempt in range(retries + 1):
        try:
            return await conversation.begin(named or None)
        except (WireError, ConnectionFailed) as error:
            if isinstance(error, WireError) and error.status is None:
                raise
            logger.warning("attempt %d to begin an episode of %s failed: %s", attempt + 1, named, error)
    return None
