"""Groups of episodes for Atropos, sent to its trajectory API. Needs no package of Atropos."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from mcpenv_client.errors import ConnectionFailed
from mcpenv_client.pool.assignment import Played
from mcpenv_client.pool.episode import Policy
from mcpenv_client.pool.plan import Tasks
from mcpenv_client.pool.plays import Plays
from mcpenv_client.pool.samples import GroupSamples
from mcpenv_client.portal import in_daemon_thread
from mcpenv_client.samples import Sample
from mcpenv_client.samples.formats import atropos, longest_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AtroposGroups", "Sample"]

logger = logging.getLogger(__name__)


class AtroposGroups:
    """Sends groups of episodes to Atropos' trajectory API (``run-api``), from which its trainers take batches.

    Use it as ``async with``: it registers the environment, which waits until a trainer has started, and disconnects it
    at the end. An episode with a status that is not about the agent is omitted from its group, and never sent with a
    score of 0. The API fills the gap with other groups of this environment.

    Atropos compares sequences, so an episode is one: of an episode with several samples, the one with most tokens of
    the model is sent.

    Args:
        url: the API.
        name: the name of the environment for the trainer.
        group_size: the episodes of a group.
        max_token_length: the longest sample in tokens; longer samples are omitted.
        weight: the share of this environment in batches, relative to others.
        max_waiting: the maximum of groups waiting at the API; above it, playing pauses.
        poll_s: the seconds between checks if the trainer has started, or the API has room.
        tokenizer: as for `EnvPool.samples`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        group_size: int,
        max_token_length: int,
        weight: float = 1.0,
        max_waiting: int = 64,
        poll_s: float = 1.0,
        tokenizer: str | None = None,
    ) -> None:
        self._samples = GroupSamples(tokenizer)
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0)
        self._environment = {
            "desired_name": name,
            "group_size": group_size,
            "max_token_length": max_token_length,
            "weight": weight,
        }
        self.group_size = group_size
        self.max_token_length = max_token_length
        self._max_waiting = max_waiting
        self._poll_s = poll_s
        self.env_id: int | None = None

    async def __aenter__(self) -> Self:
        while (answer := await self._ask("POST", "/register-env", self._environment)).get("status") != "success":
            await asyncio.sleep(self._poll_s)
        self.env_id = answer["env_id"]
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._ask("POST", "/disconnect-env", {"env_id": self.env_id})
        finally:
            await self._http.aclose()

    async def run(
        self,
        pool: Plays,
        policy: Policy | Mapping[str, Policy],
        tasks: Tasks | None = None,
        *,
        group_timeout_s: float | None = None,
        mask_failed_steps: bool = True,
        **options: Any,
    ) -> int:
        """Play a group of each task, and send each group as soon as it is played. Return the number of samples sent.

        Args:
            pool: plays the episodes: an `EnvPool` or a `MixedPool`.
            policy: plays one episode, and gives the model's tokens as for `EnvPool.samples`.
            tasks, group_timeout_s, mask_failed_steps, options: as for `EnvPool.groups`.

        Raises:
            ValueError: ``trajectories`` is False.
        """
        if not options.get("trajectories", True):
            raise ValueError("a sample reads the steps of its episode; leave trajectories=False out")
        options |= {"group": self.group_size, "mask_failed_steps": mask_failed_steps}
        sent = 0
        found = pool.groups(policy, tasks, group_timeout_s=group_timeout_s, **options)
        async with contextlib.aclosing(found) as groups:
            async for group in groups:
                sent += await self.send(group)
                await self._wait_for_room()
        return sent

    async def send(self, group: Sequence[Played]) -> int:
        """Send the episodes of one group; return the number sent: 0 if fewer than two are left to compare.

        Raises:
            ConnectionFailed: the API does not answer, or refuses.
        """
        made = await in_daemon_thread(lambda: [*map(self._sample_of, group)])
        kept = [(played, sample) for played, sample in zip(group, made, strict=True) if sample is not None]
        if len(kept) < min(2, self.group_size):
            return 0
        first = kept[0][0]
        body = {
            **atropos([sample for _, sample in kept]),
            "group_overrides": {
                "mcpenv": {"group": first.assignment.group, "seed": first.assignment.seed, **_task(first)}
            },
            "env_id": self.env_id,
        }
        await self._ask("POST", "/scored_data", body)
        return len(kept)

    def _sample_of(self, played: Played) -> Sample | None:
        """Return the sample of an episode with a reward about the agent."""
        if played.reward is None:
            problem = f"its status is {played.status.code.value}, {played.error or 'nothing scored it'}"
        else:
            sample = longest_of([*self._samples.of([played])])
            if sample.usable and len(sample.tokens) <= self.max_token_length:
                return sample
            problem = f"it has {len(sample.tokens)} tokens; the maximum is {self.max_token_length}"
            problem = sample.left_out[0].reason if not sample.tokens else problem
        logger.warning(
            "left episode %d of group %d out: %s", played.assignment.sample, played.assignment.group, problem
        )
        return None

    async def _wait_for_room(self) -> None:
        while (await self._ask("GET", "/status-env", {"env_id": self.env_id}))["self_queue_size"] >= self._max_waiting:
            await asyncio.sleep(self._poll_s)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, json=body)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            text = f"{path} of Atropos: {error.response.text[:500]}"
            raise ConnectionFailed(str(error.request.url), text, error.response.status_code) from error
        except httpx.HTTPError as error:
            raise ConnectionFailed(str(self._http.base_url), f"{path} of Atropos: {error or type(error)}") from error
        found: dict[str, Any] = answer.json()
        return found


def _task(played: Played) -> dict[str, Any]:
    task = None if played.trajectory is None else played.trajectory.task
    return {} if task is None else {"task": task.name}
