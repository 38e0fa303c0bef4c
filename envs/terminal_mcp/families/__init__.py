"""The kinds of goals of which tasks are composed."""

from __future__ import annotations

from . import code, cron, logs, places, repositories, rights, tables, trails, zips
from .kind import Kind

FAMILIES: dict[str, Kind] = {
    each.name: each for module in (logs, tables, code, rights, places, cron, trails) for each in module.FAMILIES
}
"""The families that each backend has, by name."""

OF_PROGRAMS: dict[str, Kind] = {each.name: each for module in (repositories, zips) for each in module.FAMILIES}
"""The families that need git, zip or unzip, by name."""

__all__ = ["FAMILIES", "OF_PROGRAMS", "Kind"]
