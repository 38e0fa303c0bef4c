"""Verification: what the state at an episode's end is worth, by the task's verifier or the environment's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mcpenv_client.errors import InvalidMessage
from mcpenv_client.records import Reward
from mcpenv_client.tasks import Task

from .author import Author, AuthorCode
from .errors import InvalidVerifier
from .rewards import reward_of
from .verify import Evidence, Verdict, check, of_verdict, run
from .worlds import Tree, capture

VERIFIED = "verified"
"""The component of the reward that it is."""


class Verification:
    """How one episode is verified.

    Attributes:
        before: the world as the reset left it; None without a world.
        said: why the end is worth no more, as sentences.
    """

    __slots__ = ("_author", "_env", "_task", "before", "said")

    def __init__(self, author: AuthorCode, env: Author, task: Task | None, before: Tree | None) -> None:
        self._author = author
        self._env = env
        self._task = task
        self.before = before
        self.said: list[str] = []

    @classmethod
    async def begin(
        cls, author: AuthorCode, env: Author, task: Task | None, timeout_s: float | None
    ) -> Verification | None:
        """Look at the world that the reset left; None if nothing will verify the end.

        Raises:
            InvalidMessage: the task's verifier cannot be used, or not with this environment.
            ExecutionError: the world could not be looked at.
            OperationTimeout: that took too long.
        """
        spec = None if task is None else task.verifier
        if spec is None and not env._verifies:
            return None

        def look() -> Tree | None:
            if task is not None and spec is not None:
                try:
                    check(spec, has_world=env.world is not None)
                except InvalidVerifier as error:
                    raise InvalidMessage(f"task {task.id!r}: {error}") from error
            return None if env.world is None else capture(env.world)

        return cls(author, env, task, await author.stage("verify", lambda: author.call(look), timeout_s))

    async def result(self) -> Reward | None:
        """What the state is worth now.

        Raises:
            ExecutionError: verifying failed; nobody knows what it is worth.
            OperationTimeout: it took too long.
        """
        reward: Reward | None = await self._author.stage("verify", self._ask)
        return None if reward is None else Reward(reward.value, _named(reward))

    async def _ask(self) -> Reward | None:
        spec = None if self._task is None else self._task.verifier
        evidence = await self._author.call(self._evidence)
        self.said = evidence.said
        if spec is not None:
            return await run(spec, evidence)
        if self._env._verify_is_async:
            return _worth(await self._author.call(self._env.verify, evidence), evidence)
        found = await self._author.hand_over(None, self._env.verify, evidence)
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise TypeError("verify gave an awaitable; declare it `async def`")
        return _worth(found, evidence)

    def _evidence(self) -> Evidence:
        world = self._env.world
        after = None if world is None else capture(world)
        return Evidence(self._task, self.before, after, named=isinstance(world, Mapping))


def _worth(found: Any, evidence: Evidence) -> Reward | None:
    """What an environment's own `verify` means; sentences of a verdict are kept."""
    if isinstance(found, Verdict):
        evidence.said.extend(found.problems)
    if isinstance(found, bool | Verdict):
        return of_verdict(bool(found), evidence.task)
    return reward_of(found)


def _named(reward: Reward) -> dict[str, float]:
    parts: dict[str, Any] = {f"{VERIFIED}/{name}": value for name, value in reward.components.items()}
    return {VERIFIED: reward.value, **parts}
