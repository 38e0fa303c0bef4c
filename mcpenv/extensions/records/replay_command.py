"""The command ``mcpenv trajectories replay``: run recorded calls again and compare the results."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.instance import own_instances
from mcpenv.cli.output import (
    Page,
    author_output,
    counted,
    note,
    note_lost,
    note_torn,
    number_of,
    print_json,
    printable,
    quiet_logs,
)
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.targets.target import Target, load_target
from mcpenv.trajectories import RecordedEpisode, read_episodes
from mcpenv_client.errors import McpenvError
from mcpenv_client.types.tools import Mode

from .replay import Difference, Replayed, Verdict
from .replay import replay as replay_episode
from .selection import Selection

DIFFERENT = 1

_SHOWN = 20
_WIDTH = 200


def replay(
    record: Path,
    /,
    *,
    target: str,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    episode: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    limit: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Run the calls of recorded episodes again and compare every observation and reward with the record.

    Exit status 0: no difference. 1: a difference. 2: no episode was run.

    Args:
        record: Folder that was given as --record, or one of its files.
        target: The environment, as for run.
        settings: name=value for the environment's constructor; may be given several times.
        episode: Replay only the episode with this id, or with an id that starts with it.
        limit: Maximum number of episodes.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    selection = Selection(id=episode, limit=limit)
    with author_output():
        loaded = load_target(target, settings or ())
        loaded.refuse_other(Mode.SIMULATION)
        with own_instances():
            replayed = list(
                _replayed(
                    loaded,
                    counted(selection.of(read_episodes(record, on_torn=note_torn, on_lost=note_lost)), "replayed"),
                )
            )
    if not replayed:
        raise ConfigurationError(f"{record}: there is no {'such ' if episode else ''}episode to replay")
    if as_json:
        print_json(_document(replayed))
    else:
        _show(Page(sys.stdout), replayed)
    return DIFFERENT if any(each.verdict is Verdict.DIFFERS for each in replayed) else 0


def _replayed(target: Target, episodes: Iterator[RecordedEpisode]) -> Iterator[Replayed]:
    warned: set[tuple[str, str | None]] = set()
    for episode in episodes:
        env = target.make()
        try:
            recorded = (episode.environment.name, episode.environment.version)
            if recorded != (env.exposed_name(), env.VERSION) and recorded not in warned:
                warned.add(recorded)
                note(f"recorded with {_named(*recorded)}, replayed with {_named(env.exposed_name(), env.VERSION)}")
            yield replay_episode(env, episode)
        finally:
            _close(target, env.close)


def _close(target: Target, close: Any) -> None:
    try:
        close()
    except McpenvError as error:
        raise TargetError(target.name, f"close failed: {error}") from error


def _named(name: str, version: str | None) -> str:
    return f"{name} {version}" if version else name


# -- output


def _document(replayed: list[Replayed]) -> dict[str, Any]:
    counts = Counter(each.verdict.value for each in replayed)
    return {
        "episodes": len(replayed),
        "verdicts": {verdict.value: counts[verdict.value] for verdict in Verdict},
        "replayed": [dataclasses.asdict(each) for each in replayed],
    }


def _show(page: Page, replayed: list[Replayed]) -> None:
    different = [each for each in replayed if each.verdict is Verdict.DIFFERS]
    for each in different[:_SHOWN]:
        assert each.difference is not None
        page.line((printable(each.episode_id), "bold red"), f" differs at {_place(each.difference)}")
        page.line(f"recorded: {_value(each.difference.recorded)}", indent=4)
        page.line(f"replayed: {_value(each.difference.replayed)}", indent=4)
    if len(different) > _SHOWN:
        page.line(f"and {len(different) - _SHOWN} more")
    for why, count in Counter(each.why for each in replayed if each.why is not None).most_common(_SHOWN):
        page.line((f"{count} not replayed to the end: {printable(str(why))}", "yellow"))
    for rubric, count in Counter(each.rescored_by for each in different if each.rescored_by is not None).items():
        which = f"{count} of those that differ rescored by {printable(str(rubric))}"
        page.line((f"{which}: the recorded rewards are the rubric's, not the environment's", "yellow"))
    counts = Counter(each.verdict for each in replayed)
    steps = sum(each.steps for each in replayed)
    words = {
        Verdict.AGREES: "agree",
        Verdict.PARTLY: "agree as far as they can be replayed",
        Verdict.NOT_REPLAYABLE: "cannot be replayed",
        Verdict.DIFFERS: "differ",
    }
    parts = [f"{counts[verdict]} {words[verdict]}" for verdict in Verdict if counts[verdict]]
    page.line((f"{number_of(len(replayed), 'episode')}, {number_of(steps, 'step')}: {', '.join(parts)}", "bold"))


def _place(difference: Difference) -> str:
    return f"{difference.place}, {printable(difference.field)}"


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= _WIDTH else f"{text[:_WIDTH]}… ({len(text)} characters)")
