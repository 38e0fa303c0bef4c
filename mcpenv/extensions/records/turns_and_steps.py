"""The order of a model's turns and the steps of its episode."""

from __future__ import annotations

from collections.abc import Iterator

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import StepRecord


def turns_and_steps(episode: RecordedEpisode) -> Iterator[tuple[int, ModelTurn] | StepRecord]:
    """Yield the turns, each with its index, and the steps in the order in which they began."""
    steps = iter(episode.trajectory.steps)
    step = next(steps, None)
    turns = sorted(enumerate(episode.model_turns or ()), key=lambda each: each[1].started_at)
    for number, turn in turns:
        made = {call.step for call in turn.calls if call.step is not None}
        while step is not None and step.started_at < turn.started_at and step.call.step not in made:
            yield step
            step = next(steps, None)
        yield number, turn
    while step is not None:
        yield step
        step = next(steps, None)
