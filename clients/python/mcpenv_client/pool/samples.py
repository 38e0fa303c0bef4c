"""The samples of a group of played episodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcpenv_client.samples import LeftOut, Sample, SampledTurn, samples_of, samples_of_recorded
from mcpenv_client.samples.chain import about_episode
from mcpenv_client.samples.linking import unlinked
from mcpenv_client.samples.rendered import ChatTokens
from mcpenv_client.scores import advantages_of_scores
from mcpenv_client.types.model_turns import ModelTurn

from .assignment import Played, world_of

logger = logging.getLogger("mcpenv")


class GroupSamples:
    """Makes samples of the episodes of groups.

    Args:
        tokenizer: as for `Plays.samples`.

    Raises:
        ImportError, OSError, ValueError: the tokenizer cannot be loaded.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self._tokenizer = tokenizer
        self._tokenize = None if tokenizer is None else ChatTokens.named(tokenizer)
        self._unlinked = 0

    def of(self, group: Sequence[Played]) -> Iterator[Sample]:
        """Yield the samples of the episodes of a group, with their advantages.

        Args:
            group: episodes of one task and seed. One that is alone has no advantage, as in the exports of records.
        """
        values = advantages_of_scores([each.reward for each in group]) if len(group) > 1 else [None]
        for each, value in zip(group, values, strict=True):
            samples = self._samples(each, value)
            left_out = samples[0].left_out if samples else ()
            if left_out:
                what = f"episode {each.assignment.number} ({samples[0].episode_id})"
                logger.warning("pool: %s: %d turns are in no sample: %s", what, len(left_out), left_out[0].reason)
            yield from samples

    def _samples(self, played: Played, advantage: float | None) -> list[Sample]:
        about: dict[str, Any] = {
            "group": played.assignment.group,
            "environment": world_of(played.assignment.row) or played.environment,
            "advantage": advantage,
            "reward": played.reward,
            "status": played.status.code.value,
            "usable": played.reward is not None,
        }
        given = played.turns or (played.value if isinstance(played.value, list) else [played.value])
        try:
            samples = self._of_given(played, given, about)
        except (TypeError, ValueError) as error:  # what a policy gives may be anything
            if played.trajectory is None or not played.status.usable:
                return []  # it failed before its model wrote anything
            samples = samples_of([], played.trajectory, left_out=[LeftOut(None, str(error))], **about)
        return [replace(each, spans=[_versioned(span, played) for span in each.spans]) for each in samples]

    def _of_given(self, played: Played, given: Sequence[Any], about: dict[str, Any]) -> list[Sample]:
        """Return the samples of an episode.

        Raises:
            TypeError, ValueError: there are no tokens in what the policy gave.
        """
        if given and all(isinstance(each, Sample) for each in given):
            whole = {} if played.trajectory is None else about_episode(played.trajectory)
            whole |= about
            return [replace(each, **whole | _of_its_own(each, whole, at, len(given))) for at, each in enumerate(given)]
        if given and all(isinstance(each, SampledTurn) for each in given):
            return samples_of(given, played.trajectory, **about)
        if given and all(isinstance(each, ModelTurn) for each in given):
            samples = samples_of_recorded(given, played.trajectory, self._tokenize, self._tokenizer, **about)
            self._note_unlinked(played, given)
            return samples
        found = ", ".join(sorted({type(each).__name__ for each in given})) or "no turns"
        raise TypeError(f"the policy returned {found} and called no episode.wrote(); return a Sample, or turns")

    def _note_unlinked(self, played: Played, given: Sequence[ModelTurn]) -> None:
        """Log once that no call of a model is joined to a step, with the reason, and then at each doubling."""
        reason = None if played.trajectory is None else unlinked(given, played.trajectory)
        if reason is None or played.trajectory is None:
            return
        self._unlinked += 1
        if self._unlinked & (self._unlinked - 1) == 0:
            what = f"episode {played.assignment.number} ({played.trajectory.episode_id})"
            text = "pool: %s: its turns have no rewards of their own: %s; so far in %d episodes"
            logger.warning(text, what, reason, self._unlinked)


def _of_its_own(sample: Sample, episode: Mapping[str, Any], piece: int, pieces: int) -> dict[str, Any]:
    """Return the fields that a sample of the policy's own shares with those of its episode."""
    labels = {**episode.get("labels", {}), **sample.labels}
    return {"usable": sample.usable and episode["usable"], "labels": labels, "piece": piece, "pieces": pieces}


def _versioned(span: Any, played: Played) -> Any:
    """Return a span with the version of the pool's weights, if nothing else says which ones wrote it."""
    known = span.policy_version is not None or played.pool_version is None
    return span if known else replace(span, policy_version=played.pool_version)
