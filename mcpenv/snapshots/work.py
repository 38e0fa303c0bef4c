"""Work with snapshots: what an instance does to be held, and to be put back, in turn with its steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from fastmcp import FastMCP

from mcpenv_client.errors import NotSupported
from mcpenv_client.records import Trajectory

from ..author import Author, AuthorCode
from ..episode import Episode
from ..judging import Judging
from ..sink import EpisodeSink
from ..toolbox import Toolbox
from .snapshot import HeldEpisode, HeldState, Snapshot, class_name, size_of
from .state import InstanceState


class Instance(Protocol):
    """One environment instance at work."""

    env: Author
    author: AuthorCode
    tools: Toolbox
    episode: Episode
    session_id: str
    sink: EpisodeSink | None

    @property
    def server(self) -> FastMCP | None:
        """The handed-in server."""
        ...


async def hold(instance: Instance, judging: Judging | None, timeout_s: float | None) -> Snapshot:
    """A snapshot of the episode as it stands.

    Raises:
        NotSupported: something cannot be held.
        ExecutionError: the author's code raised.
        OperationTimeout: it passed its deadline.
    """
    env, author, episode = instance.env, instance.author, instance.episode
    assert episode.trajectory is not None and episode.first is not None and judging is not None
    if instance.server is not None and not env._own_state:
        raise NotSupported(
            f"{type(env).__name__} cannot be held: nobody knows what the FastMCP server that was handed in keeps; "
            "define save_state and load_state"
        )
    save: Callable[[], Any] = env.save_state
    if inspect.iscoroutinefunction(save):
        saved = await author.stage("save_state", save, timeout_s)
        save = lambda: saved  # noqa: E731
    trajectory = replace(episode.trajectory, steps=[*episode.trajectory.steps])
    state, size = await author.stage(
        "save_state", lambda: author.call(_held, instance, judging, save, trajectory), timeout_s
    )
    held = HeldEpisode(
        trajectory,
        episode.first,
        episode.last,
        judging.verifies,
        judging.before,
        episode.elapsed_s,
        episode.scored,
        (instance.session_id, episode.reset_number),
        instance.tools.save(),
        None if instance.sink is None else instance.sink.spilled(trajectory),
    )
    cls = type(env)
    size += state.bytes + (0 if held.spilled is None else held.spilled.bytes)
    return Snapshot(class_name(cls), cls.VERSION, trajectory.episode_id, episode.step_count, size, state, held)


class Put:
    """A snapshot on its way into an instance. `read` changes nothing there; what `write` begins it should end.

    Attributes:
        kept: what tools had kept by ``ctx.set_state``.
    """

    def __init__(self, instance: Instance, snapshot: Snapshot, judging: Judging) -> None:
        self._instance = instance
        self._held = snapshot.state
        self._episode = snapshot.episode
        self._judging = judging
        self._state: InstanceState | None = None
        self._parts: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    async def read(self, timeout_s: float | None) -> None:
        """Make the objects.

        Raises:
            NotSupported: the snapshot does not fit the instance.
            ExecutionError, OperationTimeout: the author's code failed.
        """
        author = self._instance.author
        await author.stage("load_state", lambda: author.call(self._read), timeout_s)

    async def write(self, timeout_s: float | None) -> None:
        """Put them in the place of what there is.

        Raises:
            NotSupported: the instance lacks a tool.
            ExecutionError, OperationTimeout: the author's code failed.
        """
        instance, author, state = self._instance, self._instance.author, self._state
        assert state is not None
        if self._episode.reset_of[0] == instance.session_id:
            instance.tools.load(self._episode.toolbox)
        await author.stage("load_state", lambda: author.call(state.put, self._held, self._parts), timeout_s)
        load = instance.env.load_state
        await author.stage("load_state", lambda: author.call(load, self._parts["state"]), timeout_s)
        state.arrange_tools(self._held)

    def _read(self) -> None:
        self._state = _state_of(self._instance, self._judging)
        self._parts = self._state.read(self._held)
        self.kept = self._parts["kept"]


def _held(
    instance: Instance, judging: Judging, save: Callable[[], Any], trajectory: Trajectory
) -> tuple[HeldState, int]:
    """In the author's thread."""
    state = _state_of(instance, judging).hold(save, instance.episode.kept)
    return state, size_of(trajectory, judging.before)


def _state_of(instance: Instance, judging: Judging) -> InstanceState:
    others = {"instance": instance, "server": instance.server}
    return InstanceState(instance.env, instance.tools, judging.rubrics, others)
