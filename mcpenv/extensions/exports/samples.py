"""Samples for trainers: tokens, log-probabilities, masks and rewards of episodes with recorded turns of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcpenv.cli.output import note, number_of
from mcpenv.errors import ConfigurationError
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.samples import Sample, samples_of_recorded
from mcpenv_client.samples.formats import ROWS, atropos, longest_of
from mcpenv_client.samples.linking import unlinked
from mcpenv_client.samples.rendered import ChatTokens
from mcpenv_client.samples.trees import SHARED, SharedRows
from mcpenv_client.scores import advantages_of_scores, branching_point, score_of, whole_status
from mcpenv_client.types.records import Fork

from .files import Episodes, ExportFormat, ExportOptions, write_lines

_Group = tuple[str, str | None, str | None, int | None, Fork | None]
"""The environment, split, task, seed and branching point of an episode: those of a group are equal."""


class _Groups:
    """The numbers and advantages of a record's episodes, from a first reading of all of it."""

    def __init__(self, episodes: Episodes) -> None:
        groups: dict[_Group, list[tuple[str, float | None]]] = {}
        for episode, _ in episodes:
            groups.setdefault(_group_of(episode), []).append((episode.id, _score_of(episode)))
        self.of: dict[str, tuple[int, float | None]] = {}
        for number, members in enumerate(groups.values()):
            values = advantages_of_scores([score for _, score in members])
            for (identity, _), value in zip(members, values, strict=True):
                self.of[identity] = number, value if len(members) > 1 else None


def _group_of(episode: RecordedEpisode) -> _Group:
    task, seed = episode.trajectory.task, episode.trajectory.seed
    named = (None, None) if task is None else (task.split, task.id)
    return (episode.environment.name, *named, seed, branching_point(episode.trajectory))


def _score_of(episode: RecordedEpisode) -> float | None:
    status = whole_status(episode.trajectory)
    return score_of(episode.trajectory) if status is not None and status.usable else None


def _tokens_of(name: str | None) -> ChatTokens | None:
    """Return the tokenizer of a name or a folder.

    Raises:
        ConfigurationError: transformers is not installed, or cannot load it.
    """
    if name is None:
        return None
    try:
        return ChatTokens.named(name)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ConfigurationError(f"--tokenizer {name}: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the tokenizer {name} cannot be loaded: {error}") from error


class _Samples:
    """The samples of a record, and counts of what is not among them.

    Attributes:
        episodes: the number of episodes that were read.
        without: those without tokens of a model.
        unusable: the number of samples that are not usable.
        left_out: the turns of models that are in no sample.
        unlinked: the episodes in which no call of a model is joined to a step, by the reason.
    """

    def __init__(self, episodes: Episodes, options: ExportOptions) -> None:
        self._episodes = episodes
        self._groups = _Groups(options.whole or episodes)
        self._tokenizer = options.tokenizer
        self._tokenize = _tokens_of(options.tokenizer)
        self.tree = options.tree
        self.episodes = self.without = self.unusable = 0
        self.left_out, self.unlinked = Counter[str](), Counter[str]()

    def of_episodes(self) -> Iterator[tuple[int, list[Sample]]]:
        """Yield the number of the group and the samples of each episode."""
        for episode, _ in self._episodes:
            number, advantage = self._groups.of[episode.id]
            about: dict[str, Any] = {"environment": episode.environment.name, "group": number, "advantage": advantage}
            made = (episode.model_turns or (), episode.trajectory, self._tokenize, self._tokenizer)
            samples = samples_of_recorded(*made, **about)
            self.left_out.update(each.reason for sample in samples[:1] for each in sample.left_out)
            if (reason := unlinked(episode.model_turns or (), episode.trajectory)) is not None:
                self.unlinked[reason] += 1
            self.episodes += 1
            self.without += not any(sample.tokens for sample in samples)
            self.unusable += sum(not sample.usable for sample in samples if sample.tokens)
            yield number, samples

    def of_groups(self) -> Iterator[list[Sample]]:
        """Yield the usable samples of the selected episodes of each group, the longest one of each episode."""
        sizes = Counter(self._groups.of[episode.id][0] for episode, _ in self._episodes)
        waiting: dict[int, list[list[Sample]]] = {}
        for number, samples in self.of_episodes():
            members = waiting.setdefault(number, [])
            usable = [sample for sample in samples if sample.usable]
            members.append([longest_of(usable)] if usable else [])
            if len(members) == sizes[number]:
                yield [sample for each in waiting.pop(number) for sample in each]

    def say(self) -> None:
        """Print notes on what is not among the samples."""
        if self.unusable:
            note(
                f"{number_of(self.unusable, 'sample')} not usable: nothing scored it, or a step is not about the agent"
            )
        if self.without:
            note(f"{number_of(self.without, 'episode')} without tokens of a model: see docs/how-to/record-models.md")
        for reason, times in self.left_out.most_common():
            note(f"{number_of(times, 'turn')} left out: {reason}")
        for reason, times in self.unlinked.most_common():
            note(f"{number_of(times, 'episode')} whose turns have no rewards of their own: {reason}")


def _format(rows: Callable[[_Samples], Iterable[Any]]) -> ExportFormat:
    def write(episodes: Episodes, out: Path | None, options: ExportOptions) -> int:
        samples = _Samples(episodes, options)
        note(f"{number_of(write_lines(rows(samples), out), 'line')} of samples")
        samples.say()
        return samples.episodes

    return ExportFormat(write=write, suffix=".jsonl", tokens=True)


def _rows_of(name: str) -> ExportFormat:
    row = ROWS.get(name, Sample.to_plain)

    def rows(found: _Samples) -> Iterator[dict[str, Any]]:
        shared = SharedRows(name) if found.tree else None
        for _, samples in found.of_episodes():
            for each in samples:
                if each.usable or name == "tokens":
                    yield row(each) if shared is None else _shared(shared, row(each), each)

    return replace(_format(rows), trees=name in SHARED)


def _shared(shared: SharedRows, row: dict[str, Any], sample: Sample) -> dict[str, Any]:
    """Return a row beside its parent, else beside the first branch from the same step."""
    point = None if sample.tree_step is None else (sample.tree, sample.tree_step)
    return shared.row(row, sample.start, [key for key in (sample.episode_id, point) if key], [sample.tree, point])


TOKENS = _rows_of("tokens")
"""JSONL of `mcpenv_client.samples.Sample`, those that are not usable too."""

VERL, SLIME, NEMO, TRL = _rows_of("verl"), _rows_of("slime"), _rows_of("nemo"), _rows_of("trl")
"""JSONL of the usable samples in the fields of a trainer."""

ATROPOS = _format(lambda found: (atropos(group) for group in found.of_groups() if len(group) > 1))
"""JSONL of groups with at least two usable episodes."""
