"""Evaluations: what they play, on which server, and that they go on where they were stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import Endpoint, scripted_endpoint
from evaluate_world import Counting, Plain, task

from mcpenv import ConfigurationError
from mcpenv.extensions.evaluation import (
    Evaluated,
    Failure,
    ModelAgent,
    ProgramAgent,
    evaluate,
    evaluate_async,
    read_results,
)
from mcpenv.extensions.evaluation.results import RESULTS
from mcpenv.extensions.evaluation.settings import SETTINGS
from mcpenv.extensions.records.where import row_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.tasks import TaskSet
from mcpenv.trajectories import RecordedEpisode, read_episodes
from mcpenv_client import ConnectionFailed


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as running:
        yield running


def model(endpoint: Endpoint, **settings: Any) -> ModelAgent:
    return ModelAgent("scripted", base_url=endpoint.url, **{"backoff_s": 0.001, "max_turns": 5, **settings})


def recorded(done: Evaluated) -> list[RecordedEpisode]:
    return list(read_episodes(done.directory / "record"))


# -- what is played


def test_an_environment_without_tasks_is_played_by_seeds_and_its_prompt_is_what_it_is(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    done = evaluate(Plain, model(endpoint), out=tmp_path, n=3, k=2, seed=4)
    assert [(result.seed, result.sample, result.score) for result in done.results] == [
        (4, 0, 1.0),
        (5, 0, 0.0),
        (6, 0, 1.0),
        (4, 1, 1.0),
        (5, 1, 0.0),
        (6, 1, 1.0),
    ]
    assert endpoint.conversations == {"Draw a number: an even one wins.": 6}
    assert done.summary.pass_at == {} and done.summary.mean_return is not None
    assert done.summary.mean_return.value == pytest.approx(2 / 3)


def test_a_seed_draws_tasks_and_a_larger_n_keeps_those_of_a_smaller(endpoint: Endpoint, tmp_path: Path) -> None:
    agent = model(endpoint)
    few = evaluate(Counting, agent, out=tmp_path, split="many", n=4, seed=1)
    more = evaluate(Counting, agent, out=tmp_path, split="many", n=6, seed=1)
    assert Counting.tasks is not None
    first = [task.id for task in Counting.tasks.select(split="many")][:4]
    assert [result.task for result in few.results] == [result.task for result in more.results][:4] != first
    assert endpoint.conversations.total() == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "-n is 0"),
        ({"k": 0}, "-k is 0"),
        ({"concurrency": 0}, "--concurrency is 0"),
        ({"timeout_s": float("inf")}, "--timeout-s"),
        ({"pass_threshold": float("nan")}, "--pass-threshold"),
        ({"split": "tset"}, "no such split .there are: test, programs, slow, odd, many"),
        ({"concurrency": 2000}, "allows 1024 sessions at once; use --concurrency 1024"),
        ({"settings": ["a=1"]}, "settings and tasks cannot be given for a class"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    endpoint: Endpoint, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        evaluate(Counting, model(endpoint), out=tmp_path, **options)
    assert read_results(tmp_path) == []


# -- on a server


def test_a_server_at_a_url_is_used_with_its_control_token(endpoint: Endpoint, tmp_path: Path) -> None:
    agent = model(endpoint)
    with serving(Counting, ServerConfig(control_token="secret-of-control", max_concurrent_envs=3)) as url:
        done = evaluate(url, agent, out=tmp_path / "a", n=3, control_token="secret-of-control")
        assert done.summary.scored == 3
        with pytest.raises(ConfigurationError, match="it requires its control token"):
            evaluate(url, agent, out=tmp_path / "b", n=1)
        with pytest.raises(ConfigurationError, match="allows 3 sessions at once; use --concurrency 3"):
            evaluate(url, agent, out=tmp_path / "b", concurrency=4, control_token="secret-of-control")
        with pytest.raises(ConfigurationError, match="--set and --tasks are for an environment's code"):
            evaluate(url, agent, out=tmp_path / "b", settings=["bonus=1"], control_token="secret-of-control")
        with pytest.raises(ConfigurationError, match="control token, and refuses this one"):
            evaluate(url, agent, out=tmp_path / "b", n=1, control_token="another-secret")
    for config in (None, ServerConfig(control_token="secret-of-control")):
        with serving(Counting, config, mode="production") as url:
            with pytest.raises(ConfigurationError, match="it is in production, where there are no episodes"):
                evaluate(url, agent, out=tmp_path / "b", control_token="secret-of-control")
    with pytest.raises(ConnectionFailed):
        evaluate(url, agent, out=tmp_path / "b")


def test_a_server_that_is_gone_ends_the_evaluation_and_fails_no_episode(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.hold_after = 2

    async def lose() -> None:
        with serving(Counting) as url:
            running = asyncio.ensure_future(
                evaluate_async(url, model(endpoint), out=tmp_path, split="many", concurrency=1)
            )
            await asyncio.to_thread(endpoint.holding.acquire)
        # The server is gone while the third episode waits for its model.
        endpoint.release()
        with pytest.raises(ConnectionFailed):
            await running

    asyncio.run(lose())
    assert [result.failure for result in read_results(tmp_path)] == [None, None]


# -- to go on


def test_what_is_finished_is_not_played_again(endpoint: Endpoint, tmp_path: Path) -> None:
    agent = model(endpoint)
    first = evaluate(Counting, agent, out=tmp_path, split="many", n=3)
    told: list[tuple[int, int]] = []
    again = evaluate(
        Counting,
        agent,
        out=tmp_path,
        split="many",
        n=3,
        k=2,
        on_progress=lambda progress: told.append((progress.finished, progress.planned)),
    )
    assert [result.episode_id for result in again.results][:3] == [result.episode_id for result in first.results]
    assert told == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert endpoint.conversations.total() == 6
    assert sorted(episode.id for episode in recorded(again)) == sorted(str(r.episode_id) for r in again.results)


def test_other_settings_are_refused_and_fresh_drops_what_is_there(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not an evaluation's")
    evaluate(Counting, model(endpoint), out=tmp_path, n=2)
    with pytest.raises(ConfigurationError, match=r"agent.temperature was null and is 0.5.*--fresh"):
        evaluate(Counting, model(endpoint, temperature=0.5), out=tmp_path, n=2)
    with pytest.raises(ConfigurationError, match='split was "test" and is "many"'):
        evaluate(Counting, model(endpoint), out=tmp_path, split="many", n=2)
    fresh = evaluate(Counting, model(endpoint, temperature=0.5), out=tmp_path, n=1, fresh=True)
    assert len(read_results(tmp_path)) == len(recorded(fresh)) == 1
    assert (tmp_path / "mine.txt").exists()


def test_an_evaluation_that_names_no_program_is_continued(tmp_path: Path) -> None:
    agent = ProgramAgent("true", isolation="none")
    first = evaluate(Counting, agent, out=tmp_path, n=1)
    old = json.loads((tmp_path / SETTINGS).read_text())
    assert old["agent"].pop("name") == "true"
    (tmp_path / SETTINGS).write_text(json.dumps(old))
    again = evaluate(Counting, agent, out=tmp_path, n=2)
    assert len(again.results) == 2 and again.results[0].episode_id == first.results[0].episode_id
    assert [row_of(episode)["agent"] for episode in recorded(again)] == ["true", "true"]
    with pytest.raises(ConfigurationError, match=r"agent\.command was"):
        evaluate(Counting, ProgramAgent("false", isolation="none"), out=tmp_path, n=2)


def test_a_task_that_was_changed_is_not_mixed_with_what_it_was(endpoint: Endpoint, tmp_path: Path) -> None:
    class Changed(Counting):
        tasks = TaskSet([task("solve", target=3)])

    with serving(Counting) as url:
        port = int(url.rpartition(":")[2])
        evaluate(url, model(endpoint), out=tmp_path, n=1)
    Changed.__name__ = Counting.__name__
    with serving(Changed, port=port) as url:
        with pytest.raises(ConfigurationError, match="task 'solve' has changed since it was played"):
            evaluate(url, model(endpoint), out=tmp_path)


def test_episodes_without_a_score_are_played_again_if_that_is_asked_for(endpoint: Endpoint, tmp_path: Path) -> None:
    agent = model(endpoint, tries=1)
    evaluate(Counting, agent, out=tmp_path, n=1)
    endpoint.first = [(503, {})] * 2
    options: dict[str, Any] = {"out": tmp_path, "n": 3, "concurrency": 1}
    failed = evaluate(Counting, agent, **options)
    assert [result.failure for result in failed.results] == [None, Failure.MODEL_ERROR, Failure.MODEL_ERROR]
    assert evaluate(Counting, agent, **options).results == failed.results
    again = evaluate(Counting, agent, retry_errors=True, **options)
    assert [result.failure for result in again.results] == [None, None, Failure.OUT_OF_TURNS]
    assert len(read_results(tmp_path)) == 3 and len((tmp_path / RESULTS).read_text().splitlines()) == 5


def test_an_episode_that_was_recorded_and_has_no_line_yet_is_not_lost(endpoint: Endpoint, tmp_path: Path) -> None:
    agent = model(endpoint)
    done = evaluate(Counting, agent, out=tmp_path, n=3)
    lines = (tmp_path / RESULTS).read_bytes().splitlines(keepends=True)
    # As a process leaves it that is killed between the two, and then in the middle of the second.
    for torn in (b"", lines[2][:40]):
        (tmp_path / RESULTS).write_bytes(lines[0] + lines[1] + torn)
        assert len(read_results(tmp_path)) == 2
        again = evaluate(Counting, agent, out=tmp_path, n=3)
        assert again.results == done.results
        assert (tmp_path / RESULTS).read_bytes().splitlines(keepends=True) == lines
    assert endpoint.conversations.total() == 3


def test_lines_that_are_no_results_and_results_of_nobody_knows_what_are_refused(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    agent = model(endpoint)
    evaluate(Counting, agent, out=tmp_path, n=1)
    kept = (tmp_path / RESULTS).read_bytes()
    (tmp_path / RESULTS).write_bytes(kept + b"no result\n")
    with pytest.raises(ConfigurationError, match=r"results.jsonl:2: not a result"):
        evaluate(Counting, agent, out=tmp_path, n=1)
    (tmp_path / RESULTS).write_bytes(kept)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ConfigurationError, match=r"no settings.json"):
        evaluate(Counting, agent, out=tmp_path, n=1)


def test_two_evaluations_do_not_write_to_one_folder(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.hold_after = 0

    async def both() -> None:
        first = asyncio.ensure_future(evaluate_async(Counting, model(endpoint), out=tmp_path, n=1))
        await asyncio.to_thread(endpoint.holding.acquire)
        with pytest.raises(ConfigurationError, match="another evaluation is using this folder"):
            await evaluate_async(Counting, model(endpoint), out=tmp_path, n=1)
        endpoint.release()
        assert (await first).summary.passed == 1

    asyncio.run(both())


def test_a_cancelled_evaluation_finishes_nothing_half_and_goes_on(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.hold_after = 5
    agent = model(endpoint)

    async def cancel() -> None:
        running = asyncio.ensure_future(evaluate_async(Counting, agent, out=tmp_path, split="many", concurrency=2))
        await asyncio.to_thread(endpoint.holding.acquire)
        await asyncio.to_thread(endpoint.holding.acquire)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    before = read_results(tmp_path)
    assert len(before) == 5
    endpoint.release()
    done = evaluate(Counting, agent, out=tmp_path, split="many")
    assert {r.episode_id for r in before} < {r.episode_id for r in done.results}
    assert len(done.results) == len(recorded(done)) == 12
