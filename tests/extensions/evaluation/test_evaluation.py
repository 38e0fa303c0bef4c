"""Evaluation: what agents did, what they were told, and that the figures are those of the recorded episodes."""

from __future__ import annotations

import ast
import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import mcp
import pytest
from command_line import processes_with
from evaluate_endpoint import Endpoint, called, refused, scripted_endpoint
from evaluate_world import Counting

from mcpenv import ConfigurationError, Status
from mcpenv.extensions.evaluation import Evaluated, ModelAgent, ProgramAgent, evaluate
from mcpenv.extensions.evaluation.isolation import Choice
from mcpenv.extensions.evaluation.results import EpisodeResult, Failure, read_results
from mcpenv.extensions.evaluation.run_page import report_of
from mcpenv.trajectories import RecordedEpisode, read_episodes
from mcpenv_client import Stage, StatusCode

PROGRAM = Path(__file__).with_name("evaluate_program.py")
COMMAND = f"{sys.executable} {PROGRAM} {{mcp_url}}"
SHOW = [Path(mcp.__file__).parents[1]]
"""The packages of `PROGRAM`, which may be in a temporary folder."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_endpoint() as running:
        yield running


def model(endpoint: Endpoint, **settings: Any) -> ModelAgent:
    return ModelAgent("scripted", base_url=endpoint.url, **{"backoff_s": 0.001, "max_turns": 5, **settings})


def by_task(done: Evaluated) -> dict[str, EpisodeResult]:
    return {str(result.task): result for result in done.results}


def recorded(done: Evaluated) -> list[RecordedEpisode]:
    return list(read_episodes(done.directory / "record"))


def messages_of(done: Evaluated, task: str) -> list[dict[str, Any]]:
    (episode,) = [each for each in recorded(done) if each.trajectory.task and each.trajectory.task.id == task]
    assert episode.messages is not None
    return episode.messages


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Evaluated, Endpoint]]:
    """Every script once."""
    with scripted_endpoint() as endpoint:
        agent = model(endpoint, system="You count.", temperature=0.5, max_tokens=99, tries=2, extra={"top_p": 0.9})
        # The first answer is a good one: an endpoint that never gave one is not used at all.
        done = evaluate(Counting, agent, out=tmp_path_factory.mktemp("eval"), concurrency=1)
        yield done, endpoint


# -- a model


@pytest.mark.parametrize(
    ("task", "failure", "score", "steps"),
    [
        ("solve", None, 1.0, 2),
        ("miss", None, 0.0, 0),
        ("loop", Failure.OUT_OF_TURNS, 0.0, 5),
        ("scrawl", Failure.MALFORMED_TOOL_CALL, 0.0, 0),
        ("stutter", None, 1.0, 2),
        ("both", None, 1.0, 3),
        ("refuse", Failure.MODEL_REFUSED, 0.0, 0),
        ("long", Failure.CUT_SHORT, 0.0, 0),
        ("down", Failure.MODEL_ERROR, None, 0),
        ("too_long", Failure.CONVERSATION_REJECTED, 1.0, 2),
        ("odd_name", None, 1.0, 3),
        ("break_reset", Failure.ENVIRONMENT_ERROR, None, 0),
        ("break_verify", Failure.ENVIRONMENT_ERROR, None, 2),
        ("cut", Failure.TRUNCATED, 0.0, 6),
    ],
)
def test_how_a_model_played_is_sorted_by_what_happened(
    played: tuple[Evaluated, Endpoint], task: str, failure: Failure | None, score: float | None, steps: int
) -> None:
    result = by_task(played[0])[task]
    assert (result.failure, result.score, result.steps) == (failure, score, steps), result.detail


STATUSES = {
    "solve": Status(StatusCode.COMPLETED),
    "loop": Status(StatusCode.TRUNCATED, limit="out_of_turns"),
    "scrawl": Status(StatusCode.AGENT_ERROR),
    "refuse": Status(StatusCode.AGENT_ERROR),
    "long": Status(StatusCode.TRUNCATED, limit="cut_short"),
    "down": Status(StatusCode.TRANSPORT_LOST, retryable=True),
    "too_long": Status(StatusCode.AGENT_ERROR),
    "break_reset": Status(StatusCode.ENV_ERROR, Stage.RESET, True),
    "break_verify": Status(StatusCode.JUDGE_ERROR, Stage.VERIFY, True),
    "cut": Status(StatusCode.TRUNCATED, limit="max_steps"),
}


def test_a_result_has_the_status_of_what_happened(played: tuple[Evaluated, Endpoint]) -> None:
    done = played[0]
    results = by_task(done)
    assert {task: results[task].status for task in STATUSES} == STATUSES
    assert done.summary.statuses == {
        "completed": 5,
        "truncated": 3,
        "agent_error": 3,
        "transport_lost": 1,
        "env_error": 1,
        "judge_error": 1,
    }
    assert all(result.score is None for result in done.results if not result.status.usable)
    assert done.to_plain()["statuses"] == done.summary.statuses
    assert "<dt>Statuses</dt><dd>completed 5, truncated 3, agent error 3" in report_of(done.run)
    assert {str(each.task): each.status for each in read_results(done.directory)} == {
        task: result.status for task, result in results.items()
    }


def test_a_result_of_an_earlier_version_has_the_status_of_its_failure(played: tuple[Evaluated, Endpoint]) -> None:
    for result in played[0].results:
        plain = result.to_plain()
        del plain["status"]
        derived = EpisodeResult.from_plain(plain).status
        assert derived.usable == result.status.usable


def test_every_script_is_tried(played: tuple[Evaluated, Endpoint]) -> None:
    assert Counting.tasks is not None
    assert [result.task for result in played[0].results] == [task.id for task in Counting.tasks.select(split="test")]


def test_a_model_is_asked_as_its_settings_say(played: tuple[Evaluated, Endpoint]) -> None:
    done, endpoint = played
    body = endpoint.asked[0]
    assert {name: body[name] for name in ("model", "temperature", "max_tokens", "top_p")} == {
        "model": "scripted",
        "temperature": 0.5,
        "max_tokens": 99,
        "top_p": 0.9,
    }
    assert body["messages"] == [
        {"role": "system", "content": "You count."},
        {"role": "user", "content": "solve: count to 2 (solve)."},
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "look_at_it"]
    assert set(endpoint.keys) == {None}
    assert done.results[0].prompt_tokens == 30 and done.results[0].completion_tokens == 9


def test_calls_of_one_message_are_made_in_order_and_what_a_tool_refuses_is_its_answer(
    played: tuple[Evaluated, Endpoint],
) -> None:
    *_, asked, first, second, third, last = messages_of(played[0], "both")
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["add", "no_such", "add"]
    assert [each["tool_call_id"] for each in (first, second, third)] == ["call-0", "call-1", "call-2"]
    assert (first["content"], third["content"]) == ("1", "2")
    assert "no_such" in second["content"]
    assert last == {"role": "assistant", "content": "Both."}


def test_a_call_that_cannot_be_read_goes_back_to_the_model_and_is_no_step(played: tuple[Evaluated, Endpoint]) -> None:
    _, _, asked, answer, *_ = messages_of(played[0], "stutter")
    assert asked["tool_calls"][0]["function"]["arguments"] == "{}"
    assert answer["content"] == "Error: this call was not made. Its arguments are not a JSON object: [1]"
    results = by_task(played[0])
    assert (results["stutter"].malformed_calls, results["scrawl"].malformed_calls) == (1, 5)
    assert played[0].summary.malformed_calls == 6


def test_calls_after_the_end_of_an_episode_are_answered_and_not_made(played: tuple[Evaluated, Endpoint]) -> None:
    *_, before, last, after, never = messages_of(played[0], "cut")
    assert [each["content"] for each in (before, last)] == ["0", "0"]
    assert after["content"] == never["content"] == "The episode is over; this call was not made."


def test_episodes_without_a_score_are_in_no_figure(played: tuple[Evaluated, Endpoint]) -> None:
    summary = played[0].summary
    assert (summary.planned, summary.finished, summary.scored, summary.unscored) == (14, 14, 11, 3)
    assert summary.pass_at[1].tasks == 11
    assert summary.failures["environment_error"] == 2
    assert summary.mean_return is not None and summary.mean_return.value == pytest.approx(5 / 11)


def test_a_record_says_who_played_with_which_tools_and_what_became_of_it(played: tuple[Evaluated, Endpoint]) -> None:
    episode = next(each for each in recorded(played[0]) if each.id == played[0].results[0].episode_id)
    assert episode.environment.name == played[0].settings["environment"]["name"]
    assert episode.agent is not None and episode.agent["model"] == "scripted"
    assert episode.tools is not None
    assert EpisodeResult.from_plain(episode.extra["eval"]) == played[0].results[0]


def test_a_key_is_sent_and_nowhere_kept(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_MINE", "secret-key-of-mine")
    done = evaluate(Counting, model(endpoint, api_key_env="KEY_OF_MINE"), out=tmp_path, n=1)
    assert set(endpoint.keys) == {"Bearer secret-key-of-mine"}
    kept = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    lines = [episode.line() for episode in recorded(done)]
    assert len(kept) > 3 and not any(b"secret-key" in each for each in [*kept, *lines])


def test_a_busy_endpoint_is_asked_again(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.first = [refused(429, "slow down"), (500, {}), (200, {"no": "choices"}), called((3, {}))]  # type: ignore[arg-type]
    done = evaluate(Counting, model(endpoint), out=tmp_path, n=1)
    assert (done.results[0].score, done.results[0].turns) == (1.0, 3)


def test_a_key_that_an_endpoint_quotes_is_not_repeated(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_MINE", "secret-key-of-mine")
    endpoint.first = [refused(401, "Incorrect API key:\n secret-key-of-mine")]
    with pytest.raises(ConfigurationError, match=r"status 401: Incorrect API key: \(the key\)$"):
        evaluate(Counting, model(endpoint, api_key_env="KEY_OF_MINE"), out=tmp_path, n=1)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_an_endpoint_that_refuses_the_first_request_ends_the_evaluation(
    endpoint: Endpoint, tmp_path: Path, status: int
) -> None:
    endpoint.first = [refused(status, "no such model")]
    with pytest.raises(ConfigurationError, match=f"refused with status {status}: no such model"):
        evaluate(Counting, model(endpoint), out=tmp_path, concurrency=1)
    assert read_results(tmp_path) == []


def test_a_call_under_way_at_the_time_limit_is_ended_and_the_episode_is_scored(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.hold_after = 0
    done = evaluate(Counting, model(endpoint), out=tmp_path, n=1, timeout_s=0.3)
    assert (done.results[0].failure, done.results[0].score) == (Failure.TIMEOUT, 0.0)
    assert done.results[0].truncated and done.results[0].reason == "timeout"


# -- a program


@pytest.fixture(scope="module")
def by_program(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCPENV_CONTROL_TOKEN", "not-for-agents")
        return evaluate(
            Counting, ProgramAgent(COMMAND, show=SHOW), out=tmp_path_factory.mktemp("eval"), split="programs"
        )


def printed(done: Evaluated, task: str) -> str:
    return (done.directory / "agents" / f"{task}-0.log").read_text()


@pytest.mark.parametrize(
    ("task", "failure", "score", "steps"),
    [
        ("p-solve", None, 1.0, 2),
        ("p-miss", None, 0.0, 0),
        ("p-crash", Failure.AGENT_CRASHED, 0.0, 0),
        ("p-too_many", Failure.TRUNCATED, 0.0, 6),
    ],
)
def test_a_stock_mcp_client_plays_as_a_program(
    by_program: Evaluated, task: str, failure: Failure | None, score: float, steps: int
) -> None:
    result = by_task(by_program)[task]
    assert (result.failure, result.score, result.steps) == (failure, score, steps), printed(by_program, task)


def test_a_program_that_crashed_is_quoted(by_program: Evaluated) -> None:
    said, _, advice = (by_task(by_program)["p-crash"].detail or "").partition(" (")
    assert said == "exit status 1: I am lost"
    # The script stands among the files of the environment, which are hidden where bubblewrap is there.
    assert advice == "" or advice.startswith("it does not see the other files of its script's folder")


def test_what_a_program_prints_is_kept_and_it_knows_nothing_of_the_control_plane(by_program: Evaluated) -> None:
    said = printed(by_program, "p-solve")
    assert "variables: ['MCPENV_MCP_URL', 'MCPENV_PROMPT']" in said
    assert "prompt: solve: count to 2 (p-solve)." in said
    assert "tools: ['add', 'look.at/it']" in said


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_a_program_is_killed_at_the_time_limit_with_all_that_it_started(tmp_path: Path, isolation: Choice) -> None:
    agent = ProgramAgent(COMMAND, show=SHOW, isolation=isolation)
    done = evaluate(Counting, agent, out=tmp_path, split="slow", timeout_s=3.0)
    assert (done.results[0].failure, done.results[0].truncated) == (Failure.TIMEOUT, True)
    assert processes_with(printed(done, "slow").partition("child with: ")[2].strip()) == []


def test_a_prompt_in_the_arguments_leaves_stdin_empty_and_is_one_argument(tmp_path: Path) -> None:
    done = evaluate(Counting, ProgramAgent(COMMAND + " {prompt}", show=SHOW), out=tmp_path, split="odd")
    (result,) = done.results
    (log,) = (tmp_path / "agents").iterdir()
    assert (result.failure, result.score) == (None, 1.0), log.read_text()


@pytest.mark.parametrize("written", ["{url}", "{mcp-url}", "{task_id}", "{the_prompt}"])
def test_a_place_that_nothing_fills_in_is_said(written: str) -> None:
    with pytest.warns(UserWarning, match=rf"\{written} is not a placeholder; \{{mcp_url\}}, "):
        ProgramAgent(f"true {written}")


def test_braces_of_a_program_s_own_are_not_spoken_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProgramAgent("true ${URL} '{print}' {mcp_url} {prompt} ${task}")


def test_what_is_filled_in_stays_within_one_argument_whatever_it_holds(tmp_path: Path) -> None:
    command = (
        f"""{sys.executable} -c 'import sys; print(sys.argv[1:])' '{{"url": "{{mcp_url}}"}}' -p={{prompt}} {{no}}"""
    )
    done = evaluate(Counting, ProgramAgent(command), out=tmp_path, split="odd")
    (log,) = (tmp_path / "agents").iterdir()
    config, prompt, rest = ast.literal_eval(log.read_text())
    assert json.loads(config)["url"].endswith("/mcp") and rest == "{no}"
    assert done.results[0].task == "odd/id <script>alert(1)</script>"
    assert prompt == f"-p=solve: count to 2 ({done.results[0].task})."


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/true exec {prompt}", "true"),
        ("npx -y @openai/codex@latest exec", "codex"),
        ("uvx mini-agent==1.0 run", "mini-agent"),
        ("uv run --quiet python agent.py", "agent"),
        ("python3.11 -m some.agent", "some.agent"),
        ("python -c 'import this'", "python"),
        ("node out/agent.mjs {mcp_url}", "agent"),
        ("env A=b gemini -p {prompt}", "gemini"),
        ("sh {prompt}", "sh"),
        ("bash", "bash"),
    ],
)
def test_a_program_is_named_after_what_it_runs(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("npx", "uvx", "uv", "node", "python", "python3.11"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "agent.mjs").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    described = ProgramAgent(command).described()
    assert (described["name"], described["command"]) == (name, command)


@pytest.mark.parametrize("command", ["", "no-such-program {mcp_url}", "'unbalanced"])
def test_a_command_that_cannot_be_run_is_refused_at_once(command: str) -> None:
    with pytest.raises(ConfigurationError, match="agent"):
        ProgramAgent(command)


# -- figures


def test_the_figures_are_those_of_the_recorded_episodes(endpoint: Endpoint, tmp_path: Path) -> None:
    done = evaluate(Counting, model(endpoint), out=tmp_path, split="many", k=3, concurrency=3)

    # From the record alone, by other means than the product's.
    returns: dict[str, list[float]] = defaultdict(list)
    steps: list[int] = []
    for episode in read_episodes(tmp_path / "record"):
        trajectory = episode.trajectory
        assert trajectory.task is not None
        rewards = [step.reward for step in trajectory.steps] + [trajectory.end_reward]
        returns[trajectory.task.id].append(sum(reward.value for reward in rewards if reward is not None))
        steps.append(len(trajectory.steps))
    assert len(returns) == 12 and {len(samples) for samples in returns.values()} == {3}

    def pass_rate(k: int, passed: Callable[[Iterable[bool]], bool]) -> float:
        """The share of all choices of k samples among which one passed, or all did, of each task; their mean."""
        shares = []
        for samples in returns.values():
            choices = list(itertools.combinations([value >= 1.0 for value in samples], k))
            shares.append(sum(map(passed, choices)) / len(choices))
        return fmean(shares)

    def pass_at(k: int) -> float:
        return pass_rate(k, any)

    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == json.loads(json.dumps(done.to_plain()))
    assert (written["planned"], written["finished"], written["scored"]) == (36, 36, 36)
    assert {k: found["value"] for k, found in written["pass_at"].items()} == pytest.approx(
        {str(k): pass_at(k) for k in (1, 2, 3)}
    )
    assert {k: found["value"] for k, found in written["pass_hat"].items()} == pytest.approx(
        {str(k): pass_rate(k, all) for k in (2, 3)}
    )
    # solve always, miss never, sometimes every second conversation of a task.
    assert pass_at(1) == pytest.approx((1 + 0 + 1 / 3) / 3) and pass_at(3) == pytest.approx(2 / 3)
    assert written["mean_return"]["value"] == pytest.approx(fmean(map(fmean, returns.values())))
    assert written["mean_steps"] == pytest.approx(fmean(steps))
    assert written["passed"] == sum(value >= 1.0 for samples in returns.values() for value in samples)
    assert written["components"] == {
        "verified/there": pytest.approx(written["passed"] / 36),
        "verified": pytest.approx(written["passed"] / 36),
    }
    for found in [*written["pass_at"].values(), *written["pass_hat"].values(), written["mean_return"]]:
        assert found["tasks"] == 12 and 0 <= found["interval"][0] < found["value"] < found["interval"][1] <= 1
    assert {task["name"]: (task["passed"], task["mean_return"]) for task in written["tasks"]} == {
        name: (sum(value >= 1.0 for value in samples), pytest.approx(fmean(samples)))
        for name, samples in returns.items()
    }


def test_the_threshold_of_passing_is_the_tasks_full_reward_or_what_is_asked_for(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    agent = model(endpoint)
    done = evaluate(Counting, agent, out=tmp_path, n=2)
    assert (done.summary.passed, done.summary.pass_threshold) == (1, None)
    # Nothing is played again for it.
    lenient = evaluate(Counting, agent, out=tmp_path, n=2, pass_threshold=0.0)
    assert (lenient.summary.passed, lenient.summary.pass_at[1].value) == (2, 1.0)
    assert endpoint.conversations.total() == 2
