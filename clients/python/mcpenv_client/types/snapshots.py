"""The reference to a snapshot on the server: `SnapshotRef`."""

from __future__ import annotations

from pydantic import ConfigDict

from .models import Model


class SnapshotRef(Model):
    """The reference to a snapshot on the server, for `EnvClient.restore` and `EnvClient.fork`. Plain data.

    Attributes:
        snapshot_id: the id. Only the session that made the snapshot, and the sessions forked from it, can use it.
        episode_id: the id of the original episode.
        step: the number of steps that the episode had.
        bytes: the size that the server counts for it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    snapshot_id: str
    episode_id: str
    step: int
    bytes: int
