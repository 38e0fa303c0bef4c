"""The kinds of goals of which tasks are composed."""

from __future__ import annotations

from . import code, cron, logs, places, rights, tables, trails
from .kind import Kind

FAMILIES: dict[str, Kind] = {
    each.name: each for module in (logs, tables, code, rights, places, cron, trails) for each in module.FAMILIES
}
"""All families by name."""

__all__ = ["FAMILIES", "Kind"]
