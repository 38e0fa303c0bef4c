"""The rows of verl's datasets, without verl: its classes, which rows do not need, are empty here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
from trainer_worlds import COLOURS, Doors

from mcpenv.server.serve import serving

NAMES = {
    "verl.experimental.agent_loop.agent_loop": ("AgentLoopOutput",),
    "verl.experimental.agent_loop.tool_agent_loop": ("AgentData", "AgentState", "ToolAgentLoop"),
    "verl.utils.profiler": ("simple_timer",),
}


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module, names in NAMES.items():
        made = ModuleType(module)
        for name in names:
            setattr(made, name, type(name, (), {}))
        monkeypatch.setitem(sys.modules, module, made)
    adapter = "mcpenv_client.trainers.verl"
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    yield importlib.import_module(adapter)
    del sys.modules[adapter]


def test_a_row_has_the_labels_of_its_task_and_names_its_episode(verl: Any) -> None:
    with serving(Doors) as url:
        rows = verl.rows(url)
    assert [row["extra_info"] for row in rows] == [
        {"index": at, "level": 1 + at, "tags": ["door"]} for at in range(len(COLOURS))
    ]
    assert [row["episode"] for row in rows] == [{"split": "train", "index": at} for at in range(len(COLOURS))]
