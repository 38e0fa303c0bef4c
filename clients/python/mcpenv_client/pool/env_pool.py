"""EnvPool: many concurrent environments, for rollouts of a policy or for steps of a trainer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mcpenv_client.client import EnvClient
from mcpenv_client.rows import reset_options_of
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.starts import Start
from mcpenv_client.types.tasks import Task

from .assignment import Assignment, Limits, Played
from .backend import Backend, PoolError, Rollout
from .blocking import SyncEnvPool
from .checkpoint import Checkpoint, PlayLog, described
from .division import Division
from .episode import Begin, Policy
from .instances import Target
from .local import LocalBackend
from .plan import Plan, Tasks
from .plays import NO_CHECKPOINT, Missing, Plays
from .processes import ProcessBackend
from .remote import RemoteBackend
from .servers import Listed
from .stream import Part, PolicyErrors, Repeats, Source, Stream, episodes_of

BackendName = Literal["local", "process", "ray", "remote"]


class EnvPool(Plays):
    """Many environments of one target. Use it as ``async with``, or by `sync` as ``with``.

    It has two units of work: whole episodes, if the policy can be sent to the environments (`rollout`, `play`);
    otherwise one step in each environment (`reset_all`, `step_all`). Several rollouts may run at once, but no step runs
    beside a rollout.

    The same seeds give the same trajectories on every backend. An episode that was answered is never lost. An episode
    that was running in a lost process or on a lost server is begun again with the same task and seed, and counted in
    `Played.attempts`. If the servers are durable, it goes on at another one.

    Args:
        target: a TARGET of ``mcpenv run``, an environment's class or a function that makes one; for "remote" one URL, a
            list of URLs, a mapping of URLs to weights, ``@FILE`` with one a line, or ``dns+http://NAME:PORT``.
        size: the total number of environments, or sessions.
        backend: "local": this process; "process": worker processes; "ray": Ray actors; "remote": servers.
        workers: the number of processes of "process", or actors of "ray"; None: one for each core.
        settings: ``NAME=VALUE`` for each setting of a target that is a text.
        memory_bytes: the address space of each process of "process".
        address: the cluster of "ray"; None: as ``ray.init()``. If the program has already called it, that cluster is
            used.
        actor_options: Ray's options of each actor, such as ``num_cpus``, ``resources`` or ``scheduling_strategy``.
        connect: makes the client of a URL for "remote", such as ``lambda url: EnvClient(url, headers=...)``.
        warm: the number of environments in addition to ``size`` to reset ahead of need in a rollout. In processes and
            actors it requires async policies.
        start_timeout_s: seconds for a process of "process" to load the target, or for an actor of "ray" to be placed
            and to load it; None: 120.

    Raises:
        ValueError: an argument does not fit the backend.
    """

    def __init__(
        self,
        target: Target | Listed,
        size: int = 8,
        *,
        backend: BackendName = "local",
        workers: int | None = None,
        settings: Sequence[str] = (),
        memory_bytes: int | None = None,
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        connect: Callable[[str], EnvClient] | None = None,
        warm: int = 0,
        start_timeout_s: float | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; it must be 1 or more")
        if warm < 0:
            raise ValueError(f"warm is {warm}; it must be 0 or more")
        options: dict[str, Any] = {
            "workers": workers,
            "settings": settings or None,
            "memory_bytes": memory_bytes,
            "address": address,
            "actor_options": actor_options,
            "connect": connect,
            "warm": warm or None,
            "start_timeout_s": start_timeout_s,
        }
        options = {name: value for name, value in options.items() if value is not None}
        if backend not in _BACKENDS:
            raise ValueError(f"there is no backend {backend!r}; use one of: {', '.join(_BACKENDS)}")
        make, takes = _BACKENDS[backend]
        wrong = [name for name in options if name not in takes]
        if wrong:
            raise ValueError(f"the backend {backend!r} has no use for {', '.join(wrong)}")
        own: Any = target
        if backend == "remote":
            if callable(own):
                raise ValueError(f'backend="remote" plays on servers; give their URLs, and not {own!r}')
        elif isinstance(own, Mapping):
            raise ValueError('a mapping of targets is for MixedPool, one of URLs to weights for backend="remote"')
        elif not (isinstance(own, str) or callable(own)):
            raise ValueError('a list of servers is for backend="remote"')
        elif isinstance(own, str) and own.startswith(("http://", "https://", "ws://", "wss://", "dns+http://", "@")):
            raise ValueError(f'{own!r} names a server; use backend="remote"')
        super().__init__()
        self._backend = make(own, size, **options)
        self.size = size
        self._busy = asyncio.Lock()
        self._division = Division()
        self._started = False
        self._begun: set[int] = set()
        self._checkpoint: Checkpoint | None = None

    async def connect(self) -> None:
        """Start the pool. Do nothing if it is started.

        Raises:
            PoolError: the target cannot be loaded.
        """
        async with self._busy:
            await self._start()

    async def _start(self) -> None:
        if self._started:
            return
        try:
            await self._backend.start()
        except BaseException:
            await self._backend.close()
            raise
        self._started = True

    async def close(self) -> None:
        """End the pool with all that it started, and its pause. Safe to call twice. A running play raises an error."""
        super().resume()
        self._started = False
        self._begun.clear()
        await self._backend.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None

    def sync(self) -> SyncEnvPool:
        """Return the blocking form of this pool. Use only one of the two forms."""
        return SyncEnvPool(self)

    # -- whole episodes

    async def rollout(
        self,
        policy: Policy,
        tasks: Tasks | None = None,
        *,
        starts: Iterable[Start] | None = None,
        n: int = 1,
        group: int = 1,
        forks: bool = False,
        seed: int | None = None,
        limits: Limits | None = None,
        retries: int = 2,
        policy_errors: PolicyErrors = "raise",
        trajectories: bool = True,
        mask_failed_steps: bool = False,
        progress: bool = False,
        unfinished: Iterable[Assignment] = (),
    ) -> list[Played]:
        """Play episodes and return them in the order of their assignments.

        Args:
            policy: plays one episode: async with an `Episode`, or a plain function with a `BlockingEpisode`.
            tasks: tasks, ids or rows of `EnvClient.rows`; None: ``n`` groups without a task.
            starts: steps of recorded episodes, instead of tasks, read as these. The episodes of a group continue one
                of them. ``tasks`` may have such steps among others.
            n: the number of plays of each task, each with the next seed.
            group: the number of episodes in a group, which have the same task and seed.
            forks: True to begin the episodes of a group from one state, saved after one reset, and to play them in one
                environment, one after the other. False: each begins with its own reset. With ``starts``, the recorded
                calls run once for each group, or once for each episode.
            seed: the first seed; None: the tasks' own.
            limits: of each episode.
            retries: the number of retries of an episode with a status that is not about the agent and may change in
                another attempt.
            policy_errors: "raise", or "record" to continue: the episode has the status ``cancelled``, no reward, and
                the traceback in `Played.error`.
            trajectories: False to leave the records of the episodes where they were made: `Played.trajectory` is None,
                and `Played` has the reward, its parts, the status and the policy's value.
            mask_failed_steps: for training: an episode with a step that failed by no fault of the agent, such as for a
                full disk, has the status of that step, is retried if that status allows it, and has no reward. In
                `samples` it is the default.
            progress: draw a bar; needs ``tqdm``.
            unfinished: the episodes that an earlier play left. They are begun again, before the tasks.

        Raises:
            PolicyFailed: the policy raised, and `policy_errors` is "raise". The other episodes are cancelled.
            PoolError: the policy cannot be used here, no place can play, the environment cannot be saved for forks, the
                source of the tasks raised, or a task cannot be played, for example because its id is unknown. It and
                `PolicyFailed` have the episodes that had finished in ``finished``, and the others in ``unfinished``.
            ValueError: an argument is invalid.
        """
        options: dict[str, Any] = {
            "starts": starts,
            "n": n,
            "group": group,
            "forks": forks,
            "seed": seed,
            "limits": limits,
            "retries": retries,
        }
        options |= {"policy_errors": policy_errors, "trajectories": trajectories}
        options |= {"mask_failed_steps": mask_failed_steps, "progress": progress, "unfinished": unfinished}
        return await super().rollout(policy, tasks, **options)

    def play(
        self,
        policy: Policy,
        tasks: Tasks | None = None,
        *,
        starts: Iterable[Start] | None = None,
        n: int = 1,
        group: int = 1,
        forks: bool = False,
        seed: int | None = None,
        limits: Limits | None = None,
        retries: int = 2,
        policy_errors: PolicyErrors = "raise",
        trajectories: bool = True,
        mask_failed_steps: bool = False,
        progress: bool = False,
        unfinished: Iterable[Assignment] = (),
    ) -> Stream[Played]:
        """Play episodes and yield each as soon as it is done. Arguments and errors are the same as for `rollout`.

        Several plays may run at once, each with its own policy, also one inside the loop over another. They share the
        environments: a free one goes to the play that uses the smallest part of the pool.

        ``tasks`` may be endless, and may be an async iterable. A task is read when there is an environment for it. If
        ``tasks`` has a method ``record``, it is called with each `Played` before that is yielded, so that the source
        can choose the next tasks by the results. Unlike a list, such tasks are checked as they are read.
        """
        if starts is not None:
            if tasks is not None or seed is not None:
                raise ValueError("starts have their tasks and seeds; leave tasks and seed out")
            tasks = starts
        given = [*unfinished]
        plan = Plan(tasks, n=n, group=group, seed=seed, forks=forks, unfinished=given)
        options: dict[str, Any] = {"limits": limits, "retries": retries, "policy_errors": policy_errors}
        options |= {"trajectories": trajectories, "mask_failed_steps": mask_failed_steps}
        part = self.part(plan, policy, **options)
        told, bar = getattr(tasks, "record", None), bar_of(plan.total) if progress else None
        log = None
        if self._checkpoint is not None:  # last, because it keeps a play that only the stream ends
            about: dict[str, Any] = {"n": n, "group": group, "forks": forks, "seed": seed, "limits": limits or Limits()}
            about |= {"trajectories": trajectories, "mask_failed_steps": mask_failed_steps}
            about |= {"tasks": described(tasks), "unfinished": described(given)}
            log = self._checkpoint.play(about, tasks)
            try:
                plan.keep(log)
            except PoolError:
                log.end()
                raise
            part = self.part(plan, policy, log=log, **options)
            told = None if told is None else functools.partial(log.tell, told)
        return Stream(lambda left: episodes_of([part], plan.close, told, bar, left), given, log)

    def part(
        self,
        source: Source,
        policy: Policy,
        *,
        limits: Limits | None = None,
        retries: int = 2,
        policy_errors: PolicyErrors = "raise",
        trajectories: bool = True,
        mask_failed_steps: bool = False,
        log: PlayLog | None = None,
    ) -> Part:
        """Return the part of a play that this pool plays. Arguments are the same as for `rollout`.

        ``log`` is that of the play, for its checkpoint.
        """
        if retries < 0:
            raise ValueError(f"retries is {retries}; it must be 0 or more")
        if policy_errors not in ("raise", "record"):
            raise ValueError(f'policy_errors is {policy_errors!r}; use "raise" or "record"')
        begin = Begin(policy, limits or Limits(), trajectories, mask_failed_steps, log)
        repeats = Repeats(retries, policy_errors, lambda: self.policy_version, log)
        return Part(source, lambda: self._open(begin), self._division, repeats)

    async def _open(self, begin: Begin) -> Rollout:
        async with self._busy:
            await self._start()
            rollout = await self._backend.begin(begin)
            if self.paused:
                self._backend.pause(True)  # it tells only those places that it has
            return rollout

    def pause(self) -> None:
        """Let the starts and the calls of all episodes wait until `resume`, and stop their time limits.

        A call that runs is not interrupted. Use it while the weights of a policy change.
        """
        super().pause()
        self._backend.pause(True)

    def resume(self, policy_version: int | None = None) -> None:
        """Continue after `pause`.

        Args:
            policy_version: the new version of the weights, for `samples`; None: it did not change.
        """
        super().resume(policy_version)
        self._backend.pause(False)

    # -- across restarts

    def checkpoint(self, path: str | Path, state: Any = None) -> None:
        """Write what a later process needs to go on, at once in place of what is there. Call it between two steps.

        The file has what the open plays have read and not handed out, and the state of their sources of tasks. From
        now on it grows by what happens: tasks that are read, messages to episodes and their replies, results. So a
        process that is killed at any time later goes on with the same episodes.

        Args:
            path: a file, which only its user can read: it has the secrets of sessions. Read no file of others, because
                it is a pickle.
            state: data of the caller's own, such as the number of its step. `restore` returns it.

        Raises:
            PoolError: the pool does not play on servers, plays run that began without a checkpoint, something cannot be
                pickled, or another script uses the file.
            OSError: the file cannot be written.
        """
        self._check_can_be_kept()
        checkpoint = self._checkpoint or Checkpoint()
        checkpoint.save(Path(path), state)
        self._checkpoint = checkpoint

    def restore(self, path: str | Path, *, missing: Missing = "raise") -> Any:
        """Go on from a checkpoint, and return the ``state`` that was given to it.

        The plays that begin from now on are those that were open at the checkpoint and began after it, in that order:
        the script makes them with the same arguments. Each yields what it had not handed out at the checkpoint.
        Finished episodes come from the file, running ones go on at the servers: a policy runs again from its beginning,
        and calls that were answered are not made again.

        Args:
            path: the file. If there is none, it is made, and the state is None.
            missing: "raise" to end a play by a `PoolError` if no server has an episode any more that had begun, or its
                policy makes another call than before; the file stays as it is. "again" to begin it again.

        Raises:
            PoolError: as `checkpoint`, or the file cannot be read.
        """
        self._check_can_be_kept()
        if missing not in get_args(Missing):
            raise ValueError(f'missing is {missing!r}; use "raise" or "again"')
        if self._division.runs(logged=True):
            raise PoolError("restore() comes before the plays that go on; a play of this pool runs")
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None
        if not Path(path).exists():
            self.checkpoint(path)
            return None
        self._checkpoint = Checkpoint.read(Path(path), missing)
        return self._checkpoint.state

    def _check_can_be_kept(self) -> None:
        if not isinstance(self._backend, RemoteBackend):
            raise PoolError(NO_CHECKPOINT.format("this pool"))
        if self._division.runs(logged=False):
            raise PoolError("a play runs that began without a checkpoint: call checkpoint() or restore() before it")

    # -- single steps

    async def reset_all(
        self,
        rows: Sequence[Task | str | Mapping[str, Any] | None] | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        which: Sequence[bool] | None = None,
    ) -> list[StepResult[Any] | None]:
        """Begin an episode in each environment, and return the results in the order of the environments.

        Args:
            rows: a task or row for each environment; None: no tasks.
            seeds: a seed for each environment; None: the tasks' own.
            which: True for each environment to reset; None: all. The result of another is None.

        Raises:
            PoolError: a rollout runs.
            ValueError: a list does not have one entry for each environment of the pool.
        """
        for name, given in (("rows", rows), ("seeds", seeds), ("which", which)):
            if given is not None and len(given) != self.size:
                raise ValueError(f"{name} has {len(given)} entries; the pool has {self.size} environments")
        options: list[dict[str, Any] | None] = []
        for index in range(self.size):
            if which is not None and not which[index]:
                options.append(None)
                continue
            own = reset_options_of(None if rows is None else rows[index])
            if seeds is not None and seeds[index] is not None:
                own["seed"] = seeds[index]
            options.append(own)
        async with self._busy:
            await self._division.ended()
            await self._start()
            self._begun |= {index for index, each in enumerate(options) if each is not None}
            return await self._backend.reset(options)

    async def step_all(self, actions: Sequence[Any], *, timeout_s: float | None = None) -> list[StepResult[Any] | None]:
        """Take one step in each environment, and return the results in the order of the environments.

        If an environment's process, server or code failed, its result has ``done`` and the status of the failure; reset
        it before its next step. After a cancellation, reset all of them.

        Args:
            actions: an `Action` for each environment; None for one that takes no step.
            timeout_s: the deadline of each step, in seconds.

        Raises:
            PoolError: a rollout runs.
            ValueError: there are not as many actions as environments, or one has no episode.
            EpisodeDone: an environment's episode is over.
        """
        if len(actions) != self.size:
            raise ValueError(f"there are {len(actions)} actions; the pool has {self.size} environments")
        for index, action in enumerate(actions):
            if action is not None and index not in self._begun:
                raise ValueError(f"environment {index} has no episode; call reset_all() first")
        async with self._busy:
            await self._division.ended()
            await self._start()
            return await self._backend.step(actions, timeout_s)


def _actor_backend(*arguments: Any, **options: Any) -> Backend:
    try:
        from .actors import ActorBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PoolError('backend="ray" needs Ray: pip install "mcpenv-client[ray]"') from error
    return ActorBackend(*arguments, **options)


_BACKENDS: Mapping[str, tuple[Callable[..., Backend], set[str]]] = {
    "local": (LocalBackend, {"settings", "warm"}),
    "process": (ProcessBackend, {"settings", "workers", "memory_bytes", "warm", "start_timeout_s"}),
    "ray": (_actor_backend, {"settings", "workers", "address", "actor_options", "warm", "start_timeout_s"}),
    "remote": (RemoteBackend, {"connect", "warm"}),
}
"""The backends by name, with the options that each takes."""


def bar_of(total: int | None) -> Any:
    """Return a bar of episodes.

    Raises:
        PoolError: the package ``tqdm`` is missing.
    """
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise PoolError("progress=True needs the package tqdm; install it, or leave progress out") from error
    return tqdm(total=total, unit="episode")
