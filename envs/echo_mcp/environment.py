"""Show tools, rewards, state, an end, and tools of one mode in the smallest environment: echo."""

from __future__ import annotations

from dataclasses import dataclass

from mcpenv import MCPEnvironment, Observation, State, ToolCall, ToolOutcome


@dataclass
class Echo:
    """A message that came back, and its length in characters."""

    message: str
    length: int


@dataclass
class Statistics:
    """The counts of what this instance has echoed."""

    messages: int
    words: int


class EchoState(State):
    """The state of an episode: what was echoed, in addition to episode and step count."""

    last_message: str | None = None
    messages: int = 0
    words: int = 0


class EchoEnvironment(MCPEnvironment):
    """Echo messages.

    Description:
        The agent sends text and gets it back. There is nothing to solve: it shows that the plumbing works.

    Tools:
        echo_message(message): the message.
        echo_with_length(message): the message and its length in characters.
        say_goodbye(): a farewell; ends the episode. Simulation only.
        statistics(): messages and words echoed so far. Production only.

    Observation:
        Of a reset: `Observation` with ``metadata.task``, one line that says what earns reward. Of a step: the tool's.

    Reward:
        Per step, 0.1 for each word of the echoed message, at most 1.0: [0.0, 1.0]. None (not scored) for other calls.

    Start:
        Nothing was echoed. The seed has no effect.

    End:
        Terminated by ``say_goodbye``. Truncated after ``max_steps`` steps.

    Arguments:
        max_steps: steps after which an episode is truncated, 1 or more; None (the default) for no limit.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"
    state_type = EchoState

    REWARD_PER_WORD = 0.1
    MAX_REWARD = 1.0

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.total = Statistics(messages=0, words=0)
        self.echoed = EchoState()

        @self.tool
        def echo_message(message: str) -> str:
            """Send a message and get it back."""
            return self._echo(message)

        @self.tool
        def echo_with_length(message: str) -> Echo:
            """Send a message and get it back with its length in characters."""
            return Echo(self._echo(message), len(message))

        @self.tool(mode="simulation", terminal=True)
        def say_goodbye() -> str:
            """Say goodbye, which ends the conversation."""
            return "Goodbye."

        @self.tool(mode="production")
        def statistics() -> Statistics:
            """Count the messages and words echoed so far."""
            return self.total

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.echoed = EchoState()
        return Observation(metadata={"task": "Echo messages. Each word earns 0.1, a message at most 1.0."})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if outcome.error is not None or call.name not in ("echo_message", "echo_with_length"):
            return None
        return min(self.MAX_REWARD, round(self.REWARD_PER_WORD * len(call.arguments["message"].split()), 6))

    @property
    def state(self) -> EchoState:
        return self.echoed

    def _echo(self, message: str) -> str:
        words = len(message.split())
        self.total.messages += 1
        self.total.words += words
        self.echoed.last_message = message
        self.echoed.messages += 1
        self.echoed.words += words
        return message
