"""Episodes to export: of a task, with failures, an image, and a chat in which a model played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from record_worlds import Dice, Shout

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv_client import Task

TASK = Task(
    id="low-1", split="test", prompt="Stay low.", options={"target": 1000}, level=2, family="aims", tags=["low"]
)

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You play with dice."},
    {"role": "user", "content": "Stay low."},
    {
        "role": "assistant",
        "content": "Two at once.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "say", "arguments": '{"text": "hé"}'}},
            {"id": "b", "type": "function", "function": {"name": "refuse", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": '{"said":"hé"}'},
    {"role": "tool", "tool_call_id": "b", "content": "not with these dice"},
    {"role": "assistant", "content": "I give up."},
]


def record(folder: Path) -> list[RecordedEpisode]:
    """Record two episodes: one of bare calls, one that a model played."""
    with Recorder(folder) as recorder:
        env: Any = Dice()
        recorder.attach(env)
        env.reset(task=TASK, seed=1, episode_id="bare")
        env.call_tool("roll", {"times": 2})
        env.call_tool("picture")
        env.call_tool("refuse")
        env.step(Shout(text="go"))
        env.end(reason="enough")
        env.reset(task=TASK, seed=2, episode_id="model")
        env.call_tool("say", {"text": "hé"})
        env.call_tool("refuse")
        trajectory = env.trajectory
        env.end()
        tools = env.list_tools()
        assert trajectory is not None
        recorder.flush()
        made = RecordedEpisode(trajectory, RecordedEnvironment("Dice", "0.1.0"), tools=recorder.tools.keep(tools))
        made.messages, made.agent = CHAT, {"name": "script", "version": "2", "model": "scripted", "temperature": 0}
        made.trajectory.episode_id = "played"
        recorder.write(made)
    return [each for each in read_episodes(folder) if each.id != "model"]


def export(folder: Path, form: str, name: str, *options: str) -> Path:
    """The file or folder that ``mcpenv trajectories export`` writes."""
    out = folder.parent / name
    command = ["trajectories", "export", str(folder), "--format", form, "--out", str(out), *options]
    assert execute(command) == 0
    return out


def rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
