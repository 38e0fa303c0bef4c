from __future__ import annotations

from typing import Any, ClassVar

import pytest

from mcpenv import MCPEnvironment
from mcpenv_client.errors import InvalidMessage


class Resets(MCPEnvironment):
    def reset(self, seed: int | None = None, episode_id: str | None = None, level: int = 1) -> None:
        self.level = level


class Closes(MCPEnvironment):
    closed = False

    def close(self) -> None:
        self.closed = True


class Both(Resets, Closes):
    """Overrides nothing."""


def test_each_hook_is_that_of_the_first_class_which_overrides_it() -> None:
    hooks = Both.author_hooks
    assert hooks.reset is Resets.author_hooks.reset and hooks.close is Closes.author_hooks.close
    assert hooks.options is Resets.author_hooks.options
    assert Resets.author_hooks.close is None and MCPEnvironment.author_hooks.close is None
    assert Closes.author_hooks.reset is None and MCPEnvironment.author_hooks.reset is None
    env = Both()
    env.reset(level=3)
    env.close()
    assert env.level == 3 and env.closed


def test_an_override_that_calls_super_runs_both_bodies() -> None:
    class Further(Both):
        def reset(self, seed: int | None = None, episode_id: str | None = None, level: int = 1) -> None:
            super().reset(level=level + 1)

    env = Further()
    env.reset(level=3)
    assert env.level == 4


def test_scoring_and_state_are_known_from_the_class() -> None:
    class Judges(MCPEnvironment):
        async def score(self, call: Any, outcome: Any) -> float:
            return 1.0

        async def verify(self, evidence: Any) -> float:
            return 1.0

        def save_state(self) -> Any:
            return super().save_state()

    plain, judges = MCPEnvironment.author_hooks, Judges.author_hooks
    assert (plain.score_is_async, plain.verifies, plain.verify_is_async, plain.saves_state) == (False,) * 4
    assert (judges.score_is_async, judges.verifies, judges.verify_is_async, judges.saves_state) == (True,) * 4
    assert not judges.verifies_tasks


def test_an_author_may_have_attributes_with_the_names_of_fields() -> None:
    class Own(MCPEnvironment):
        hooks: ClassVar[list[str]] = ["mine"]

        def __init__(self) -> None:
            self.tools, self.episode = [1], "mine"

    env = Own()
    env.reset()
    assert (env.hooks, env.tools, env.episode) == (["mine"], [1], "mine")


def test_a_reset_refuses_options_before_it_ends_the_episode() -> None:
    env: Any = Resets()
    first = env.reset(level=2).info["episode_id"]
    with pytest.raises(InvalidMessage, match="unknown reset option 'depth'"):
        env.reset(depth=1)
    assert env.episode_id == first and env.trajectory.ended_at is None
    env.reset()
    assert env.episode_id != first


def test_a_misspelt_reset_option_is_refused_with_the_name_that_was_meant() -> None:
    class World(MCPEnvironment):
        """Nothing."""

    with pytest.raises(InvalidMessage, match=r"unknown reset option 'sed'.*Did you mean 'seed'\?"):
        World().reset(sed=3)
