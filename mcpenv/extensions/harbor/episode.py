"""An episode of a task: its box, the step that the agent works on, and the rewards of the steps before."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import PurePosixPath

from mcpenv.errors import VerifierFailed
from mcpenv_client.types.records import Reward

from .artifacts import put_folder
from .box import Box, BoxFailed
from .provider import BoxesOf, NetworkOf, has_network, networks
from .steps import REWARD, Step, aggregated, falls_short, value_of
from .task import HarborTask
from .verification import Verdict, judged_apart, judged_here

SETUP_TIMEOUT_S = 600.0
"""Maximum seconds of the ``setup.sh`` of a step, which has no limit in Harbor."""

_BETWEEN = "find /tests /logs/verifier /logs/agent /logs/artifacts -mindepth 1 -delete"


class StepFailed(VerifierFailed, ValueError):
    """Raised if a step has no reward, or the next one could not be set up.

    What the agent has left may be the cause, as of a `ValueError` of any verifier: it is, if the same task has a reward
    in a box without an agent.
    """


class Episode:
    """The steps of a task, one after the other. All methods run on the loop of its boxes.

    Args:
        source: the task.
        boxes: the makers of its boxes.
        network: "none" for boxes without a network.

    Attributes:
        said: the hints at the reasons of rewards, as sentences.
        is_over: True if no step follows, so that `result` has all rewards.
    """

    def __init__(self, source: HarborTask, boxes: BoxesOf, network: NetworkOf) -> None:
        self.source = source
        self.said: list[str] = []
        self.is_over = False
        self._boxes = boxes
        self._network = network
        self._box: Box | None = None
        self._number = 0
        self._rewards: list[Reward] = []
        self._failed: StepFailed | None = None
        self._ends_at: float | None = None

    @property
    def box(self) -> Box:
        """The box of the agent.

        Raises:
            BoxFailed: the episode has ended.
        """
        if self._box is None or self.is_over:
            raise BoxFailed("the task has ended")
        return self._box

    @property
    def step(self) -> Step:
        """The step that the agent works on."""
        return self.source.steps[self._number]

    @property
    def number(self) -> int:
        """The number of this step, from 0."""
        return self._number

    @property
    def is_last(self) -> bool:
        """True if no step follows this one."""
        return self._number + 1 == len(self.source.steps)

    def left_s(self) -> float | None:
        """The seconds that are left of this step, at least 0; None for no limit of the step's own."""
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    async def begin(self) -> None:
        """Build the images of separate verifiers, make the box, and set up the first step.

        Raises:
            BoxFailed: a build failed, the box does not start or is not healthy in time, or the step's setup failed.
        """
        for judge in dict.fromkeys(self._boxes.judges.values()):
            try:
                await judge.prepare()
            except BoxFailed as error:
                raise BoxFailed(f"the container of the tests: {error}") from error
        self._box = await self._boxes.agent.box(networks(self.source, self._network))
        try:
            check = self.source.config.environment.healthcheck
            if check is not None:
                await self._box.become_healthy(check)
            await self._set_up()
        except BaseException:
            await self.close()
            raise

    async def end_step(self) -> None:
        """Run the tests of this step, and set up the next one unless the task is over.

        Raises:
            StepFailed: there is no reward of this step, or the next one could not be set up. The task is over, and
                `result` raises it again.
        """
        step = self.step
        try:
            reward, said = await self._judged()
            self._rewards.append(reward)
            self.said += [self._of_step(step, text) for text in said]
            if self.is_last or falls_short(_by_key(reward), step.min_reward):
                self.is_over = True
                return
            if step.judge is None:
                await self.box.resume()
            self._number += 1
            step = self.step
            await self.box.run(_BETWEEN, timeout_s=SETUP_TIMEOUT_S, user="0")
            await self._set_up()
        except asyncio.CancelledError:
            self._fail(step, "its tests were cancelled, by the time limit of a call for one (--step-timeout-s)")
            raise
        except Exception as error:
            expected = isinstance(error, BoxFailed | VerifierFailed)
            raise self._fail(step, str(error) if expected else f"{type(error).__name__}: {error}") from error

    async def result(self) -> Reward:
        """End the steps that are left, in which the agent has done nothing, and return the reward of the task.

        Raises:
            StepFailed: there is none.
        """
        while not self.is_over:
            await self.end_step()
        if self._failed is not None:
            raise self._failed
        if self.source.config.steps is None:
            return self._rewards[0]
        names = [step.name for step in self.source.steps]
        each = [_by_key(reward) for reward in self._rewards]
        total = aggregated(each, self.source.config.multi_step_reward_strategy)
        parts = {f"{name}.{key}": value for name, own in zip(names, each, strict=False) for key, value in own.items()}
        return Reward(value_of(total, "the rewards of the steps"), {**parts, **total})

    async def close(self) -> None:
        """Delete the box."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def _judged(self) -> Verdict:
        step, env = self.step, self.source.tests_env[self._number]
        boxes = self._boxes.judges.get(self._number)
        if boxes is None:
            return await judged_here(self.box, step, env, goes_on=not self.is_last)
        box = self.box
        if self.is_last:
            self._box = None  # it is closed there
        network = has_network(step.tests_network, self._network)
        return await judged_apart(box, boxes, step, env, network=network, goes_on=not self.is_last)

    async def _set_up(self) -> None:
        """Put the files of the step into the working folder, run its ``setup.sh``, and await its health.

        Raises:
            BoxFailed: one of these failed.
        """
        step, box = self.step, self.box
        if step.workdir is not None:
            pwd = await box.run("pwd", timeout_s=SETUP_TIMEOUT_S)
            folder = PurePosixPath(pwd.stdout.decode("utf-8", "surrogateescape").strip() or "/")
            await put_folder(box, folder, step.workdir)
            if (step.workdir / "setup.sh").is_file():
                script = f"bash {shlex.quote(str(folder / 'setup.sh'))}"
                done = await box.run(script, timeout_s=SETUP_TIMEOUT_S, user=step.user)
                if done.exit_code:
                    raise BoxFailed(f"step {step.name!r}: setup.sh failed with status {done.exit_code}: {done.reason}")
        if step.healthcheck is not None:
            await box.become_healthy(step.healthcheck)
        has_limit = len(self.source.steps) > 1 and step.timeout_s is not None
        self._ends_at = time.monotonic() + (step.timeout_s or 0) if has_limit else None

    def _of_step(self, step: Step, text: str) -> str:
        return text if step.own is None else f"step {step.name!r}: {text}"

    def _fail(self, step: Step, reason: str) -> StepFailed:
        self.is_over = True
        self._failed = StepFailed(self._of_step(step, reason))
        return self._failed


def _by_key(reward: Reward) -> dict[str, float]:
    return reward.components or {REWARD: reward.value}
