"""The calls of a proxied environment after its reset: their content is the reset's observation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mcpenv import ExecutionError
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.environment import OpeningFailed, ProxyEnvironment
from mcpenv_client import StepResult
from mcpenv_client.formats.prompts import prompt_of

SERVER = Path(__file__).parent / "mcp_servers" / "everything.py"
COMMAND = {"command": sys.executable, "args": [str(SERVER)]}


def proxied(*calls: dict[str, Any], **servers: Any) -> type[ProxyEnvironment]:
    return ProxyEnvironment.from_config(
        {"mcpServers": servers or {"every": COMMAND}, "mcpenv": {"on_reset": list(calls)}}
    )


def test_the_content_of_the_last_call_is_that_of_the_reset() -> None:
    made = proxied({"tool": "add", "arguments": {"by": 3}}, {"tool": "picture"})
    with made() as env:
        first: Any = env.reset()
        assert [block["type"] for block in first.content] == ["image"]
        assert env.step_count == 0, "these calls are no steps"
        assert env.call_tool("read").text == "3"
        assert "data" not in prompt_of(StepResult(first)) and "[image]" in prompt_of(StepResult(first))


def test_a_call_that_fails_fails_the_reset() -> None:
    with proxied({"tool": "fail", "arguments": {"text": "no page"}})() as env:
        with pytest.raises(ExecutionError) as caught:
            env.reset()
        assert isinstance(caught.value.__cause__, OpeningFailed)
        assert "tool 'fail' of server 'every' failed: no page" in str(caught.value.__cause__)


def test_a_call_names_its_server_if_there_are_several() -> None:
    with pytest.raises(ConfigurationError, match="several servers; say which one has 'read'"):
        proxied({"tool": "read"}, one=COMMAND, two=COMMAND)
    with pytest.raises(ConfigurationError, match="there is no server 'three'"):
        proxied({"tool": "read", "server": "three"}, one=COMMAND)
