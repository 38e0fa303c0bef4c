"""The simulated user of an episode, and the user's tools, which agents neither see nor call."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from fastmcp.exceptions import ToolError
from pydantic import ValidationError

from mcpenv.failures import invalid_arguments
from mcpenv.tools.definition import PLAIN, DefinitionCache, ToolDefinition
from mcpenv.tools.names import check_name
from mcpenv.tools.results import result_of
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.users import UserCall, UserTurn
from mcpenv_client.wire.faults import describe_faults, faults

Run = Callable[..., Awaitable[Any]]
"""Calls a function where code of the environment runs."""


class UserTools:
    """The tools of a user: functions of the environment, with the schemas that tools of agents have.

    Raises (constructor):
        InvalidTool: a function cannot be a tool, or two have one name.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], kinds: DefinitionCache, run: Run) -> None:
        self._run = run
        self._tools: dict[str, tuple[ToolDefinition, Callable[..., Any]]] = {}
        for fn in functions:
            name = str(getattr(fn, "__name__", type(fn).__name__))
            check_name(name)
            self._tools[name] = (kinds.kind_of(fn, name, PLAIN), fn)

    @property
    def listed(self) -> list[Tool]:
        """The tools of the user, with their schemas."""
        return [kind.spec for kind, _ in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> UserCall:
        """Call a tool. An invalid call and a `ToolError` of the tool are returned, not raised.

        Raises:
            Exception: the tool raised anything else, which is an error of the environment.
        """
        if name not in self._tools:
            return UserCall(name, arguments, f"Error: there is no tool {name!r}.")
        kind, fn = self._tools[name]
        try:
            args, kwargs = kind.validate(dict(arguments))
        except ValidationError as error:
            failed = invalid_arguments(name, describe_faults(error), faults(error), kind.spec.input_schema)
            return UserCall(name, arguments, f"Error: {failed.message}")
        try:
            value = await self._run(functools.partial(fn, *args, **kwargs))
        except ToolError as error:
            return UserCall(name, arguments, f"Error: {error}")
        return UserCall(name, arguments, result_of(kind, value).text)


class User(Protocol):
    """The user of one episode. Set ``env.user`` in ``reset``.

    Its state is part of the environment's: snapshots keep it, so its attributes must be data that can be pickled.
    """

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Answer the agent. Calls come one after the other. After a cancellation the user must be as before the call.

        Args:
            message: the agent's message; it may be empty.
            tools: the tools of the user.

        Raises:
            Exception: any exception is an error of the environment: the step fails, and the episode has no score.
                `UserFailed` keeps the actions and the spending of the user until then.
        """
        ...
