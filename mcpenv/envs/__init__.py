"""Environments that come with mcpenv. In a clone they stand in ``envs/`` at its top; a wheel has them here."""

from __future__ import annotations

from pathlib import Path

_CLONE = Path(__file__).parents[2]
if (_CLONE / "pyproject.toml").is_file() and (_CLONE / "envs").is_dir():
    __path__ = [*__path__, str(_CLONE / "envs")]
