"""Turns of an episode: stored once, joined with the steps that they made, written and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpenv.errors import ConfigurationError, DamagedRecord
from mcpenv.extensions.model_proxy.turn_files import TurnFile, joined, read_turns
from mcpenv.extensions.model_proxy.turns import EpisodeTurns
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv_client.samples.linking import link_calls
from mcpenv_client.types.model_turns import Api, ModelTurn, TurnCall, TurnTokens, request_of
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory

JSON = dict[str, Any]


def turn(request: JSON, at: float = 0.0, *calls: TurnCall, api: Api = "chat_completions") -> ModelTurn:
    return ModelTurn(api, "/v1", request, started_at=at, duration_s=0.5, calls=list(calls))


messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from("us"), "content": st.integers(0, 2)}), max_size=4)
requests = st.fixed_dictionaries(
    {}, optional={"messages": messages | st.just("text"), "model": st.sampled_from("mn"), "tools": st.integers(0, 1)}
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(requests, st.sampled_from(["chat_completions", "messages"])), max_size=12))
def test_whole_requests_come_back_from_what_is_stored(asked: list[tuple[JSON, Api]]) -> None:
    kept = EpisodeTurns()
    for request, api in asked:
        kept.add(turn(json.loads(json.dumps(request)), api=api))
    assert [request_of(kept.turns, index) for index in range(len(asked))] == [request for request, _ in asked]


def test_a_conversation_is_stored_once() -> None:
    kept, said = EpisodeTurns(), [{"role": "user", "content": "x" * 1000}]
    for number in range(50):
        kept.add(turn({"model": "m", "messages": list(said), "tools": ["y" * 1000]}))
        said.append({"role": "user", "content": str(number)})
    assert sum(len(json.dumps(each.request)) for each in kept.turns) < 6000
    assert request_of(kept.turns, 49)["messages"] == said[:-1]


def steps(*made: tuple[str, JSON, float]) -> Trajectory:
    records = [
        StepRecord(ToolCall(name, arguments, number), ToolOutcome.returned("ok", 0.1), started_at=at)
        for number, (name, arguments, at) in enumerate(made, 1)
    ]
    return Trajectory("e1", steps=records)


def told(*ids: str) -> list[JSON]:
    return [{"role": "tool", "tool_call_id": each, "content": "1"} for each in ids]


def test_calls_are_linked_to_the_steps_that_they_made() -> None:
    first = turn({"messages": []}, 10.0, TurnCall("a", "mcp__env__add", {"by": 1}), TurnCall("b", "Bash", {}))
    second = turn({"messages": told("a", "b")}, 12.0, TurnCall("c", "look_at_it", {}), TurnCall("d", "add", {"by": 2}))
    turns = [first, second, turn({"messages": told("a", "b", "c", "d")}, 14.0)]
    assert link_calls(turns, steps(("add", {"by": 1}, 11.0), ("add", {"by": 2}, 13.0), ("look.at/it", {}, 13.5))) == 3
    assert [[call.step for call in each.calls] for each in turns] == [[1, None], [3, 2], []]


def test_a_call_that_the_agent_refused_does_not_take_the_step_of_its_repetition() -> None:
    refused = turn({"messages": []}, 10.0, TurnCall("a", "add", {"by": 1}))
    repeated = turn({"messages": told("a")}, 12.0, TurnCall("b", "add", {"by": 1}))
    assert link_calls([refused, repeated], steps(("add", {"by": 1}, 13.0))) == 1
    assert (refused.calls[0].step, repeated.calls[0].step) == (None, 1)


def test_the_order_decides_where_clocks_differ() -> None:
    turns = [turn({}, 1000.0, TurnCall("a", "add", {"by": 1})), turn({}, 1001.0, TurnCall("b", "add", {"by": 1}))]
    assert link_calls(turns, steps(("add", {"by": 1}, 5.0), ("add", {"by": 1}, 6.0))) == 2
    assert [each.calls[0].step for each in turns] == [1, 2]


def written(folder: Path, at: float) -> Path:
    file = TurnFile(folder)
    first = turn({"model": "m", "messages": told("x")}, at, TurnCall("a", "add", {"by": 1}))
    first.tokens, first.prompt_ids = [TurnTokens([1, 2], [-0.5, None], ["a", "b"])], [7]
    file.add("e1", first)
    file.add("e2", turn({"messages": ["\ud800"]}))
    file.add("e1", turn({"model": "m", "messages": told("x", "a")}, at + 2))
    file.close()
    return file.path


def test_turns_are_written_as_they_end_and_joined_with_a_recorded_episode(tmp_path: Path) -> None:
    earlier = written(tmp_path, 10.0)
    earlier.rename(tmp_path / "turns-00000000-000000-1.jsonl")
    written(tmp_path, 20.0)
    turns = read_turns(tmp_path)
    assert [len(turns[name]) for name in ("e1", "e2")] == [4, 2]
    assert [len(request_of(turns["e1"], index)["messages"]) for index in range(4)] == [1, 2, 1, 2]
    assert turns["e1"][3].repeated is not None
    assert turns["e1"][3].repeated.turn == 2
    episode = RecordedEpisode(steps(("add", {"by": 1}, 11.0), ("add", {"by": 1}, 21.0)), RecordedEnvironment("count"))
    again = RecordedEpisode.from_line(joined(episode, turns["e1"]).line())
    assert again.model_turns is not None
    assert [call.step for each in again.model_turns for call in each.calls] == [1, 2]
    assert again.model_turns[0].tokens == [TurnTokens([1, 2], [-0.5, None], ["a", "b"])]


def test_a_torn_line_is_ignored_and_damage_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, 10.0)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"episode_id"')
    assert len(read_turns(tmp_path)["e1"]) == 2
    file.write_bytes(whole + b'{"episode_id": "e1"}\n')
    with pytest.raises(DamagedRecord, match=rf"{file.name}:4"):
        read_turns(tmp_path)
    with pytest.raises(ConfigurationError, match="has no turns of a model"):
        read_turns(tmp_path / "elsewhere")


def test_a_record_without_turns_is_read_as_before() -> None:
    line = json.loads(RecordedEpisode(steps(), RecordedEnvironment("count")).line())
    del line["model_turns"]
    assert RecordedEpisode.from_line(json.dumps(line).encode()).model_turns is None
