"""Environments in the same process, with the methods of clients."""

from __future__ import annotations

from .client import InProcessClient, SyncInProcessClient

__all__ = ["InProcessClient", "SyncInProcessClient"]
