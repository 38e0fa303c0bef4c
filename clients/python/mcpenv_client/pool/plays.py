"""What pools make of a play: its groups, and their samples."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mcpenv_client.portal import in_daemon_thread
from mcpenv_client.samples import Sample

from .assignment import Assignment, Played, PlayError
from .backend import PoolError
from .blocking import SyncPool
from .clock import Clock
from .groups import groups_of
from .plan import Tasks
from .samples import GroupSamples
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Self

    from .checkpoint import PlayLog


Missing = Literal["raise", "again"]
"""What is done with an episode of a checkpoint that no server has any more."""

NO_CHECKPOINT = (
    "{} has no checkpoints, since its episodes end with this program, or are those of several worlds: use an EnvPool "
    'with backend="remote" and servers with --durable'
)


class Plays(ABC):
    """A pool that can play episodes, of one environment or of several.

    Attributes:
        policy_version: the version of the weights that the policy has now; None if unknown.
    """

    policy_version: int | None = None

    def __init__(self) -> None:
        self._clock = Clock()

    @property
    def paused(self) -> bool:
        """True from `pause` to `resume`."""
        return self._clock.stopped

    def pause(self) -> None:
        """Stop the time limits of groups."""
        self._clock.stop()

    def resume(self, policy_version: int | None = None) -> None:
        """Continue the time limits of groups, and take the version of the weights."""
        if policy_version is not None:
            self.policy_version = policy_version
        self._clock.start()

    def checkpoint(self, path: str | Path, state: Any = None) -> None:
        """Raise a `PoolError`, except for an `EnvPool` of servers."""
        raise PoolError(NO_CHECKPOINT.format(f"a {type(self).__name__}"))

    def restore(self, path: str | Path, *, missing: Missing = "raise") -> Any:
        """Raise a `PoolError`, except for an `EnvPool` of servers."""
        raise PoolError(NO_CHECKPOINT.format(f"a {type(self).__name__}"))

    @abstractmethod
    async def connect(self) -> None:
        """Start the pool. Do nothing if it is started."""

    @abstractmethod
    async def close(self) -> None:
        """End the pool. Safe to call twice."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def sync(self) -> SyncPool:
        """Return the blocking form of this pool. Use only one of the two forms."""
        return SyncPool(self)

    async def rollout(self, *arguments: Any, **options: Any) -> list[Played]:
        """Play episodes and return them in the order of their assignments. Arguments and errors are those of `play`."""
        played: list[Played] = []
        async with self.play(*arguments, **options) as stream:
            stream.take_log()  # nothing is handed out before all is
            try:
                async for each in stream:
                    played.append(each)
            except PlayError as error:
                error.finished = _in_order(played)
                raise
        return _in_order(played)

    @abstractmethod
    def play(self, *arguments: Any, **options: Any) -> Stream[Played]:
        """Play episodes, and yield each as soon as it is done."""

    def groups(
        self,
        policy: Any,
        tasks: Tasks | None = None,
        *,
        group: int,
        group_timeout_s: float | None = None,
        unfinished: Iterable[Assignment] = (),
        **options: Any,
    ) -> Stream[list[Played]]:
        """Play episodes and yield those of each group, in the order of their numbers, as soon as all are done.

        Args:
            policy, tasks, group: as for `play`.
            group_timeout_s: the seconds after the end of a group's first episode, after which the group is yielded
                without the others; None: they are waited for. The others play on to their own limits and are dropped.
                They do not pass during a `pause`.
            unfinished: as for `play`. If the earlier play yielded a part of a group, the rest is a group.
            options: further arguments of `play`.

        Raises:
            ValueError: an argument is invalid.
        """
        if group_timeout_s is not None and not group_timeout_s >= 0:
            raise ValueError(f"group_timeout_s is {group_timeout_s}; it must be 0 or more")
        left = [*unfinished]
        rests = Counter(each.group for each in left)
        stream = self.play(policy, tasks, group=group, unfinished=left, **options)
        log = stream.take_log()
        return Stream(lambda left: groups_of(stream, group, rests, group_timeout_s, self._clock, left), left, log)

    def samples(
        self,
        policy: Any,
        tasks: Tasks | None = None,
        *,
        group: int = 1,
        max_staleness: int | None = None,
        tokenizer: str | None = None,
        **options: Any,
    ) -> Stream[Sample]:
        """Play episodes and yield the samples of each group as soon as all of its episodes are done.

        The policy gives the model's tokens: to `RunningEpisode.wrote` for each answer, or as its value: a `Sample`,
        a list of them, of `mcpenv_client.samples.SampledTurn`, or of the turns that a model proxy recorded, whose calls
        are joined to the steps. An episode that failed has samples with ``usable`` False, or none if its policy gave
        nothing. One that did not fail, but of which no tokens are known, has a sample without tokens, with ``usable``
        False and the reason in ``left_out``; it is logged.

        Args:
            policy, tasks, group: as for `play`.
            max_staleness: samples with a part of more than so many versions before `policy_version`, or of an
                unknown one, have ``usable`` False; None: no limit, and versions need not be known.
            tokenizer: the name of a tokenizer of transformers, for recorded turns without token ids; such samples have
                its name. None: such turns are left out.
            options: further arguments of `groups`; ``mask_failed_steps`` is True by default.

        Raises:
            ValueError: ``trajectories`` is False, or ``max_staleness`` is given and `policy_version` is unknown.
            ImportError, OSError, ValueError: the tokenizer cannot be loaded.
        """
        if not options.get("trajectories", True):
            raise ValueError("samples() reads the steps of the episodes; leave trajectories=False out")
        if max_staleness is not None and self.policy_version is None:
            raise ValueError("max_staleness: the present version is unknown; call resume(policy_version=...) before")
        made = GroupSamples(tokenizer)
        options["unfinished"] = [*options.get("unfinished", ())]
        groups = self.groups(policy, tasks, group=group, **{"mask_failed_steps": True, **options})
        log = groups.take_log()
        return Stream(
            lambda left: self._samples(groups, made, max_staleness, left, log), options["unfinished"], log, hands=False
        )

    async def _samples(
        self,
        groups: Stream[list[Played]],
        made: GroupSamples,
        max_staleness: int | None,
        unfinished: list[Assignment],
        log: PlayLog | None,
    ) -> AsyncGenerator[Sample, None]:
        group: list[Played] = []
        try:
            async for group in groups:
                # Long episodes, and a tokenizer, take seconds of the processor.
                samples = await in_daemon_thread(lambda played: [*made.of(played)], group)
                for number, sample in enumerate(samples, 1):
                    stale = max_staleness is not None and self._age_of(sample) > max_staleness
                    if number == len(samples):
                        if log is not None:
                            log.handed(group)
                        group = []
                    yield dataclasses.replace(sample, usable=False) if stale else sample
                if log is not None and not samples:
                    log.handed(group)
                group = []
        finally:
            await groups.aclose()
            unfinished += [*(each.assignment for each in group), *groups.unfinished]

    def _age_of(self, sample: Sample) -> float:
        """Return the number of versions between the oldest part of a sample and the present weights.

        It is infinite if that of a part is unknown, as without `resume` before its episode.
        """
        versions = [span.policy_version for span in sample.spans]
        if self.policy_version is None or None in versions:
            return math.inf
        return self.policy_version - min((each for each in versions if each is not None), default=self.policy_version)


def _in_order(played: list[Played]) -> list[Played]:
    return sorted(played, key=lambda each: each.assignment.number)
