"""Verified: the verifier's word as a rubric, so that it can be weighed, gated and put beside others."""

from __future__ import annotations

from mcpenv_client.records import Reward, Trajectory

from .rubric import Rubric


class Verified(Rubric):
    """What the state at the end was found to be worth, by the task's verifier or the environment's ``verify``.

    Where a rubric has it, the verification counts only through it; where it has none, it is added to the reward.
    Not scored, if nothing verified the episode.
    """

    name = "verified"

    def score_trajectory(self, trajectory: Trajectory) -> Reward | None:
        """The verification of the episode."""
        found = trajectory.verified
        if found is None:
            return None
        own = f"{self.name}/"
        parts = {name.removeprefix(own): value for name, value in found.components.items() if name.startswith(own)}
        return Reward(found.value, parts)
