"""The tool by which an agent speaks to the user of its environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastmcp.exceptions import ToolError
from pydantic import Field

from mcpenv.errors import UserFailed
from mcpenv.execution.step import Step, current
from mcpenv.failures import SortedFailure, UnexpectedFailure, environment_failure
from mcpenv.tools.definition import DefinitionCache
from mcpenv_client.types.tools import ToolErrorType
from mcpenv_client.types.users import USER_META, UserTurn

from .user_tools import User, UserTools

LEFT = "user_left"
"""The reason for the end of an episode after its user has left."""

DESCRIPTION = (
    "Say something to the user and get the user's answer. The user sees nothing else of what you do. When the user has "
    "left, the episode is over."
)

_KINDS = DefinitionCache()


class Host(Protocol):
    """The parts of an `MCPEnvironment` that `add_user` needs."""

    user: User | None

    @property
    def tool(self) -> Callable[..., Any]:
        """`MCPEnvironment.tool`."""
        ...

    @property
    def finish(self) -> Callable[..., None]:
        """`MCPEnvironment.finish`."""
        ...


def add_user(env: Host, *tools: Callable[..., Any], name: str = "respond", description: str = DESCRIPTION) -> None:
    """Give an environment a tool by which the agent speaks to ``env.user``. Call it in ``__init__``.

    The user's turn is in the record of the step (`user_turns`). When the user has left, the episode is terminated. If
    the user fails, the step fails with an error of the environment, and the episode has no score. In chat rollouts a
    message without tool calls is sent to the user through this tool, and the model does not see the tool.

    Args:
        env: the environment.
        tools: the user's own tools: functions or methods, with annotations and docstrings as tools of agents have.
        name, description: of the agent's tool.

    Raises:
        InvalidTool: the name is taken, or a function cannot be a tool.
    """
    UserTools(tools, _KINDS, _refuse)  # raises now rather than in an episode

    async def respond(message: Annotated[str, Field(description="What you say to the user")]) -> str:
        step = current.get()
        assert isinstance(step, Step)
        if env.user is None:
            raise ToolError("This episode has no user.")
        try:
            turn = await env.user.answer(message, UserTools(tools, _KINDS, step.owner.user_code.call))
        except Exception as error:
            spent = error.turn if isinstance(error, UserFailed) else UserTurn("", error=type(error).__name__)
            step.logs.append(spent.to_log())
            failure = environment_failure("user", error)
            failure.__cause__ = error
            step.fault = failure
            said = UnexpectedFailure(error_type=ToolErrorType.EXECUTION_ERROR, message="The user did not answer.")
            raise SortedFailure(said) from error
        step.logs.append(turn.to_log())
        if turn.done:
            env.finish(reason=LEFT)
        return turn.text

    env.tool(respond, name=name, description=description, meta={USER_META: True})


async def _refuse(fn: Callable[..., Any]) -> Any:
    raise AssertionError("tools of a user are called in a step")
