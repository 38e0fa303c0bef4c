"""SnapshotRef: the name of a snapshot that the server holds."""

from __future__ import annotations

from pydantic import ConfigDict

from .models import Model


class SnapshotRef(Model):
    """A snapshot on the server, for `EnvClient.restore` and `EnvClient.fork`. Plain data: it may be kept and sent.

    Attributes:
        snapshot_id: its name, which only the session that made it, and those forked from it, can use.
        episode_id: the episode that it was taken of.
        step: steps that the episode had.
        bytes: what it counts for at the server.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    snapshot_id: str
    episode_id: str
    step: int
    bytes: int
