"""The environment that plays recorded episodes of MCP servers, without the servers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from fastmcp.server.dependencies import get_context
from fastmcp.tools.base import ToolResult as FastMCPResult

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, VerifierFailed
from mcpenv.execution.scoring import VERIFIED
from mcpenv.failures import MissedFailure, SortedFailure
from mcpenv.redaction import name_secret, named_in, place_back, redact_named
from mcpenv.rewards.verifiers import Evidence
from mcpenv.tasks import TaskSet
from mcpenv.tools.registry import BOTH_MODES, BoundTool
from mcpenv.tools.results import to_fastmcp
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client.errors import InvalidMessage, NotSupported
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import CASSETTE_MISS, Reward, ToolCall, ToolOutcome
from mcpenv_client.types.tools import Tool, ToolErrorType, ToolFailure

from .cassette_index import Cassette, Index, PlayedCall, Preference, after, begun, described, reads

SECRET = "MCPENV_SECRET_"
"""The prefix of the environment variables that hold the values of redacted secrets."""

_OFFERED = 5


class CassetteEnvironment(MCPEnvironment):
    """An environment that replays the episodes of a record. `from_record` makes the class for a record.

    Tools, results, log messages, rewards, verifications and ends come from the record. A call that was not recorded in
    the current state truncates the episode.

    A subclass may add tools, `score` and tasks of its own. An added tool replaces a recorded tool of the same name. Its
    own `score` replaces recorded rewards and ends.

    Attributes:
        cassette: the cassette.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    cassette: ClassVar[Cassette]

    def __init__(self) -> None:
        self._played: dict[str, Tool] = {}
        for tool in self.cassette.tools:
            self._played[tool.name] = tool
            self._execution.tools.add(BoundTool(SchemaTool(tool), partial(self._play, tool)), BOTH_MODES)
        self._state = ""
        self._asked: Counter[str] = Counter()
        self._preference = Preference(None, None)
        self._last: PlayedCall | None = None
        self._missed = False

    @classmethod
    def from_record(cls, directory: Path | str, changes: Mapping[str, str] | None = None) -> type[Self]:
        """Read a record, and return the class of environments that play it.

        Args:
            directory: the folder that ``--record`` was given.
            changes: settings by name: ``tools``, the beginning of the hash of a list of tools, if there are several.

        Raises:
            ConfigurationError: there is nothing to play, the settings do not fit, or a redacted value is missing.
            DamagedRecord: the record cannot be read.
        """
        unknown = sorted(set(changes or ()) - {"tools"})
        if unknown:
            raise ConfigurationError(f"{directory}: a cassette has no setting {unknown[0]!r}; it has: tools")
        cassette = Cassette(Path(directory), (changes or {}).get("tools"))
        _need_secrets(cassette)
        body: dict[str, Any] = {
            "__doc__": f"Recorded episodes of {', '.join(cassette.lists.servers)}.",
            "__module__": cls.__module__,
            "EXPOSED_NAME": cassette.environment.name,
            "VERSION": cassette.environment.version or cls.VERSION,
            "cassette": cassette,
        }
        if cassette.tasks:
            body["tasks"] = TaskSet(cassette.tasks)
        if cassette.verified or any(task.verifier is not None for task in cassette.tasks):
            body["verify"] = cls._verify_as_recorded
        return type(cls.__name__, (cls,), body)

    async def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Return the recorded observation. A recorded episode with the id of the new one is tried first.

        Raises:
            InvalidMessage: no episode was recorded with this task and these options.
        """
        assert self.trajectory is not None
        task = self.trajectory.task
        self._state = begun(task, redact_named(self.trajectory.options))
        self._asked.clear()
        self._preference = Preference(episode_id, seed)
        self._last, self._missed = None, False
        takes = self._index.resets.get(self._state)
        if not takes:
            what = "without a task" if task is None else f"with task {task.id!r} of split {task.split!r}"
            tasks = ", ".join(repr(each.id) for each in self.cassette.tasks[:_OFFERED]) or "none"
            raise InvalidMessage(
                f"{self.cassette.directory}: no episode was recorded {what} and options {dict(options)!r}; "
                f"recorded tasks: {tasks}"
            )
        observation = place_back(self._preference.of(takes).played[0])
        return Observation(metadata=observation.get("metadata", {}))

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | None:
        """Return the recorded reward, and end the episode as it ended."""
        played, self._last = self._last, None
        if played is None:
            return None
        # A limit is reached after a number of steps, whatever the call.
        if played.ended is False or (played.ended and self.step_count >= played.step):
            self.finish(truncated=played.ended, reason=played.reason)
        return None if self.rubric is not None else played.reward

    def save_state(self) -> Any:
        """Raise: the state of the servers is not in the record.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(f"{type(self).__name__} cannot be saved: it plays recorded episodes. Reset, and call again")

    async def _verify_as_recorded(self, evidence: Evidence) -> Reward | None:
        if self._missed:
            return None  # the episode's status gives the reason for the missing score
        takes = self._index.ends.get(self._state)
        if not takes:
            raise VerifierFailed("no recorded episode ended in this state, and a cassette has no world to verify")
        verified: Reward | None = self._preference.of(takes).played[0]
        if verified is None:
            return None
        # The record stores the components under the verification's name, which is added again.
        parts = {name: part for name, part in verified.components.items() if name != VERIFIED}
        return Reward(verified.value, {name.removeprefix(f"{VERIFIED}/"): part for name, part in parts.items()})

    @property
    def _index(self) -> Index:
        return self.cassette.index(self._played)

    async def _play(self, tool: Tool, arguments: dict[str, Any]) -> FastMCPResult:
        arguments = redact_named(arguments)
        key = after(self._state, tool.name, arguments)
        takes = self._index.calls.get(key)
        if not takes:
            raise self._miss(tool, arguments)
        recorded = self._preference.of(takes).played
        played: PlayedCall = recorded[min(self._asked[key], len(recorded) - 1)]
        self._asked[key] += 1
        if not reads(tool):
            self._state = key
        self._last = played
        context = get_context()
        for log in played.logs:
            if log.level == "progress":
                await context.report_progress(log.progress or 0.0, log.total, place_back(log.message))
            else:
                await context.log(place_back(log.message or ""), level=log.level)  # type: ignore[arg-type]
        if played.error is not None:
            message = place_back(played.error.message)
            raise SortedFailure(ToolFailure(error_type=played.error.error_type, message=message))
        result = played.result
        assert result is not None
        return to_fastmcp(
            result.model_copy(
                update={
                    "content": place_back(result.content),
                    "structured_content": place_back(result.structured_content),
                }
            )
        )

    def _miss(self, tool: Tool, arguments: Mapping[str, Any]) -> SortedFailure:
        """Truncate the episode, and return the failure for the agent."""
        self._missed = True
        self.finish(truncated=True, reason=CASSETTE_MISS)
        offered = self._index.offered(self._state)
        if offered:
            more = f", and {len(offered) - _OFFERED} more" if len(offered) > _OFFERED else ""
            recorded = f"recorded there: {'; '.join(offered[:_OFFERED])}{more}"
        else:
            recorded = "nothing is recorded there"
        message = (
            f"The cassette does not have {described(tool.name, arguments)} in this state of the episode; {recorded}"
        )
        return SortedFailure(MissedFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message))

    def _register(self, fn: Any, **options: Any) -> Any:
        name = options["options"].name or getattr(fn, "__name__", "")
        if name in self._played:
            del self._played[name]
            self._execution.tools.remove(name)
        return super()._register(fn, **options)


# The record takes the place of the verifiers of tasks.
CassetteEnvironment.author_hooks = replace(CassetteEnvironment.author_hooks, verifies_tasks=True)


def _need_secrets(cassette: Cassette) -> None:
    """Read the values of redacted secrets from variables.

    Raises:
        ConfigurationError: a variable is not set.
    """
    for name in sorted(named_in(cassette.texts())):
        variable = SECRET + "".join(letter if letter.isalnum() else "_" for letter in name.upper())
        value = os.environ.get(variable)
        if not value:
            raise ConfigurationError(
                f"{cassette.directory}: the value {name!r} is redacted in what it would play. Set {variable} to a text "
                "to place there"
            )
        name_secret(name, value)
