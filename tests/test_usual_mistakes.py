"""Usual mistakes of authors are refused at their line, with what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from mcpenv import ExecutionError, InvalidTool, MCPEnvironment, Observation, State
from mcpenv.rewards.rubrics import Rubric


class Nothing(Rubric):
    def forward(self, *args: Any) -> float:
        return 0.0


def look(self: Any) -> str:
    return "dark"


class Desk(MCPEnvironment):
    def __init__(self, body: Callable[[Any], Any]) -> None:
        body(self)

    def look(self) -> str:
        """Look."""
        return "It is dark."

    def search(self) -> None:
        """Search."""

    def weigh(self) -> dict[str, int]:
        """Weigh."""
        return {}


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ({"max_steps": "10"}, "Desk.max_steps is '10'. Make it an int"),
        ({"max_steps": True}, "Desk.max_steps is True. Make it an int"),
        ({"max_steps": 0}, "Desk.max_steps is 0. An episode has at least 1 step"),
        ({"rubric": Nothing}, "Desk.rubric is the class Nothing. Make it an instance: Nothing()"),
    ],
    ids=["text", "bool", "zero", "class"],
)
def test_a_wrong_setting_is_refused_in_the_class_and_by_the_first_reset(setting: dict[str, Any], advice: str) -> None:
    with pytest.raises((TypeError, ValueError), match=advice):
        type("Desk", (MCPEnvironment,), setting)
    ((name, value),) = setting.items()
    with pytest.raises(ExecutionError) as refused:
        Desk(lambda self: setattr(self, name, value)).reset()
    assert re.search(advice, str(refused.value.__cause__))

    class Late(Desk):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            setattr(self, name, value)

    with pytest.raises(ExecutionError) as refused:
        Late(lambda self: self.tool(self.look)).reset()
    assert re.search(advice.replace("Desk", "Late"), str(refused.value.__cause__))


@pytest.mark.parametrize("name", ["state", "mode", "step_count", "shared", "episode_id", "trajectory", "mcp"])
def test_a_property_of_mcpenv_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError, match=f"Desk.{name} is a property of MCPEnvironment"):
        Desk(lambda self: setattr(self, name, {}))


def test_a_task_of_the_author_hides_mcpenvs_and_says_so() -> None:
    with pytest.warns(UserWarning, match="Desk.task hides the task of the episode"):
        env = Desk(lambda self: setattr(self, "task", "mine"))
    assert vars(env)["task"] == "mine"


def test_names_that_a_class_defines_itself_can_be_set() -> None:
    class Own(MCPEnvironment):
        mode = "easy"  # type: ignore[assignment]
        task = None

        @property
        def state(self) -> State:
            return State()

        @state.setter
        def state(self, value: int) -> None:
            self.value = value

    env = Own()
    env.mode, env.task, env.state = "hard", "mine", 3  # type: ignore[assignment]
    assert (vars(env), env.value) == ({**vars(env), "mode": "hard", "task": "mine"}, 3)


@pytest.mark.parametrize(
    ("register", "advice"),
    [
        (lambda self: self.tool(self.look()), r"self.tool\(...\) in test_usual_mistakes.py:\d+ got no function"),
        (lambda self: self.tool(self.search()), r"got no function.* not self.tool\(self.method\(\)\)"),
        (lambda self: self.tool(self.weigh()), r"a dict cannot be called.* not self.tool\(self.method\(\)\)"),
        (lambda self: self.tool(look), "parameter 'self': no instance is passed. .*register self.method"),
    ],
    ids=["text", "none", "dict", "self"],
)
def test_a_tool_that_is_no_function_is_refused_before_the_first_episode(register: Any, advice: str) -> None:
    with pytest.raises(InvalidTool, match=advice):
        Desk(register).reset()
    with pytest.raises(InvalidTool, match=advice):
        Desk(register).list_tools()


def test_decorators_with_and_without_a_name_register_tools() -> None:
    def register(self: Any) -> None:
        self.tool("a")(self.look)
        self.tool()(self.search)
        self.tool(mode="simulation")(self.weigh)

    assert [tool.name for tool in Desk(register).list_tools()] == ["a", "search", "weigh"]


def test_the_prompt_of_an_observation_is_in_its_metadata() -> None:
    with pytest.raises(ValidationError, match=re.escape('Observation(metadata={"prompt": ...})')):
        Observation(prompt="Do it.")
    assert Observation(metadata={"prompt": "Do it."}).prompt == "Do it."


@pytest.mark.parametrize("name", ["x" * 129, "a\nb", " a", "a ", " ", "caf\udce9"])
def test_a_name_that_nobody_can_read_is_refused(name: str) -> None:
    with pytest.raises(InvalidTool, match="the name has"):
        MCPEnvironment().tool(name=name)(lambda: 1)
