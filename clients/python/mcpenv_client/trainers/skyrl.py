"""The adapter for SkyRL: an environment of mcpenv as a text environment of skyrl-gym, and the rows of its dataset.

Needs the package skyrl-gym. `skyrl_generator` has the generator that retries failed episodes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from mcpenv_client.conversation import Conversation
from mcpenv_client.errors import McpenvError
from mcpenv_client.formats.text_calls import TextCalls
from mcpenv_client.pool.sessions import Session
from mcpenv_client.rows import COLUMNS
from mcpenv_client.types.turns import NOT_BEGUN, Ending

from .failures import rest_of, reward_of
from .sessions import Place, Sessions

T = TypeVar("T")

HERMES = """# Tools

You may call functions. Their signatures are within <tools></tools>, one a line:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <object>}}
</tool_call>"""
"""The system message that offers tools, because SkyRL's generator gives chat templates none."""


OF_ROLLOUT: ContextVar[list[McpenvTextEnv] | None] = ContextVar("of_rollout", default=None)
"""The environments that the rollout of this asyncio task made; None outside of `RetryingGenerator`."""


class McpenvTextEnv(BaseTextEnv):
    """An episode for SkyRL's generator. `register` gives it an id.

    The first message of the prompt has the tools with whole schemas, the last one the episode's prompt. The last step's
    reward includes the reward of the end. `init`, `step` and `get_metrics` raise `EpisodeFailed` or an error of the
    client if the environment, a judge or the connection failed, or nothing scored the episode. SkyRL has no mark for a
    missing reward.

    Args:
        target: servers or an environment in this process, as `Sessions` takes it.
        extras: the columns of the row, and the generator's ``max_turns``.
        env_config: unused.
        text_calls: how the model writes calls; ``tools_prompt`` must describe the same format.
        tools_prompt: the system message, with ``{tools}`` for the schemas.
        settings, client: as `Sessions` takes them.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
    """

    def __init__(
        self,
        target: Place,
        extras: Mapping[str, Any] | None = None,
        env_config: Any = None,
        *,
        text_calls: TextCalls = "hermes",
        tools_prompt: str = HERMES,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        mask_failed_steps: bool = True,
    ) -> None:
        super().__init__()
        columns = dict(extras or {})
        self.max_turns = columns.get("max_turns", 50)
        self._row = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
        self._tools_prompt = tools_prompt
        self._mask_failed_steps = mask_failed_steps
        self._text_calls: TextCalls = text_calls
        self._sessions = Sessions(target, settings, client)
        self._session: Session | None = None
        self._conversation: Conversation | None = None
        self._given: list[float] = []
        self._ending: Ending = NOT_BEGUN
        self._calling: asyncio.Task[Any] | None = None
        self._abandoned = False
        made = OF_ROLLOUT.get()
        if made is not None:
            made.append(self)

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin the episode.

        Return its tools, the system messages of the row, and the prompt; and the episode's metadata.

        Raises:
            WireError, ConnectionFailed: it cannot begin.
        """
        self._session = self._sessions.open()
        conversation = Conversation(
            self._session,
            tool_format="hf",
            text_calls=self._text_calls,
            max_turns=self.max_turns,
            mask_failed_steps=self._mask_failed_steps,
        )
        try:
            opening = self._run(lambda: conversation.begin(self._row or None))
        except McpenvError:
            self.close()
            raise
        self._conversation = conversation
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in opening.tools)
        texts = [message["content"] for message in prompt if message["role"] == "system"]
        system = "\n\n".join([*texts, self._tools_prompt.format(tools=tools)])
        return [{"role": "system", "content": system}, *opening.messages], dict(opening.info)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Make the calls in a text.

        Raises:
            EpisodeFailed: the episode has no reward.
        """
        conversation = self._conversation
        assert conversation is not None, "step before init"
        self.turns += 1
        turn = self._run(lambda: conversation.act(action))
        reward = turn.reward or 0.0
        if turn.done:
            ending = self._end()
            self.close()
            reward = rest_of(ending, self._given)
        self._given.append(reward)
        answers = [_user(message) for message in turn.messages]
        metadata = {} if not turn.done else {"status": self._ending.status.code.value, "reason": self._ending.reason}
        return BaseTextEnvStepOutput(
            observations=[] if turn.done else answers, reward=reward, done=turn.done, metadata=metadata
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return the return and the parts of the rewards. The episode is ended if the generator stopped earlier.

        Raises:
            EpisodeFailed: the episode has no reward.
        """
        ending = self._end()
        if ending.reward is None:
            self.close()  # the generator does not, after an exception
        return {"return": reward_of(ending), "truncated": float(ending.truncated), **ending.parts}

    def close(self) -> None:
        """End the session, and an episode that is not over."""
        session, self._session = self._session, None
        if session is not None:
            self._end()
            self._sessions.close(session)

    def abandon(self) -> None:
        """Cancel a call that another thread waits for, and those that come: they raise `CancelledError`. Do not wait.

        SkyRL calls environments in threads, for which Python waits at its end.
        """
        self._abandoned = True
        calling = self._calling
        if calling is not None:
            calling.get_loop().call_soon_threadsafe(calling.cancel)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            self._calling = asyncio.current_task()
            if self._abandoned:
                raise asyncio.CancelledError
            return await call()

        return self._sessions.run(run)

    def _end(self) -> Ending:
        conversation = self._conversation
        if conversation is not None:
            # For an ended episode, the same ending is returned again.
            cut = None if conversation.done else True
            reason = None if conversation.done else "length"
            self._ending = self._run(lambda: conversation.end(truncated=cut, reason=reason))
        return self._ending


def register(id: str, target: Place, **options: Any) -> None:
    """Register an environment, in each process that generates.

    Args:
        id: the ``env_class`` of rows.
        target, options: as `McpenvTextEnv` takes them.
    """
    skyrl_gym.register(id=id, entry_point=McpenvTextEnv, kwargs={"target": target, **options})


def rows(
    id: str, target: Place, split: str | None = "train", num_tasks: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return the rows of a dataset, one for each task or seed. SkyRL plays a row several times as one group.

    Args:
        id: the id that `register` gave.
        target, options: as `Sessions` takes them.
        split: the split; None: rows have seeds.
        num_tasks: the maximum of rows; the number of seeds without a split.

    Raises:
        ValueError: there are no tasks.
        WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
    """
    found, _ = Sessions(target, **options).listed(split, num_tasks)
    empty = [{"role": "user", "content": ""}]
    return [{**row, "prompt": row.get("prompt") or empty, "env_class": id} for row in found]


def _user(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as a user message, which templates without tools support."""
    if message["role"] != "tool":
        return dict(message)
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
