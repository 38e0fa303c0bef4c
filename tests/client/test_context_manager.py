"""The context of a long conversation: what is dropped and what stays, and that nothing is lost for the search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from strategies import given

from mcpenv_client import ContextManager, MalformedToolCall, messages_at
from mcpenv_client.context_manager import estimated_tokens

TASK = [{"role": "system", "content": "You count."}, {"role": "user", "content": "Count to forty."}]


def turn(number: int, calls: int = 1, size: int = 10) -> list[dict[str, Any]]:
    """A turn in the format of chat completions."""
    ids = [f"call-{number}-{index}" for index in range(calls)]
    listed = [{"id": id, "type": "function", "function": {"name": "add", "arguments": "{}"}} for id in ids]
    said = {"role": "assistant", "content": f"Turn {number}.", **({"tool_calls": listed} if calls else {})}
    return [said, *({"role": "tool", "tool_call_id": id, "content": f"result {id} " + "x" * size} for id in ids)]


def conversation(turns: int, calls: int = 1, limit_tokens: int | None = None, size: int = 10) -> ContextManager:
    manager = ContextManager(limit_tokens)
    for message in [*TASK, *(message for number in range(1, turns + 1) for message in turn(number, calls, size))]:
        manager.add(message)
    return manager


def test_recent_turns_and_the_task_stay() -> None:
    manager = conversation(5)
    answer = manager.answer("manage_context", {"keep_recent_turns": 2})
    assert answer.startswith("Dropped: turns 1 to 3.")
    assert manager.visible == [*TASK, *turn(4), *turn(5)]
    assert manager.history == [*TASK, *(message for number in range(1, 6) for message in turn(number))]


def test_named_turns_are_dropped() -> None:
    manager = conversation(5)
    assert "turns 1, 3 to 4" in manager.answer("manage_context", {"drop_turns": [3, 1, 4]})
    assert manager.visible == [*TASK, *turn(2), *turn(5)]
    assert "gone already" in manager.answer("manage_context", {"drop_turns": [1]})


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.integers(1, 12), max_size=8))
def test_no_result_is_ever_without_its_call(calls: list[int], keeps: list[int]) -> None:
    manager = ContextManager()
    for message in TASK:
        manager.add(message)
    sent: list[list[Any]] = []
    for number, count in enumerate(calls, 1):
        sent.append(list(manager.visible))
        said, *results = turn(number, count)
        manager.add(said)
        if keeps and number % 2:
            manager.answer("manage_context", {"keep_recent_turns": keeps.pop()})
        for result in results:
            manager.add(result)
    messages = manager.visible
    assert messages[:2] == TASK
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert called == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    record = manager.to_plain()
    assert [messages_at(manager.history, record, number) for number in range(1, len(calls) + 1)] == sent


def test_messages_of_another_api_are_kept_by_turn_too() -> None:
    manager = ContextManager()
    manager.add({"role": "user", "content": "Task."})
    for number in range(3):
        use = {"type": "tool_use", "id": str(number), "name": "add", "input": {}}
        manager.add({"role": "assistant", "content": [use]})
        manager.add({"role": "user", "content": [{"type": "tool_result", "tool_use_id": str(number), "content": "ok"}]})
    manager.answer("manage_context", {"keep_recent_turns": 1})
    assert [message["role"] for message in manager.visible] == ["user", "assistant", "user"]
    assert '"tool_use_id": "1"' in manager.answer("search_history", {"turn": 2})


def test_a_result_without_its_call_is_refused() -> None:
    manager = conversation(1)
    with pytest.raises(ValueError, match="'call-9' does not follow its call"):
        manager.add({"role": "tool", "tool_call_id": "call-9", "content": "x"})
    with pytest.raises(ValueError, match="does not follow"):
        ContextManager().add({"role": "tool", "tool_call_id": "call-9", "content": "x"})


def test_calls_of_one_message_may_share_an_id() -> None:
    manager = ContextManager()
    call = {"id": "same", "function": {"name": "add", "arguments": "{}"}}
    manager.add({"role": "assistant", "tool_calls": [call, call]})
    for _ in range(2):
        manager.add({"role": "tool", "tool_call_id": "same", "content": "x"})
    assert len(manager.visible) == 3


def test_the_state_of_the_context_is_told_with_advice() -> None:
    manager = conversation(4, limit_tokens=1000, size=900)
    manager.answer("manage_context", {"drop_turns": [2]})
    manager.used(800)
    text = manager.answer("check_context", {})
    assert "This is turn 4. 3 of 4 turns are in your context; dropped: turn 2." in text
    assert "about 800 of 1000 tokens (80%)" in text and "soon" in text
    assert "The largest turns: turn 3 (" in text
    manager.used(950)
    assert "Drop turns now with manage_context." in manager.answer("check_context", {})
    assert "It has about" in ContextManager().answer("check_context", {})


def test_the_count_of_the_api_scales_the_estimate() -> None:
    manager = conversation(3, size=4000)
    before = manager.tokens
    manager.used(2 * before)
    assert manager.tokens == 2 * before
    manager.answer("manage_context", {"keep_recent_turns": 1})
    assert manager.tokens < before


def test_long_outputs_of_dropped_turns_are_named() -> None:
    manager = conversation(1)
    manager.add({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "tail", "arguments": "{}"}}]})
    manager.add({"role": "tool", "tool_call_id": "a", "content": "cut"}, {"id": "output-2", "characters": 5000})
    for message in turn(3):
        manager.add(message)
    manager.answer("manage_context", {"keep_recent_turns": 1})
    assert "output-2 (turn 2, 5000 characters)" in manager.answer("check_context", {})


def test_dropped_turns_are_searched_and_read() -> None:
    manager = conversation(40)
    manager.answer("manage_context", {"keep_recent_turns": 1})
    assert manager.answer("search_history", {"text": "RESULT call-7-0"}).splitlines() == [
        "1 match.",
        "[turn 7, result of add] result call-7-0 xxxxxxxxxx",
    ]
    read = manager.answer("search_history", {"turn": 7})
    assert read.splitlines()[1:] == [
        "[assistant] Turn 7.",
        "[call of add] {}",
        "[result of add] result call-7-0 xxxxxxxxxx",
    ]
    assert "No match" in manager.answer("search_history", {"text": "call-7-0", "turn": 8})


def test_a_search_does_not_find_the_pages_of_searches() -> None:
    manager = conversation(3)
    call = {"id": "s", "function": {"name": "search_history", "arguments": '{"text": "result call"}'}}
    manager.add({"role": "assistant", "tool_calls": [call]})
    manager.add(
        {"role": "tool", "tool_call_id": "s", "content": manager.answer("search_history", {"text": "result call"})}
    )
    assert manager.answer("search_history", {"text": "result call"}).startswith("3 matches.")
    assert "result call" in manager.answer("search_history", {"turn": 4})


def test_a_search_is_paged() -> None:
    manager = conversation(25)
    first = manager.answer("search_history", {"text": "result"})
    assert first.startswith("25 matches.") and "start=10" in first and "[turn 10," in first and "[turn 11," not in first
    assert manager.answer("search_history", {"text": "result", "start": 20}).count("[turn ") == 5
    long = conversation(1, size=20_000)
    page = long.answer("search_history", {"turn": 1, "start": 6000})
    assert "go on with start=12000" in page and len(page) < 6200


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("manage_context", {}, "either keep_recent_turns or drop_turns"),
        ("manage_context", {"keep_recent_turns": 1, "drop_turns": [1]}, "either"),
        ("manage_context", {"keep_recent_turns": 0}, "1 or more"),
        ("manage_context", {"keep_recent_turns": True}, "whole number"),
        ("manage_context", {"drop_turns": [3]}, "turn 3 is the running one"),
        ("manage_context", {"drop_turns": "1"}, "not a list"),
        ("manage_context", {"method": "x"}, "no argument 'method'"),
        ("search_history", {}, "Give a text to find, or a turn"),
        ("search_history", {"turn": 9}, "There is no turn 9"),
        ("search_history", {"text": ""}, "at least one character"),
        ("check_context", {"a": 1}, "it takes none"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_for_the_model(
    name: str, arguments: dict[str, Any], reason: str
) -> None:
    manager = conversation(3)
    with pytest.raises(MalformedToolCall, match=reason):
        manager.answer(name, arguments)
    assert manager.visible == manager.history


def test_other_tools_and_limits_are_refused() -> None:
    manager = ContextManager()
    assert [tool.name for tool in manager.tools] == ["check_context", "manage_context", "search_history"]
    assert manager.owns("check_context") and not manager.owns("add")
    with pytest.raises(ValueError, match="'add' is not a tool"):
        manager.answer("add", {})
    with pytest.raises(ValueError, match="limit_tokens is 0"):
        ContextManager(0)


def test_an_image_counts_as_an_image_and_not_as_its_text() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    assert 1000 <= estimated_tokens(message) < 1100
