"""An episode of 40 turns and 5 MB of tool output in a small context: solved with the context tools, failed without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import Answer, Endpoint, called, refused, said
from long_log_world import DAYS, LOG_BYTES, KeptLogs, Logs

from mcpenv import ConfigurationError, MCPEnvironment, read_episodes
from mcpenv.extensions.evaluation import Evaluated, ModelAgent, evaluate
from mcpenv.extensions.evaluation.results import Failure
from mcpenv.trajectories.episode import CONTEXT
from mcpenv_client import messages_at

WINDOW = 20_000
"""The characters that the model's context has."""


class Reader(Endpoint):
    """A model that knows only what its messages say, and refuses more than it can hold.

    It reads a log, looks for its word, and drops what it has read. At the end it looks for all words in its history.
    """

    def _answer(self, path: str, key: str | None, body: dict[str, Any]) -> Answer:
        self.asked.append(body)
        messages = body["messages"]
        size = sum(len(json.dumps(message)) for message in messages)
        if size > WINDOW:
            return refused(400, "context_length_exceeded")
        status, answer = self._next_call(messages, body["tools"])
        if status == 200:
            answer["usage"]["prompt_tokens"] = size // 4
        return status, answer

    def _next_call(self, messages: list[dict[str, Any]], listed: list[dict[str, Any]]) -> Answer:
        asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        if asked != [message["tool_call_id"] for message in messages if message["role"] == "tool"]:
            return refused(400, "a result without its call")
        tools = {tool["function"]["name"] for tool in listed}
        last = next((message for message in reversed(messages) if message.get("tool_calls")), None)
        if last is None:
            return called(("read_log", {"day": 1}))
        name = last["tool_calls"][0]["function"]["name"]
        texts = [message["content"] for message in messages if message["role"] == "tool"]
        if name == "read_log":
            output = re.search(r'the id "([^"]+)"', texts[-1])
            if output is not None:
                return called(("search_tool_output", {"id": output[1], "pattern": "WORD", "around": 30}))
            return self._next(texts)
        if name == "search_tool_output" and "manage_context" in tools:
            return called(("check_context", {}), ("manage_context", {"keep_recent_turns": 2}))
        if name in ("search_tool_output", "manage_context", "check_context"):
            return self._next(texts)
        if name == "search_history" and (more := re.search(r"start=(\d+)", texts[-1])) is not None:
            return called(("search_history", {"text": "WORD=", "start": int(more[1])}))
        found = dict(re.findall(r"day (\d+) WORD=([a-h]{8})", "\n".join(texts)))
        return called(("answer", {"words": [found[str(day)] for day in range(1, DAYS + 1) if str(day) in found]}))

    def _next(self, texts: list[str]) -> Answer:
        days = re.findall(r"day (\d+) WORD=", "\n".join(texts))
        if not days:
            return said("I have lost the thread.")
        if int(days[-1]) < DAYS:
            return called(("read_log", {"day": int(days[-1]) + 1}))
        return called(("search_history", {"text": "WORD="}))


@pytest.fixture
def reader() -> Iterator[Reader]:
    endpoint = Reader()
    try:
        yield endpoint
    finally:
        endpoint.close()


def play(reader: Reader, world: type[MCPEnvironment], out: Path, context_tokens: int | None) -> Evaluated:
    agent = ModelAgent("reader", base_url=reader.url, max_turns=60, backoff_s=0.001, context_tokens=context_tokens)
    return evaluate(world, agent, out=out)


def test_an_agent_with_context_tools_solves_a_task_of_forty_turns_and_five_megabytes(
    reader: Reader, tmp_path: Path
) -> None:
    done = play(reader, KeptLogs, tmp_path, WINDOW // 4)
    (result,) = done.results
    assert (result.failure, result.score) == (None, 1.0), result.detail
    assert result.turns is not None and result.turns >= 40
    assert result.steps == 2 * DAYS + 1, "tools of the context are no steps"
    assert max(sum(len(json.dumps(each)) for each in body["messages"]) for body in reader.asked) <= WINDOW
    (episode,) = read_episodes(done.directory / "record")
    cut = [step.outcome.result for step in episode.trajectory.steps if step.call.name == "read_log"]
    read = [result.meta["mcpenv/output"]["characters"] for result in cut if result is not None and result.meta]
    assert len(read) == DAYS and sum(read) > 5_000_000 and min(read) >= LOG_BYTES
    assert episode.messages is not None
    assert sum(len(json.dumps(message)) for message in episode.messages) > 3 * WINDOW
    requests = [body["messages"] for body in reader.asked]
    context = episode.extra[CONTEXT]
    assert len(context["drops"]) == DAYS
    assert [messages_at(episode.messages, context, turn) for turn in range(1, len(requests) + 1)] == requests


@pytest.mark.parametrize(
    ("world", "context_tokens", "days"),
    [(Logs, None, 1), (Logs, WINDOW // 4, 1), (KeptLogs, None, 5)],
    ids=["without any", "without those of the environment", "without those of the conversation"],
)
def test_the_same_agent_fails_without_context_tools(
    reader: Reader, tmp_path: Path, world: type[MCPEnvironment], context_tokens: int | None, days: int
) -> None:
    (result,) = play(reader, world, tmp_path, context_tokens).results
    assert (result.failure, result.score) == (Failure.CONVERSATION_REJECTED, 0.0)
    assert "context_length_exceeded" in str(result.detail)
    assert 0 < result.steps <= 2 * days


def test_a_tool_of_the_environment_with_the_name_of_a_context_tool_is_refused(reader: Reader, tmp_path: Path) -> None:
    class Clash(Logs):
        """Clash."""

        def __init__(self) -> None:
            super().__init__()

            @self.tool
            def check_context() -> str:
                """Check."""
                return ""

    with pytest.raises(ConfigurationError, match="'check_context'"):
        play(reader, Clash, tmp_path, 1000)
