"""A model's conversation with an episode, on a server and in the same process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from fastmcp.utilities.types import Image

from mcpenv import MCPEnvironment, Observation, TaskSet
from mcpenv.extensions.in_process import InProcessClient
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, InvalidMessage
from mcpenv_client.conversation import ABANDONED, OVER, Conversation
from mcpenv_client.types.status import StatusCode

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Doors(MCPEnvironment):
    """Open the door of the right colour."""

    tasks = TaskSet(
        [
            {"id": "red", "prompt": "Open the red door.", "options": {"right": "red"}},
            {"id": "blue", "prompt": "Open the blue door.", "options": {"right": "blue"}},
        ]
    )

    verified: ClassVar[list[str]] = []
    """The right colours of the episodes that were verified."""

    def __init__(self) -> None:
        self.right = ""
        self.opened: list[str] = []

        @self.tool(name="doors.open")
        def open_door(colour: str) -> str:
            """Open a door."""
            self.opened.append(colour)
            return f"The {colour} door is open."

        @self.tool
        def leave() -> str:
            """Leave the house."""
            self.finish()
            return "You left."

        @self.tool
        def look() -> Image:
            """Look around."""
            return Image(data=PNG, format="png")

        @self.tool
        def burn() -> str:
            """Burn the house down."""
            raise RuntimeError("it burns")

    def reset(self, seed: int | None = None, episode_id: str | None = None, right: str = "green") -> Observation:
        self.right, self.opened = right, []
        return Observation(metadata={"hint": "There are doors."})

    def score(self, call: Any, outcome: Any) -> float | None:
        return 0.25 if call.name == "doors.open" and call.arguments["colour"] == self.right else None

    def verify(self, evidence: Any) -> float:
        self.verified.append(self.right)
        return float(self.right in self.opened)


def call(name: str, arguments: Any, call_id: str | None = None) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {**({} if call_id is None else {"id": call_id}), "function": {"name": name, "arguments": text}}


def says(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def opens(colour: str) -> dict[str, Any]:
    return call("doors_open", {"colour": colour})


@asynccontextmanager
async def in_process() -> AsyncIterator[Any]:
    async with InProcessClient(Doors()) as env:
        yield env


@asynccontextmanager
async def on_a_server() -> AsyncIterator[Any]:
    with serving(Doors) as url:
        async with EnvClient(url) as env:
            yield env


@pytest.fixture(params=[in_process, on_a_server])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Run a body with a session, once in process and once on a server."""

    def runs(body: Callable[[Any], Awaitable[None]]) -> None:
        async def with_session() -> None:
            async with request.param() as env:
                await asyncio.wait_for(body(env), 60)

        asyncio.run(with_session())

    return runs


def test_a_row_becomes_a_prompt_calls_become_answers_and_the_end_is_verified(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env, system="Be brief.")
        opening = await conversation.begin({"split": "train", "index": 1, "colour": "a column of the trainer"})
        assert opening.messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Open the blue door."},
        ]
        names = [tool["function"]["name"] for tool in opening.tools]
        assert names == ["doors_open", "leave", "look", "burn"] and opening.info["task"]["id"] == "blue"
        turn = await conversation.act(says(opens("red"), call("doors_open", {"colour": "blue"})))
        assert [answer["content"] for answer in turn.messages] == ["The red door is open.", "The blue door is open."]
        assert [answer["tool_call_id"] for answer in turn.messages] == ["call_1_0", "call_1_1"]
        assert (turn.reward, turn.done) == (0.25, False)
        turn = await conversation.act({"role": "assistant", "content": "Done."})
        assert (turn.messages, turn.done, turn.reward) == ([], True, None)
        ending = await conversation.end()
        assert (ending.reward, ending.parts["verified"], ending.status.code) == (1.25, 1.0, StatusCode.COMPLETED)
        assert (ending.turns, ending.steps, ending.malformed_calls) == (2, 2, 0)
        assert await conversation.end() == ending
        assert [message["role"] for message in conversation.messages] == [
            *("system", "user", "assistant", "tool", "tool", "assistant")
        ]

    run(body)


def test_arguments_stay_as_the_model_wrote_them(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env)
        await conversation.begin("red")
        spaced = '{ "colour":  "red" }'
        await conversation.act(says(call("doors_open", spaced), call("leave", ""), content="I open it."))
        kept = [made["function"]["arguments"] for made in conversation.messages[1]["tool_calls"]]
        assert kept == [spaced, "{}"] and conversation.steps == 2

    run(body)


def test_calls_that_cannot_be_read_are_answered_and_are_no_steps(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env, max_malformed=2)
        await conversation.begin("red")
        turn = await conversation.act(says(call("doors_open", "red"), call("doors_open", {"colour": "red"}, "mine")))
        assert "not JSON" in turn.messages[0]["content"] and turn.messages[1]["tool_call_id"] == "mine"
        assert (conversation.steps, conversation.malformed_calls, turn.done) == (1, 1, False)
        kept = conversation.messages[1]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(kept) == {}
        assert not (await conversation.act(says(call("leave", "[1]")))).done
        turn = await conversation.act(says(call("leave", "{")))
        assert (turn.done, turn.limit) == (True, "malformed_calls")
        ending = await conversation.end()
        assert (ending.truncated, ending.reason, ending.reward) == (True, "malformed_calls", 1.25)

    run(body)


def test_a_call_that_is_nested_deeper_than_a_step_takes_is_the_models_failure(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env)
        await conversation.begin("red")
        turn = await conversation.act(says(call("doors_open", '{"colour": ' + "[" * 185 + "]" * 185 + "}")))
        assert "nested too deeply" in turn.messages[0]["content"]
        assert (conversation.steps, conversation.malformed_calls, turn.done) == (0, 1, False)
        await conversation.act(says(call("doors_open", {"colour": "red"})))
        assert conversation.steps == 1

    run(body)


def test_calls_after_the_end_are_not_made(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env)
        await conversation.begin("red")
        turn = await conversation.act(says(call("leave", {}), opens("red")))
        assert [answer["content"] for answer in turn.messages] == ["You left.", OVER]
        assert (turn.done, turn.reward, conversation.steps) == (True, 0.0, 1)
        ending = await conversation.end()
        assert (ending.reward, ending.parts, ending.truncated) == (0.0, {"verified": 0.0}, False)

    run(body)


def test_the_limit_of_turns_truncates_the_episode(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env, max_turns=1)
        await conversation.begin("red")
        turn = await conversation.act(says(opens("red")))
        assert (turn.done, turn.limit) == (True, "max_turns")
        ending = await conversation.end()
        assert (ending.truncated, ending.reason, ending.status.code) == (True, "max_turns", StatusCode.TRUNCATED)
        assert ending.reward == 1.25 and ending.status.usable

    run(body)


def test_the_next_beginning_and_the_end_of_the_block_end_an_open_episode(run: Any) -> None:
    async def body(env: Any) -> None:
        async with Conversation(env) as conversation:
            await conversation.begin("red")
            await conversation.act(says(opens("red")))
            Doors.verified.clear()
            await conversation.begin("blue")
            assert Doors.verified == ["red"]
            assert conversation.steps == 0 and len(conversation.messages) == 1
        assert (await env.trajectory()).terminated and Doors.verified == ["red", "blue"]
        with pytest.raises(KeyError):
            async with conversation:
                await conversation.begin("red")
                raise KeyError
        assert (await env.trajectory()).reason == ABANDONED

    run(body)


def test_an_episode_whose_tool_raises_has_no_reward_and_says_so(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env)
        await conversation.begin("red")
        turn = await conversation.act(says(call("burn", {})))
        assert turn.reward is None and turn.error is None
        ending = await conversation.end()
        assert ending.status.code in (StatusCode.ENV_ERROR, StatusCode.COMPLETED)
        assert (ending.reward is None) == (not ending.status.usable)

    run(body)


def test_images_of_results_follow_as_messages_of_a_user(run: Any) -> None:
    async def body(env: Any) -> None:
        for images, roles in ((True, ["tool", "user"]), (False, ["tool"])):
            conversation = Conversation(env, images=images)
            await conversation.begin("red")
            turn = await conversation.act(says(call("look", {})))
            assert [message["role"] for message in turn.messages] == roles and turn.images == 1
            await conversation.end()
        assert turn.messages[-1]["content"] == "[image]"

    run(body)


def test_models_that_write_calls_as_text_are_read(run: Any) -> None:
    texts: dict[Any, str] = {
        "hermes": 'I open it.\n<tool_call>\n{"name": "doors_open", "arguments": {"colour": "red"}}\n</tool_call>',
        "qwen-xml": "<tool_call>\n"
        "<function=doors_open>\n<parameter=colour>\nred\n</parameter>\n</function>\n</tool_call>",
        "mistral": '[TOOL_CALLS] [{"name": "doors_open", "arguments": {"colour": "red"}}]',
        "llama": '<|python_tag|>{"name": "doors_open", "parameters": {"colour": "red"}}',
    }

    async def body(env: Any) -> None:
        for form, text in texts.items():
            conversation = Conversation(env, text_calls=form)
            await conversation.begin("red")
            turn = await conversation.act(text)
            assert [answer["content"] for answer in turn.messages] == ["The red door is open."], form
            assert conversation.messages[1] == {"role": "assistant", "content": text}
            assert (await conversation.act("I am done.")).done
            assert (await conversation.end()).reward == 1.25
        conversation = Conversation(env, text_calls="hermes")
        await conversation.begin("red")
        turn = await conversation.act("<tool_call>{'name': doors_open}</tool_call>")
        assert "not JSON" in turn.messages[0]["content"] and conversation.steps == 0

    run(body)


def test_a_row_that_names_no_task_is_refused(run: Any) -> None:
    async def body(env: Any) -> None:
        conversation = Conversation(env)
        with pytest.raises(ValueError, match="a row needs 'task'"):
            await conversation.begin({"prompt": "x"})
        with pytest.raises(InvalidMessage, match="there is no task 'green'"):
            await conversation.begin("green")
        opening = await conversation.begin({"options": {"right": "red"}, "seed": 7})
        assert opening.messages == [{"role": "user", "content": "There are doors."}]

    run(body)


def test_a_lost_session_ends_the_conversation_with_its_status() -> None:
    async def body() -> None:
        with serving(Doors) as url:
            async with EnvClient(url) as env:
                conversation = Conversation(env)
                await conversation.begin("red")
                await env.close()
                turn = await conversation.act(says(call("leave", {})))
                assert turn.done and turn.error is not None
                ending = await conversation.end()
                assert ending.reward is None and ending.status.code is StatusCode.TRANSPORT_LOST
                assert ending.status.retryable and not ending.status.usable

    asyncio.run(body())


def test_the_blocking_form_plays_an_episode() -> None:
    with serving(Doors) as url:
        conversation = Conversation(EnvClient(url)).sync()
        assert conversation.begin("red").messages[0]["content"] == "Open the red door."
        assert conversation.act(says(opens("red"))).reward == 0.25
        assert conversation.end().reward == 1.25


def test_state_says_whether_the_episode_is_over(run: Any) -> None:
    async def body(env: Any) -> None:
        assert (await env.state()).done is None
        await env.reset()
        assert (await env.state()).done is False
        await env.end()
        assert (await env.state()).done is True

    run(body)
