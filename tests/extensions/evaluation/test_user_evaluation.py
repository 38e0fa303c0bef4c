"""Evaluation of a model that speaks with a user: what both said, what both cost, and whose failure it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluate_endpoint import Endpoint, called, refused, said, scripted_endpoint
from user_worlds import LINES, Boxes, Phone

from mcpenv import read_episodes
from mcpenv.extensions.evaluation import Evaluated, ModelAgent, evaluate
from mcpenv.extensions.evaluation.results import Failure
from mcpenv.extensions.evaluation.run_page import report_of
from mcpenv.extensions.users import user_turns
from mcpenv_client import StatusCode


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as running:
        yield running


def evaluated(endpoint: Endpoint, out: Path, *, phone: bool = False) -> Evaluated:
    class Called(Phone):
        def __init__(self) -> None:
            super().__init__(endpoint.url)

    agent = ModelAgent("agent", base_url=endpoint.url, backoff_s=0.001, max_turns=8, tries=2)
    return evaluate(Called if phone else Boxes, agent, out=out, concurrency=1)


def test_a_text_answer_is_the_users_turn_and_the_episode_ends_when_the_user_leaves(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    for by in (1, 1, -1):
        endpoint.first += [called(("change", {"by": by})), said("Done.")]
    done = evaluated(endpoint, tmp_path)
    (result,) = done.results
    assert (result.score, result.failure, result.turns, result.steps, result.reason) == (1.0, None, 6, 6, "user_left")
    assert result.user_prompt_tokens is None and done.summary.user_prompt_tokens is None
    (episode,) = read_episodes(done.directory / "record")
    assert episode.messages is not None
    users = [message["content"] for message in episode.messages if message["role"] == "user"]
    assert users == ["Add a box, please.", *LINES, "That was all. Goodbye."]
    assert [turn.text for turn in user_turns(episode.trajectory)] == users[1:]


def test_the_tokens_of_a_model_that_plays_the_user_are_counted_beside_the_agents(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.first = [
        said("What is wrong?"),
        said("No data."),
        said("Switch it on."),
        called(("switch_data", {"on": True})),
        said("It works. ###STOP###"),
    ]
    done = evaluated(endpoint, tmp_path, phone=True)
    (result,) = done.results
    assert (result.score, result.turns) == (1.0, 2)
    assert (result.prompt_tokens, result.user_prompt_tokens, result.user_completion_tokens) == (20, 30, 9)
    assert done.to_plain()["user_prompt_tokens"] == 30
    assert "<dt>Tokens of the user</dt><dd>39</dd>" in report_of(done.run)
    assert all("respond" not in str(body.get("tools")) for body in endpoint.asked)


def test_a_user_that_fails_is_the_environments_failure_and_leaves_no_score(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.first = [said("What is wrong?"), refused(400, "no")]
    done = evaluated(endpoint, tmp_path, phone=True)
    (result,) = done.results
    assert (result.failure, result.score, result.status.code) == (
        Failure.ENVIRONMENT_ERROR,
        None,
        StatusCode.ENV_ERROR,
    )
    assert result.status.retryable and result.user_prompt_tokens == 0


def test_a_message_that_was_cut_short_ends_the_episode_though_there_is_a_user(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.first = [said("One, and then", "length")]
    (result,) = evaluated(endpoint, tmp_path).results
    assert (result.failure, result.score, result.turns) == (Failure.CUT_SHORT, 0.0, 1)


def test_a_model_that_never_stops_talking_runs_out_of_turns(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.first = [said("And?"), said("And?")]
    agent = ModelAgent("agent", base_url=endpoint.url, max_turns=2)
    (result,) = evaluate(Boxes, agent, out=tmp_path, concurrency=1).results
    assert result.failure is Failure.OUT_OF_TURNS
