"""The adapter for verl: an agent loop that plays episodes of a server, and the rows of its dataset.

Needs the package verl. Agent loops run in worker processes of Ray, so the loop is named in a file of verl's setting
``agent_loop_config_path``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.utils.profiler import simple_timer

from mcpenv_client.client import EnvClient
from mcpenv_client.conversation import Conversation
from mcpenv_client.errors import ToolNotExpressible
from mcpenv_client.formats.text_calls import TextCalls
from mcpenv_client.rows import COLUMNS, labels_of
from mcpenv_client.types.turns import NOT_BEGUN, Opening

from .attempts import begun
from .failures import EpisodeFailed, reward_of
from .hosted import WAIT_FOR_SLOT_S
from .sessions import Sessions
from .templates import left_out

logger = logging.getLogger(__name__)

LIMIT = "rollout_limit"
"""The reason of an episode that verl ended: ``response_length``, ``max_assistant_turns`` or ``max_user_turns``."""

_READ_HERE: dict[str, TextCalls] = {"hermes": "hermes", "qwen3_coder": "qwen-xml"}
"""The formats of calls that the conversation reads by the whole schemas.

verl's parsers drop unreadable calls, or have no type for nested arguments.
"""


class McpenvLoop(ToolAgentLoop):
    """One trajectory of verl, which is one episode.

    The prompt has the tools with whole schemas, and the system messages of the row. The score is the episode's return;
    ``episode_status`` and ``episode_parts`` are columns of the batch. An episode in which the environment, a judge or
    the connection failed is retried, then raises. An episode that nothing scored raises at once, because verl has no
    mark for a missing score.

    Args:
        args, kwargs: the arguments that verl gives a loop.
        url: the server.
        max_turns: the maximum of the model's messages; None: verl's own limits only.
        retries: the number of retries of a failed episode.
        check_template: refuse a chat template that omits parts of a tool's schema.
        client: arguments of `EnvClient`.
        mask_failed_steps: play an episode again after a step that failed by no fault of the agent.
    """

    def __init__(
        self,
        *args: Any,
        url: str,
        max_turns: int | None = None,
        retries: int = 2,
        check_template: bool = True,
        client: Mapping[str, Any] | None = None,
        mask_failed_steps: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._client = {"capacity_timeout_s": WAIT_FOR_SLOT_S, **(client or {})}
        self._url = url
        self._max_turns = max_turns
        self._retries = retries
        self._check_template = check_template
        self._mask_failed_steps = mask_failed_steps
        self._text_calls = _READ_HERE.get(self.tool_parser_name)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Play the episode that the row's ``episode`` names.

        Raises:
            EpisodeFailed: each attempt failed by no fault of the agent, or nothing scored the episode.
            ToolNotExpressible: the chat template omits parts of a tool's schema.
            ValueError: the row names no episode.
            WireError: the environment refused the row.
            ConnectionFailed: there is no server.
        """
        if not kwargs.get("episode"):
            raise ValueError("the row has no column 'episode'; make the dataset by rows() of this module")
        system = [message for message in kwargs["raw_prompt"] if message["role"] == "system"]
        ending = NOT_BEGUN
        for _ in range(self._retries + 1):
            async with EnvClient(self._url, **self._client) as session, self._conversation_of(session) as conversation:
                opening = await begun(conversation, kwargs["episode"], self._retries)
                if opening is None:
                    break
                self._offer(opening)
                self._conversation = conversation
                prompt = {"raw_prompt": [*system, *opening.messages]}
                output: AgentLoopOutput = await super().run(sampling_params, **{**kwargs, **prompt})
                cut = not conversation.done
                ending = await conversation.end(truncated=cut or None, reason=LIMIT if cut else None)
            if ending.status.usable:
                output.reward_score = reward_of(ending)
                about = {"episode_status": ending.status.code.value, "episode_parts": dict(ending.parts)}
                output.extra_fields.update(about)
                return output
            logger.warning("an attempt at %s failed: %s", kwargs["episode"], ending.reason)
            if not ending.status.retryable:
                break
        raise EpisodeFailed(ending.status, ending.reason)

    def _conversation_of(self, session: EnvClient) -> Conversation:
        return Conversation(
            session,
            tool_format="hf",
            text_calls=self._text_calls,
            max_turns=self._max_turns,
            mask_failed_steps=self._mask_failed_steps,
        )

    def _offer(self, opening: Opening) -> None:
        """Give the template the schemas unchanged: verl's own classes cannot express nested ones."""
        problems = left_out(self.tokenizer, opening.tools) if self._check_template else {}
        if problems:
            raise ToolNotExpressible("chat template", problems)
        self.tool_schemas = opening.tools

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        """Generate. A message without calls goes to the conversation too: there may be a user who answers it."""
        kept = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        # At a limit of its own, verl ends the loop without the message.
        return AgentState.PROCESSING_TOOLS if len(agent_data.messages) > kept else state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        """Make the calls of the model's last message in order, and append the messages that follow."""
        before = list(agent_data.messages)
        written = None if self._text_calls is None else self.tokenizer.decode(agent_data.response_ids)
        with simple_timer("tool_calls", agent_data.metrics):
            turn = await self._conversation.act(before[-1] if written is None else written)
        if turn.done:
            return AgentState.TERMINATED
        agent_data.messages += turn.messages
        logprobs = agent_data.response_logprobs or None
        merged, mask, logprobs = await self.ct_merge_context_msg(
            before, agent_data.messages, agent_data.prompt_ids, agent_data.response_mask, logprobs, self.tool_schemas
        )
        if len(mask) >= self.response_length:
            return AgentState.TERMINATED
        agent_data.prompt_ids, agent_data.response_mask = merged.token_ids, mask
        agent_data.response_logprobs = logprobs or []
        agent_data.user_turns += 1
        return AgentState.GENERATING


def rows(url: str, split: str | None = "train", num_tasks: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a dataset, one for each task or seed. verl plays a row ``rollout.n`` times as one group.

    ``extra_info`` has the row's index and the labels of its task.

    Args:
        url: the server.
        split: the split; None: rows have seeds.
        num_tasks: the maximum of rows; the number of seeds without a split.
        options: as `Sessions` takes them.

    Raises:
        ValueError: there are no tasks.
        WireError, ConnectionFailed: the server cannot list its tools or tasks.
    """
    found, _ = Sessions(url, **options).listed(split, num_tasks)
    return [
        {
            "prompt": row.get("prompt") or [{"role": "user", "content": ""}],
            "data_source": "mcpenv",
            "agent_name": "mcpenv",
            "episode": {name: row[name] for name in COLUMNS if row.get(name) is not None},
            "extra_info": {"index": at, **labels_of(row)},
        }
        for at, row in enumerate(found)
    ]
