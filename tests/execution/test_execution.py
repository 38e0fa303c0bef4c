from __future__ import annotations

from typing import Any

import pytest
from environments import CounterEnvironment

from mcpenv import CallToolAction
from mcpenv.execution.execution import Execution


def test_invariant_1_the_execution_core_is_one_class() -> None:
    assert Execution.__mro__ == (Execution, object)


@pytest.mark.parametrize("tool", ["add", "add_sync"])
def test_invariant_1_blocking_calls_pass_through_call_tool(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    call_tool = Execution.call_tool

    async def counted(self: Execution, name: str, *args: Any, **options: Any) -> Any:
        called.append(name)
        return await call_tool(self, name, *args, **options)

    monkeypatch.setattr(Execution, "call_tool", counted)
    env = CounterEnvironment()
    env.step(CallToolAction(tool_name=tool))
    env.call_tool(tool)
    env.call_tool(tool, timeout_s=20)
    assert called == [tool] * 3 and env.step_count == 3
    env.close()
