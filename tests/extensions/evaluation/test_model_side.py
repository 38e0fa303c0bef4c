"""Programs whose model is recorded: their turns, tokens and cost, and failures of the endpoint."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluate_world import Counting
from scripted_model import scripted_model

from mcpenv.cli import execute
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.evaluation import ProgramAgent, evaluate
from mcpenv.extensions.evaluation.results import Failure
from mcpenv.extensions.model_proxy.upstream import PLACEHOLDER, Upstream
from mcpenv.trajectories import read_episodes
from mcpenv_client.types.model_turns import request_of

TESTS = Path(__file__).parents[2]
COMMAND = f"{sys.executable} {TESTS / 'recorded_program.py'} {{mcp_url}} {{model_url}}"
KEY = "sk-of-the-endpoint-0123456789"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-agent")
    yield


def agent(url: str, key: str | None = "THE_KEY") -> ProgramAgent:
    return ProgramAgent(COMMAND, isolation="none", endpoint=Upstream(url, key))


@pytest.mark.slow
def test_turns_of_each_episode_are_recorded_beside_its_steps(tmp_path: Path) -> None:
    with scripted_model() as model:
        done = evaluate(Counting, agent(f"{model.url}/v1"), out=tmp_path, split="odd", k=2)
        asked = [body for _, body in model.asked]
    assert [(result.score, result.turns) for result in done.results] == [(1.0, 3), (1.0, 3)]
    assert (done.summary.prompt_tokens, done.summary.completion_tokens, done.summary.cost) == (60, 30, None)
    for episode in read_episodes(tmp_path / "record"):
        assert episode.model_turns is not None
        assert [call.step for turn in episode.model_turns for call in turn.calls] == [1, 2]
        assert all(request_of(episode.model_turns, index) in asked for index in range(3))
        first, *_ = episode.trajectory.steps
        assert episode.model_turns[0].started_at <= first.started_at <= episode.model_turns[1].started_at
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    said = {log.read_text() for log in (tmp_path / "agents").iterdir()}
    assert said == {f"key: {PLACEHOLDER} upstream: None\n"}


@pytest.mark.slow
def test_a_program_that_crashed_after_its_endpoint_failed_has_no_score(tmp_path: Path) -> None:
    done = evaluate(Counting, agent("http://127.0.0.1:9/v1", None), out=tmp_path, split="odd")
    (result,) = done.results
    assert (result.failure, result.score, result.turns) == (Failure.MODEL_ERROR, None, 0)
    assert str(result.detail).startswith("http://127.0.0.1:9/v1 gave no answer: ConnectError")
    (log,) = (tmp_path / "agents").iterdir()
    assert log.read_text().startswith(f"key: of-the-agent upstream: {KEY}\n")


def test_a_command_that_names_the_model_needs_its_endpoint() -> None:
    with pytest.raises(ConfigurationError, match=r"\{model_url\} needs the endpoint of its model \(--base-url\)"):
        ProgramAgent("true {model_url}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--api-key-env", "THE_KEY"], "--api-key-env: with --agent only beside --base-url"),
        (["--base-url", "api.openai.com"], "is not an http:// or https:// URL of a model endpoint"),
        (["--base-url", "http://127.0.0.1:9", "--api-key-env", "NO_KEY"], "NO_KEY has no key"),
        (["--base-url", "http://127.0.0.1:9", "--temperature", "1"], "--temperature: only for --model"),
    ],
)
def test_wrong_options_of_the_endpoint_are_refused(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["eval", "echo_mcp", "--agent", "true", *options]) == 2
    assert says in capsys.readouterr().err
