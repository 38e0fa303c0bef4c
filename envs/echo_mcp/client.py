"""Define a typed client of the echo environment. It needs ``mcpenv_client`` only."""

from __future__ import annotations

from mcpenv_client import Action, EnvClient, Observation, State, StepResult


class EchoState(State):
    """The state of an episode. A copy of the environment's class, because a client cannot import that one."""

    last_message: str | None = None
    messages: int = 0
    words: int = 0


class EchoClient(EnvClient[Action, Observation, EchoState]):
    """An `EnvClient` with the environment's tools as methods.

    ::

        with EchoClient("http://127.0.0.1:8000").sync() as env:
            env.reset()
            env.echo_message("hello world").reward  # 0.2
            env.state().words  # 2
    """

    async def echo_message(self, message: str) -> StepResult[Observation]:
        """Take a step that echoes a message. Its ``text`` is the message."""
        return await self.call_tool("echo_message", {"message": message})

    async def echo_with_length(self, message: str) -> StepResult[Observation]:
        """Take a step that echoes a message. ``observation.result.data`` has ``message`` and ``length``."""
        return await self.call_tool("echo_with_length", {"message": message})

    async def say_goodbye(self) -> StepResult[Observation]:
        """Take the last step, which ends the episode."""
        return await self.call_tool("say_goodbye")
