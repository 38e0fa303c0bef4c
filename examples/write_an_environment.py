"""Write an environment: one class, tools as functions, a reward, an end. Then check it with the contract kit.

Run it::

    python examples/write_an_environment.py
    mcpenv run examples/write_an_environment.py     # the same class, served
"""

import random

from mcpenv import MCPEnvironment, Observation, ToolCall, ToolOutcome


class GuessNumber(MCPEnvironment):
    """Guess a number."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    max_steps = 12

    def __init__(self, highest: int = 100) -> None:
        self.highest = highest
        self.number = 0

        @self.tool
        def guess(number: int) -> str:
            """Guess the number. Answers "higher", "lower" or "right"."""
            if number == self.number:
                self.finish(reward=1.0)
                return "right"
            return "higher" if self.number > number else "lower"

        @self.tool(mode="simulation")
        def hint() -> str:
            """Say whether the number is even or odd. Costs 0.1."""
            return "odd" if self.number % 2 else "even"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.number = random.Random(seed).randint(1, self.highest)
        return Observation(metadata={"task": f"Guess a number from 1 to {self.highest}."})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return -0.1 if call.name == "hint" else None


if __name__ == "__main__":
    from mcpenv.extensions.contract import check_environment

    print(check_environment(GuessNumber, examples={"guess": {"number": 50}}))

    with GuessNumber() as env:
        env.reset(seed=7)
        hint = env.call_tool("hint")
        for number in range(1, 101):
            step = env.call_tool("guess", {"number": number})
            if step.done:
                break
        print(f"hint {hint.text}, last guess {number}: {step.text}; return {step.info['return']}")
        assert hint.reward == -0.1 and not hint.done
        assert step.truncated and step.info["reason"] == "max_steps"
