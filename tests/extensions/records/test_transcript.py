"""The transcript of an episode is the same whatever API its model was asked by."""

from __future__ import annotations

from typing import Any

import pytest

from mcpenv.extensions.records.transcript import transcript_of
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv_client.types.model_turns import Api, ModelTurn, Repeated, TurnCall
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task

IMAGE = {"type": "image", "mimeType": "image/png", "data": "aGk="}

FIRST: dict[Api, dict[str, Any]] = {
    "chat_completions": {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Add 2."},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                ],
            },
        ]
    },
    "responses": {
        "instructions": "Be kind.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Add 2."},
                    {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
                ],
            }
        ],
    },
    "messages": {
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Add 2."},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                ],
            }
        ],
    },
    "generate_content": {
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Add 2."}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]}
        ],
    },
}
"""The first request in each API."""

CALLS = [{"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"by": 2}'}}]
ANSWER: dict[Api, dict[str, Any]] = {
    "chat_completions": {
        "choices": [
            {"message": {"role": "assistant", "reasoning_content": "Two.", "content": "I add.", "tool_calls": CALLS}}
        ]
    },
    "responses": {
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Two."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"by": 2}'},
        ]
    },
    "messages": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Two."},
            {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "a", "name": "add", "input": {"by": 2}},
        ],
    },
    "generate_content": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Two.", "thought": True},
                        {"text": "I add."},
                        {"functionCall": {"name": "add", "args": {"by": 2}}},
                    ],
                }
            }
        ]
    },
}

LATER: dict[Api, list[Any]] = {
    "chat_completions": [
        {"role": "assistant", "content": "I add.", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "own", "content": "a file"},
        {"role": "user", "content": "Go on."},
    ],
    "responses": [
        *ANSWER["responses"]["output"],
        {"type": "function_call_output", "call_id": "a", "output": "3"},
        {"type": "function_call_output", "call_id": "own", "output": "a file"},
        {"role": "user", "content": "Go on."},
    ],
    "messages": [
        ANSWER["messages"],
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "3"},
                {"type": "tool_result", "tool_use_id": "own", "content": [{"type": "text", "text": "a file"}]},
            ],
        },
        {"role": "user", "content": "Go on."},
    ],
    "generate_content": [
        ANSWER["generate_content"]["candidates"][0]["content"],
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "add", "response": {"result": 3}}},
                {"functionResponse": {"name": "own", "response": "a file"}},
            ],
        },
        {"role": "user", "parts": [{"text": "Go on."}]},
    ],
}
"""What the second request adds: the answer, two results and a word of the user."""


def recorded(turns: list[ModelTurn], prompt: str = "Add 2.") -> RecordedEpisode:
    steps = [StepRecord(ToolCall("add", {"by": 2}, 1), ToolOutcome.returned("3", 0.1), started_at=11.0)]
    trajectory = Trajectory("e1", steps=steps, task=Task(id="t", prompt=prompt))
    return RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=turns)


def turns_of(api: Api, second: dict[str, Any], repeated: Repeated | None) -> list[ModelTurn]:
    call = TurnCall(None if api == "generate_content" else "a", "add", {"by": 2}, 1)
    return [
        ModelTurn(api, "/", FIRST[api], status=200, answer=ANSWER[api], calls=[call], started_at=10.0),
        ModelTurn(api, "/", second, repeated, status=200, answer=None, error="it hung up", started_at=12.0),
    ]


WANTED = [
    {"role": "system", "parts": [{"type": "text", "text": "Be kind."}]},
    {"role": "user", "parts": [{"type": "text", "text": "Add 2."}, IMAGE]},
    {
        "role": "assistant",
        "turn": 0,
        "parts": [
            {"type": "thought", "text": "Two."},
            {"type": "text", "text": "I add."},
            {"type": "call", "name": "add", "arguments": {"by": 2}, "step": 1},
        ],
    },
    {"step": 1},
    {"role": "tool", "parts": [{"type": "result", "id": "own"}]},
    {"role": "user", "parts": [{"type": "text", "text": "Go on."}]},
    {"role": "assistant", "turn": 1, "parts": [{"type": "error", "text": "it hung up"}]},
]


def told(episode: RecordedEpisode) -> list[Any]:
    """Return the transcript without ids of calls, and with the parts of results apart."""
    entries = transcript_of(episode)
    for entry in entries:
        for part in entry.get("parts", ()):
            if part["type"] == "call":
                part.pop("id")
            if part["type"] == "result":
                assert [each.get("text", each.get("value")) for each in part.pop("parts")] == ["a file"]
    return entries


@pytest.mark.parametrize("api", FIRST)
@pytest.mark.parametrize("whole", [False, True], ids=["only what is new", "sent again"])
def test_a_conversation_has_the_same_transcript_in_each_api(api: Api, whole: bool) -> None:
    name = {"responses": "input", "generate_content": "contents"}.get(api, "messages")
    added = LATER[api]
    request = {**FIRST[api], name: [*FIRST[api][name], *added]} if whole else {name: added}
    repeated = None if whole else Repeated(0, len(FIRST[api][name]), [])
    assert told(recorded(turns_of(api, request, repeated))) == WANTED


def test_a_prompt_that_the_model_was_not_shown_stands_first() -> None:
    (first, step) = told(recorded([], prompt="Add 2, quickly."))
    assert first == {"role": "task", "parts": [{"type": "text", "text": "Add 2, quickly."}]}
    assert step == {"step": 1}


def test_an_answer_of_an_unknown_form_is_shown_as_it_is_with_its_calls() -> None:
    turn = ModelTurn("messages", "/", {}, status=200, answer={"said": "hi"}, calls=[TurnCall("a", "add", "{", 1)])
    (entry,) = [entry for entry in told(recorded([turn])) if "turn" in entry]
    call = {"type": "call", "name": "add", "arguments": "{", "step": 1}
    assert entry["parts"] == [{"type": "data", "value": {"said": "hi"}}, call]


@pytest.mark.parametrize(
    "strange", [None, 7, "text", [], [[1]], {"role": None}, {"content": 5}, {"content": [None, 3, {}]}]
)
def test_a_request_of_any_form_has_a_transcript(strange: Any) -> None:
    for api in FIRST:
        name = {"responses": "input", "generate_content": "contents"}.get(api, "messages")
        for value in (strange, [strange]):
            turn = ModelTurn(
                api, "/", {name: value}, status=200, answer={"choices": strange, "output": strange, "content": strange}
            )
            assert {"step": 1} in transcript_of(recorded([turn]))
