"""What `mcpenv trajectories show` prints of the turns of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens, TurnUsage
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory


def step(number: int, at: float) -> StepRecord:
    return StepRecord(ToolCall("add", {"by": 1}, number), ToolOutcome.returned(str(number), 0.1), started_at=at)


def turn(at: float, said: str, *calls: TurnCall, **options: object) -> ModelTurn:
    answer = {"choices": [{"message": {"content": said}}]}
    made = ModelTurn("chat_completions", "/v1", {}, started_at=at, status=200, answer=answer, calls=list(calls))
    made.model, made.usage = "m-1", TurnUsage(1234, 5, 1000)
    made.tokens = [TurnTokens([1, 2], [-0.5, -1.0], ["a", "b"])]
    for name, value in options.items():
        setattr(made, name, value)
    return made


def test_turns_stand_between_the_steps_that_they_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        turn(10.0, "first\x1b[2J", TurnCall("a", "mcp__env__add", {"by": 1}, 1), TurnCall("b", "Bash", "ls")),
        turn(12.0, "second", TurnCall("c", "add", {"by": 1}, 2), status=None, error="no answer came", cut="endpoint"),
    ]
    with Recorder(tmp_path) as recorder:
        trajectory = Trajectory("e1", steps=[step(1, 11.0), step(2, 13.0)])
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=turns))
    assert execute(["trajectories", "show", str(tmp_path), "e1"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    text = "\n".join(lines)
    order = [text.index(part) for part in ("turn 0", "1. add", "turn 1", "2. add")]
    assert order == sorted(order)
    assert "turn 0  m-1  chat completions, 200, 1,234 tokens (1,000 cached) in, 5 out, 2 kept with ids and" in text
    assert "first\\x1b[2J" in lines
    assert 'calls mcp__env__add({"by": 1})  step 1' in lines
    assert "calls Bash(ls)  made no step" in lines
    assert "turn 1  m-1  chat completions, no answer" in text
    assert {"no answer came", "cut by the endpoint"} <= set(lines)


def test_clocks_that_differ_do_not_part_a_call_from_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [turn(1000.0 + number, "so", TurnCall("a", "add", {"by": 1}, number)) for number in (1, 2)]
    with Recorder(tmp_path) as recorder:
        trajectory = Trajectory("e1", steps=[step(1, 5.0), step(2, 6.0)])
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=turns))
    assert execute(["trajectories", "show", str(tmp_path), "e1"]) == 0
    text = capsys.readouterr().out
    order = [text.index(part) for part in ("turn 0", "1. add", "turn 1", "2. add")]
    assert order == sorted(order)
