"""tau2's customers, and what is refused before the package is needed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mcpenv import ConfigurationError, MCPEnvironment, TargetError
from mcpenv.extensions.tau2.customers import Customer, ObedientUser
from mcpenv.extensions.tau2.environment import load
from mcpenv.extensions.users import add_user, user_turns
from mcpenv.targets.target import load_target


class Lamp(MCPEnvironment):
    """A lamp that the customer alone can reach."""

    def __init__(self) -> None:
        self.level = 0
        add_user(self, self.toggle, self.dim)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.level = 0
        self.user = Customer(ObedientUser("It is dark."))

    def toggle(self) -> str:
        """Press the switch."""
        self.level = 0 if self.level else 9
        return f"level {self.level}"

    def dim(self, level: int) -> str:
        """Turn the knob."""
        self.level = level
        return f"level {level}"


def told(env: MCPEnvironment, message: str) -> Any:
    return env.call_tool("respond", {"message": message})


def test_an_obedient_customer_tells_the_wishes_once_makes_the_calls_of_each_line_and_leaves() -> None:
    with Lamp() as env:
        env.reset()
        first = told(env, "What is wrong? Please toggle it.").result.text
        assert first.startswith("It is dark.") and "toggle, dim" in first and env.level == 0
        both = told(env, 'Please do this:\ntoggle()\n  dim {"level": 4}').result.text
        assert both == "toggle: level 9\ndim: level 4" and env.level == 4
        assert "not JSON" in told(env, "dim {level}").result.text
        assert "level" in told(env, 'dim {"level": "high"}').result.text and env.level == 4
        last = told(env, "Is it bright now?")
        assert last.done and env.user.heard[-1] == "Is it bright now?" and len(env.user.heard) == 5
        assert env.trajectory is not None
        made = [[(call.name, dict(call.arguments)) for call in turn.calls] for turn in user_turns(env.trajectory)]
        assert made[:2] == [[], [("toggle", {}), ("dim", {"level": 4})]]


def test_a_fork_has_a_customer_who_remembers_the_conversation() -> None:
    with Lamp() as env:
        env.reset()
        told(env, "Hello.")
        with env.fork() as other:
            assert told(other, "toggle").result.text == "toggle: level 9"
            assert other.user.heard == ["Hello.", "toggle"] and env.user.heard == ["Hello."]
            assert (other.level, env.level) == (9, 0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"user": "nobody"}, "there is no user 'nobody'"),
        ({"user": "model"}, "needs user_url and user_model"),
        ({"user_url": "http://127.0.0.1:1/v1"}, "needs user_url and user_model"),
        ({"user": "script", "user_model": "m"}, "user is 'script'"),
        ({"user_url": "no address", "user_model": "m"}, "user_url"),
        ({"judge_model": "m"}, "a judge needs judge_url and judge_model"),
        ({"judge_url": "no address", "judge_model": "m"}, "judge_url"),
        ({"knowledge": "full_kb"}, "only banking has documents"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_the_package_is_needed(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], problem: str
) -> None:
    monkeypatch.setitem(sys.modules, "mcpenv.extensions.tau2.domains", None)
    with pytest.raises(ConfigurationError, match=problem):
        load("retail", **settings)


def test_without_its_package_a_domain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mcpenv.extensions.tau2.domains", raising=False)
    for package in ("inspect_ai.model", "inspect_ai"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TargetError, match=r"inspect_ai.* is missing. Run pip install 'mcpenv\[tau2\]'"):
        load_target("tau2:retail")
    with pytest.raises(TargetError, match=r"there is no domain 'mock' .*retail, airline, telecom, banking"):
        load_target("tau2:mock")
