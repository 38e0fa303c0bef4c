"""A typed client of the echo environment. Needs ``mcpenv_client`` only, not the environment's own requirements."""

from __future__ import annotations

from mcpenv_client import Action, EnvClient, Observation, State, StepResult


class EchoState(State):
    """What was echoed in this episode (the environment's class of that name, which a client cannot import)."""

    last_message: str | None = None
    messages: int = 0
    words: int = 0


class EchoClient(EnvClient[Action, Observation, EchoState]):
    """`EnvClient` with the environment's tools as methods.

    ::

        with EchoClient("http://127.0.0.1:8000").sync() as env:
            env.reset()
            env.echo_message("hello world").reward  # 0.2
            env.state().words  # 2
    """

    async def echo_message(self, message: str) -> StepResult[Observation]:
        """Echo a message: a step. Its ``text`` is the message."""
        return await self.call_tool("echo_message", {"message": message})

    async def echo_with_length(self, message: str) -> StepResult[Observation]:
        """Echo a message with its length: a step. ``observation.result.data`` has ``message`` and ``length``."""
        return await self.call_tool("echo_with_length", {"message": message})

    async def say_goodbye(self) -> StepResult[Observation]:
        """End the episode: a step, which is the last."""
        return await self.call_tool("say_goodbye")
