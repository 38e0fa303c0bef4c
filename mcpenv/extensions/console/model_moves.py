"""The models that the page Play asks for a move. The operator names them at the start; a page can name no URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request

from mcpenv.errors import ConfigurationError, EndpointFailed
from mcpenv.extensions.evaluation.agent import Acted
from mcpenv.extensions.evaluation.model_agent import ModelAgent
from mcpenv.extensions.model_proxy.exchange import Exchange
from mcpenv.extensions.model_proxy.turns import EpisodeTurns
from mcpenv.extensions.records.chat import conversation_of
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories.episode import RecordedEnvironment, RecordedEpisode
from mcpenv_client.errors import InvalidMessage, ToolNotExpressible
from mcpenv_client.formats.model_calls import ModelCall, read_message
from mcpenv_client.formats.tool_formats import ProviderTools, tools_for
from mcpenv_client.types.users import USER_MESSAGE, user_tool_of
from mcpenv_client.types.values import encode

from . import MODELS

TIMEOUT_S = 120.0
"""Timeout of one try of a request to a model, in seconds."""

TRIES = 2

Message = dict[str, Any]


class ModelMoves:
    """The handler. The conversation is made from the steps so far, whoever made them, so that undo and edits count.

    Args:
        models: the models, as `MODELS` has them.

    Raises:
        ConfigurationError: ``models`` cannot be read, or a key is missing.
    """

    def __init__(self, server: EnvServer, models: str) -> None:
        self._pool = server.pool
        self._control = server.control
        self.models = {agent.model: agent for agent in _agents(models)}
        # By instance, whose episodes follow each other.
        self._turns: WeakKeyDictionary[object, tuple[str | None, EpisodeTurns]] = WeakKeyDictionary()

    @answered
    async def move(self, request: Request) -> dict[str, Any]:
        """Ask a model for its next message, and make none of its calls. The record of the episode has the message.

        The body has ``model``, a name. The answer has ``text``, the ``calls`` of tools with their arguments, and
        ``problem``, the reason why a call cannot be read.
        """
        body = await self._control.body(request)
        session = self._pool.seen(request.path_params["session_id"])
        execution = session.execution
        agent = self.models.get(str(body.get("model")))
        if agent is None:
            raise InvalidMessage(f"model is one of: {', '.join(self.models)}")
        trajectory = execution.episode.trajectory
        if trajectory is None:
            raise InvalidMessage("there is no episode yet; reset first")
        listed = await execution.list_tools()
        user = user_tool_of(listed)
        episode = RecordedEpisode(trajectory, RecordedEnvironment(execution.environment_type, None))
        try:
            tools = tools_for(agent.tool_format, [tool for tool in listed if tool is not user])
            messages = list(_sent(conversation_of(episode), tools, None if user is None else user.name))
            # One for each request: the HTTP client belongs to `running`.
            asked = ModelAgent(agent.model, agent.base_url, agent.api_key_env, tries=TRIES, request_timeout_s=TIMEOUT_S)
            exchange = Exchange("chat_completions", "/chat/completions", status=200)

            def told(request: dict[str, Any], answer: dict[str, Any]) -> None:
                exchange.request, exchange.received = request, bytearray(encode(answer))

            async with asked.running():
                message, _ = await asked.complete(messages, tools.listed, Acted(), told)
            self._note(session, exchange)
            kept, calls = read_message(message, tools, len(trajectory.steps) + 1)
        except (EndpointFailed, ConfigurationError, ToolNotExpressible, ValueError) as error:
            raise _Failed(f"{agent.model}: {error}") from error
        text = kept["content"] if isinstance(kept["content"], str) else ""
        made = [{"name": each.action.tool_name, "arguments": each.action.arguments} for each in calls if each.action]
        if user is not None and not calls and text:
            made = [{"name": user.name, "arguments": {USER_MESSAGE: text}}]
        return {"text": text or message.get("refusal") or "", "calls": made, "problem": _problem(calls)}

    def _note(self, session: Session, exchange: Exchange) -> None:
        execution, episode = session.execution, session.execution.episode
        origin = None if episode.trajectory is None else episode.trajectory.forked_from
        episode_id, turns = self._turns.get(execution, (None, None))
        # After an undo, or after it was scored, the episode goes on as another one.
        if turns is None or episode_id not in (episode.id, None if origin is None else origin.episode_id):
            turns = EpisodeTurns()
        self._turns[execution] = episode.id, turns
        turns.add(exchange.turn())
        if execution.sink is not None:
            execution.sink.said(episode.id, turns.turns)


class _Failed(InvalidMessage):
    """The error for a model that gave no move."""

    http_status = 502


def _problem(calls: Sequence[ModelCall]) -> str | None:
    return next((each.problem for each in calls if each.action is None), None)


def _sent(messages: Sequence[Message], tools: ProviderTools, user: str | None) -> Iterator[Message]:
    """Yield a conversation as the endpoint takes it: names that it accepts, arguments as text, the user as the user."""
    sent_names = {own: sent for sent, own in tools.names.items()}
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            (function,) = (call["function"] for call in calls)
            if function["name"] == user:
                yield {"role": "assistant", "content": str(function["arguments"].get(USER_MESSAGE, ""))}
                continue
            made = {"name": sent_names.get(function["name"], function["name"])}
            made["arguments"] = encode(function["arguments"]).decode()
            yield {**message, "tool_calls": [{**calls[0], "function": made}]}
        elif message["role"] == "tool" and message["name"] == user:
            yield {"role": "user", "content": message["content"]}
        else:
            yield {name: value for name, value in message.items() if name != "name"}


def _agents(text: str) -> Iterator[ModelAgent]:
    for entry in text.split():
        name, _, address = entry.partition("=")
        url, _, variable = address.partition(",")
        if not name or not url:
            raise ConfigurationError(f"{MODELS}: {entry!r} is not NAME=URL or NAME=URL,KEY_VARIABLE")
        yield ModelAgent(name, url, variable or None)
