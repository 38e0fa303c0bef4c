"""The cassette: an index of a record by calls, so that its episodes can be played without their servers.

A call is identified by its tool, its arguments and the state in which it was made. The state is the hash of the reset
and of the calls since then that may have written. So the order of reads does not matter, and episodes of one task share
their beginning.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, ToolLists, read_episodes
from mcpenv_client.fingerprint import canonical
from mcpenv_client.types.records import CASSETTE_MISS, LogEntry, Reward, Trajectory
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Tool, ToolErrorType, ToolFailure, ToolResult

SHOWN = 12
"""Digits of a hash that messages show."""


def reads(tool: Tool) -> bool:
    """Return True if a tool is declared to write nothing."""
    return bool(tool.annotations and tool.annotations.get("readOnlyHint") is True)


def begun(task: Task | None, options: Mapping[str, Any]) -> str:
    """Return the state after a reset. The seed does not count, because no server gets it."""
    return _hash({"task": None if task is None else task.name, "options": dict(options)})


def after(state: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the key of a call. If the call may write, the key is also the state after the call."""
    return _hash({"state": state, "tool": tool, "arguments": dict(arguments)})


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """The outcome of a recorded call.

    Attributes:
        result: its result; None if it failed.
        error: the failure.
        step: the number of its step.
        reward: the reward of the step without the verification of the end.
        ended: True if the episode was truncated by this step, False if it terminated; None if it continued.
        reason: the reason of that end.
    """

    result: ToolResult | None
    error: ToolFailure | None
    step: int
    logs: Sequence[LogEntry]
    reward: Reward | None
    ended: bool | None
    reason: str | None


@dataclass(slots=True)
class Take:
    """The outcomes of one recorded episode for one key, in order. A repeated call may have had another outcome."""

    episode_id: str
    seed: int | None
    played: list[Any] = field(default_factory=list)


class Preference:
    """The choice of a take if several episodes have one.

    Prefer the episode with the wanted id, then the episode that was played last, then episodes with the wanted seed.
    """

    def __init__(self, episode_id: str | None, seed: int | None) -> None:
        self._episode_id = episode_id
        self._seed = seed
        self._last: str | None = None

    def of(self, takes: Sequence[Take]) -> Take:
        """Return one of these takes."""
        best = max(takes, key=self._rank)  # the first of equal rank
        self._last = best.episode_id
        return best

    def _rank(self, take: Take) -> tuple[bool, bool, bool]:
        return take.episode_id == self._episode_id, take.episode_id == self._last, take.seed == self._seed


@dataclass(frozen=True)
class Lists:
    """The lists of tools with which episodes were recorded.

    Attributes:
        tools: the name of the list that agents saw.
        servers: the identity of each server by name, with the hash of its list.
    """

    tools: str
    servers: Mapping[str, Mapping[str, Any]]

    @property
    def names(self) -> list[str]:
        """The hashes by which the lists may be chosen."""
        return [*(str(self.servers[name]["tools_hash"]) for name in sorted(self.servers)), self.tools]

    def __str__(self) -> str:
        servers = (
            f"{name!r} {server.get('version') or 'without a version'} has tools {str(server['tools_hash'])[:SHOWN]}"
            for name, server in self.servers.items()
        )
        return f"{', '.join(servers)} (agents saw {self.tools[:SHOWN]})"


class Cassette:
    """The playable episodes of a record. They were recorded from proxied servers, all with the same tools.

    Args:
        directory: the record.
        tools: the beginning of a hash of a list of tools, if episodes of the record had different ones.

    Raises:
        ConfigurationError: there is no episode to play, or the tools must be chosen.
        DamagedRecord: the record cannot be read.

    Attributes:
        environment: name and version of the recorded environment.
        lists: the lists of tools.
        tools: the tools that agents saw.
        episodes: the number of episodes.
        tasks: their tasks.
        verified: True if an episode was verified.
    """

    def __init__(self, directory: Path, tools: str | None = None) -> None:
        self.directory = directory
        groups: dict[str, tuple[Lists, list[RecordedEpisode]]] = {}
        for episode in read_episodes(directory):
            lists = _lists_of(episode)
            if lists is not None and not episode.trajectory.dropped:
                groups.setdefault(_hash(lists.names), (lists, []))[1].append(episode)
        if not groups:
            raise ConfigurationError(
                f"{directory}: there is no episode to play; a cassette is a record of episodes of MCP servers"
            )
        self.lists, recorded = _chosen(directory, list(groups.values()), tools)
        self.tools = ToolLists(directory if directory.is_dir() else directory.parent).read(self.lists.tools)
        self.environment: RecordedEnvironment = recorded[-1].environment
        self.episodes = len(recorded)
        self.tasks = list({json.dumps(task.name): task for each in recorded if (task := each.trajectory.task)}.values())
        self.verified = any(each.trajectory.verified is not None for each in recorded)
        self._recorded = [each.trajectory for each in recorded]
        self._indexes: dict[frozenset[str], Index] = {}

    def index(self, played: Iterable[str]) -> Index:
        """Return the index of the calls of these tools. Calls of other tools do not change the state."""
        names = frozenset(played)
        if names not in self._indexes:
            readers = {tool.name for tool in self.tools if reads(tool)}
            self._indexes[names] = Index(self._recorded, names, readers)
        return self._indexes[names]

    def texts(self) -> Iterable[Any]:
        """Yield everything that is played, as plain data."""
        for trajectory in self._recorded:
            yield trajectory.observation
            for step in trajectory.steps:
                yield [step.outcome.result_data(), [log.message for log in step.logs]]


class Index:
    """The takes of a cassette by key."""

    def __init__(self, recorded: Sequence[Trajectory], played: frozenset[str], readers: set[str]) -> None:
        self.resets: dict[str, list[Take]] = defaultdict(list)
        self.calls: dict[str, list[Take]] = defaultdict(list)
        self.ends: dict[str, list[Take]] = defaultdict(list)
        self._offered: dict[str, dict[str, None]] = defaultdict(dict)
        for trajectory in recorded:
            self._add(trajectory, played, readers)

    def offered(self, state: str) -> list[str]:
        """Return the calls that are recorded in a state, as texts."""
        return list(self._offered.get(state, ()))

    def _add(self, trajectory: Trajectory, played: frozenset[str], readers: set[str]) -> None:
        state = begun(trajectory.task, trajectory.options)
        _put(self.resets[state], trajectory, trajectory.observation or {})
        for step in trajectory.steps:
            name = step.call.name
            if step.reason == CASSETTE_MISS:
                return  # the episode was itself played from a cassette, which lacked this call
            if name not in played:
                continue
            result, error = step.outcome.result, step.outcome.error
            if error is not None and error.error_type in _UNTIMELY:
                if name in readers:
                    continue
                return  # the call may have written, so the state after it is unknown
            key = after(state, name, step.call.arguments)
            ended = step.truncated if step.done else None
            reward = _without(step.reward, trajectory.verified if step.done else None)
            _put(
                self.calls[key],
                trajectory,
                PlayedCall(result, error, step.call.step, step.logs, reward, ended, step.reason),
            )
            self._offered[state].setdefault(described(name, step.call.arguments))
            if name not in readers:
                state = key
        if trajectory.done:
            _put(self.ends[state], trajectory, trajectory.verified)


_UNTIMELY = (ToolErrorType.TIMEOUT, ToolErrorType.TRANSPORT_ERROR)


def described(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as one line of text."""
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True, default=str)
    return f"{tool} {text if len(text) <= _SHOWN_ARGUMENTS else text[:_SHOWN_ARGUMENTS] + '...'}"


_SHOWN_ARGUMENTS = 200


def _put(takes: list[Take], trajectory: Trajectory, played: Any) -> None:
    if not takes or takes[-1].episode_id != trajectory.episode_id:
        takes.append(Take(trajectory.episode_id, trajectory.seed))
    takes[-1].played.append(played)


def _without(reward: Reward | None, verified: Reward | None) -> Reward | None:
    """Return the reward of a step without the reward of the verification, which is played separately."""
    if reward is None or verified is None:
        return reward
    components = {name: value for name, value in reward.components.items() if name not in verified.components}
    if reward.value == verified.value and not components:
        return None
    return Reward(reward.value - verified.value, components)


def _lists_of(episode: RecordedEpisode) -> Lists | None:
    """Return the lists of tools of an episode; None if it was not recorded from proxied servers."""
    observation = episode.trajectory.observation or {}
    servers = observation.get("metadata", {}).get("servers")
    if episode.tools is None or not isinstance(servers, dict) or not servers:
        return None
    if not all(isinstance(server, dict) and "tools_hash" in server for server in servers.values()):
        return None
    return Lists(episode.tools, servers)


def _chosen(
    directory: Path, groups: Sequence[tuple[Lists, list[RecordedEpisode]]], tools: str | None
) -> tuple[Lists, list[RecordedEpisode]]:
    """Return the group of episodes to play.

    Raises:
        ConfigurationError: not exactly one fits.
    """
    fitting = [group for group in groups if tools is None or any(name.startswith(tools) for name in group[0].names)]
    if len(fitting) == 1:
        return fitting[0]
    counted = "".join(f"\n  {len(episodes)} episodes: {lists}" for lists, episodes in fitting or groups)
    if not fitting:
        raise ConfigurationError(f"{directory}: no episode was recorded with tools {tools}; there are:{counted}")
    hashes = [Counter(lists.names) for lists, _ in fitting]
    own = next(name for name in fitting[-1][0].names if sum(name in each for each in hashes) == 1)
    raise ConfigurationError(
        f"{directory}: a server was changed between the episodes, or the configuration was. Choose the tools, such as "
        f"--set tools={own[:SHOWN]}; there are:{counted}"
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(canonical({"": value})).hexdigest()
