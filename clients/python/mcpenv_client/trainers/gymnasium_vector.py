"""Many environments of mcpenv as one `gymnasium.vector.VectorEnv`, with concurrent steps.

Needs the package gymnasium. ``gymnasium.make_vec("mcpenv_client.trainers.gymnasium:mcpenv/Env-v0", num_envs=64, ...)``
makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from .gymnasium_episode import GymnasiumEpisode, Rules
from .sessions import Place, Sessions

Info = dict[str, Any]

T = TypeVar("T")


class McpenvVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments of one target, each with a session of its own, for one loop of a trainer.

    All take their step at the same time: with servers, a step takes one round trip instead of ``num_envs``.
    Observations are a tuple. ``info`` is that of Gymnasium's own vectors: an array for each entry of the environments'
    infos, a dictionary of arrays for one that is a dictionary, and under the same name with ``_`` before it which
    environments have it. Otherwise as `McpenvEnv`: with ``on_failure="nan"`` an environment that fails, also at its
    reset, costs no other one its episode.

    Args:
        target: servers or an environment in this process, as `Sessions` takes it.
        num_envs: the number of environments.
        autoreset_mode: the time at which an environment begins its next episode: in the step after the end, in the same
            step (with ``final_obs`` and ``final_info`` in ``info``), or only by ``reset(options={"reset_mask": ...})``.
        settings, client: as `McpenvEnv`.
        rules: the other arguments of `McpenvEnv`.
    """

    def __init__(
        self,
        target: Place,
        num_envs: int = 8,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        render_mode: None = None,
        **rules: Any,
    ) -> None:
        super().__init__()
        self.rules = Rules(**rules)
        self.sessions = Sessions(target, settings, client)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.rules.action_space
        self.single_observation_space = self.rules.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._randoms = [np_random()[0] for _ in range(num_envs)]
        self._episodes: list[GymnasiumEpisode] = []
        self._size: int | None = None
        self._observations: list[Any] = [None] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Info]:
        """Begin an episode in each environment.

        Args:
            seed: the seed of the first environment, from which the others count up; or one for each.
            options: ``reset_mask``, an array that is true for the environments to reset; and the options of the
                environments' reset.
        """
        own = dict(options or {})
        mask = own.pop("reset_mask", None)
        which = [at for at in range(self.num_envs) if mask is None or mask[at]]
        seeds = self._seeds(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"there are {len(seeds)} seeds for {self.num_envs} environments")
        for at in which:
            if seeds[at] is not None:
                self._randoms[at] = np_random(seeds[at])[0]
        self._open()
        made: Info = {}
        for at, info in self._all({at: partial(self._reset, at, own) for at in which}).items():
            self._enter(made, info, at)
        return tuple(self._observations), made

    def step(self, actions: Any) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray, np.ndarray, Info]:
        """Make the calls of an action in each environment.

        Raises:
            EpisodeFailed: see ``on_failure``.
            ValueError: an environment has no episode, and is not reset by itself.
        """
        given = list(iterate(self.action_space, actions))
        if not self._episodes or (
            self.autoreset_mode is AutoresetMode.DISABLED and any(e.over for e in self._episodes)
        ):
            raise ValueError("an environment has no episode; call reset() first, with a reset_mask for some of them")
        steps = self._all({at: partial(self._step, at, action) for at, action in enumerate(given)})
        numbers = zip(*(step[1:4] for step in steps.values()), strict=True)
        rewards, terminated, truncated = (np.array(each) for each in numbers)
        infos: Info = {}
        for at, step in steps.items():
            for info in step[4]:
                self._enter(infos, info, at)
        return tuple(self._observations), rewards.astype(np.float64), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """End the episodes and the sessions."""
        episodes, self._episodes = self._episodes, []
        if episodes:
            self._all({at: episode.close for at, episode in enumerate(episodes)})

    # -- parts

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, int):
            return [None if seed is None else seed + at for at in range(self.num_envs)]
        return list(seed)

    def _open(self) -> None:
        if not self._episodes:
            sessions = [self.sessions.open() for _ in range(self.num_envs)]
            self._episodes = [GymnasiumEpisode(session, self.rules) for session in sessions]
            self._size = None if self.rules.split is None else self.sessions.num_tasks(self.rules.split)

    async def _reset(self, at: int, options: Mapping[str, Any] | None = None) -> Info:
        row = self.rules.row(options, self._randoms[at], self._size)
        self._observations[at], info = await self._episodes[at].reset(row)
        return info

    async def _step(self, at: int, action: Any) -> tuple[Any, float, bool, bool, list[Info]]:
        """Step an environment; return what its step returns, with a list of infos."""
        if self._episodes[at].over:
            return None, 0.0, False, False, [await self._reset(at)]
        *step, info = await self._episodes[at].step(action)
        self._observations[at] = step[0]
        if not self._episodes[at].over or self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return (*step, [info])
        final = {"final_obs": step[0], "final_info": info}
        return (*step, [final, await self._reset(at)])

    def _enter(self, joined: Info, info: Mapping[str, Any], at: int) -> None:
        """Enter an environment's info into that of the vector, as Gymnasium's own vectors do.

        The first value of a name decides the kind of its array.
        """
        for name, value in info.items():
            if isinstance(value, Mapping):
                self._enter(joined.setdefault(name, {}), value, at)
            else:
                if name not in joined:
                    joined[name] = self._column(value)
                joined[name][at] = value
            joined.setdefault(f"_{name}", np.zeros(self.num_envs, dtype=np.bool_))[at] = True

    def _column(self, first: Any) -> np.ndarray:
        if isinstance(first, bool | int | float):
            return np.zeros(self.num_envs, dtype=type(first))
        return np.full(self.num_envs, None, dtype=object)

    def _all(self, calls: Mapping[int, Callable[[], Coroutine[Any, Any, T]]]) -> dict[int, T]:
        """Run calls at the same time, and return their results."""
        # The coroutines are made where they run: Ctrl-C before that would leave them unawaited.
        results = self.sessions.run_all(call() for call in calls.values())
        return dict(zip(calls, results, strict=True))
