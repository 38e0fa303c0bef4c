"""The readers of answers: whatever an endpoint sends is read, or left out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpenv.extensions.model_proxy.answers import chat_completions
from mcpenv.extensions.model_proxy.apis import READERS, events_of
from mcpenv_client.types.model_turns import Api, TurnTokens

NAMES = [
    "candidates",
    "parts",
    "functionCall",
    "args",
    "logprobsResult",
    "chosenCandidates",
    "usageMetadata",
    "choices",
    "delta",
    "message",
    "tool_calls",
    "index",
    "function",
    "arguments",
    "name",
    "content",
    "logprobs",
    "token_ids",
    "usage",
    "error",
    "type",
    "response",
    "item",
    "output",
    "output_index",
    "content_block",
    "message_start",
    "partial_json",
    "input",
    "id",
    "call_id",
    "token",
    "logprob",
    "text",
    "prompt_token_ids",
    "finish_reason",
]
KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "message_delta",
    "error",
    "response.completed",
    "text_delta",
    "response.output_item.done",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "input_json_delta",
    "function_call",
    "tool_use",
    "citations_delta",
    "thinking_delta",
]

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For machines that do other things meanwhile."""

leaves = st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["", "x", "{", *KINDS])
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
events = st.lists(st.dictionaries(st.sampled_from(NAMES), values, max_size=5), max_size=5)


@pytest.mark.parametrize("api", READERS)
@UNHURRIED
@given(events=events)
def test_no_stream_fails_its_reader(api: Api, events: list[dict[str, Any]]) -> None:
    READERS[api].read(READERS[api].assembled(copy.deepcopy(events)))


@pytest.mark.parametrize("api", READERS)
@UNHURRIED
@given(answer=st.dictionaries(st.sampled_from(NAMES), values))
def test_no_answer_fails_its_reader(api: Api, answer: dict[str, Any]) -> None:
    READERS[api].read(copy.deepcopy(answer))


def test_ids_are_read_where_servers_put_them() -> None:
    logprobs: list[list[dict[str, Any]]]
    logprobs = [
        [{"token": "token_id:17", "logprob": -1.0}],
        [{"token": "a", "id": 17, "logprob": -1.0}],
        [{"token": "a", "logprob": -1.0}],
    ]
    found = [chat_completions.read({"choices": [{"logprobs": {"content": entries}}]}).tokens[0] for entries in logprobs]
    assert [tokens.ids for tokens in found] == [[17], [17], None]
    assert found[2] == TurnTokens(None, [-1.0], ["a"])


def test_tokens_that_were_not_sampled_stay_in_the_answer() -> None:
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    answer = {"choices": [{"logprobs": {"content": [entry]}}]}
    chat_completions.read(answer)
    assert answer == {"choices": [{"logprobs": {"content": [{"top_logprobs": entry["top_logprobs"]}]}}]}


def test_an_event_that_was_cut_is_left_out() -> None:
    assert events_of(b': hello\n\ndata: {"a": 1}\n\ndata: [DONE]\n\ndata: {"b"') == [{"a": 1}]
