"""Use the verification of an episode as a rubric, so that composites can weigh and gate it."""

from __future__ import annotations

from mcpenv_client.types.records import Reward, Trajectory

from .rubric import Rubric


class Verified(Rubric):
    """The value of the final state, as the task's verifier or the environment's ``verify`` returned it.

    In a rubric that contains it, the verification counts only through it. Otherwise the verification is added to the
    reward. It is not scored if nothing verified the episode.
    """

    name = "verified"

    def score_trajectory(self, trajectory: Trajectory) -> Reward | None:
        """Return the verification of the episode."""
        found = trajectory.verified
        if found is None:
            return None
        own = f"{self.name}/"
        parts = {name.removeprefix(own): value for name, value in found.components.items() if name.startswith(own)}
        return Reward(found.value, parts)
