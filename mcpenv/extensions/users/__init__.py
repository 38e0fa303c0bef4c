"""Simulate the user with whom an agent speaks: scripted, or a model with a goal and tools of its own."""

from __future__ import annotations

from mcpenv_client.types.users import UserCall, UserTurn, user_turns

from .model_user import ModelUser
from .respond import add_user
from .scripted_user import ScriptedUser
from .user_tools import User, UserTools

__all__ = ["ModelUser", "ScriptedUser", "User", "UserCall", "UserTools", "UserTurn", "add_user", "user_turns"]
