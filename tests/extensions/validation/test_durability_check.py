"""`mcpenv validate` stops episodes, continues them in another process, and names those that do not go on the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines

from mcpenv.extensions.validation.parts import durability
from mcpenv.extensions.validation.parts.durability import MAX_STOPS, spread

ROOT = Path(__file__).resolve().parents[3]
WORLDS = Path(__file__).with_name("lying_worlds.py")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    with command_lines(ROOT, monkeypatch, capfd) as run:
        yield run


def judged(cli: Cli, target: str, status: int = 0) -> dict[str, Any]:
    done = cli("validate", target, "--only", "durability", "--json")
    assert done.status == status, done.out + done.err
    parts: list[dict[str, Any]] = json.loads(done.out)["parts"]
    return next(part for part in parts if part["part"] == "durability")


@pytest.mark.process
def test_the_other_process_has_as_much_time_as_the_episodes_take(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "CONTINUING_S", 0.01)
    assert judged(cli, f"{WORLDS}:Slow")["verdict"] == "ok"
    monkeypatch.setattr(durability, "LONGER", 0)
    assert "did not continue its episodes within 0 s" in json.dumps(judged(cli, f"{WORLDS}:Slow", 1))


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("Clock", 'played again, undisturbed: step 1 differs in result.content[0].text: recorded "', "random.Random"),
        (
            "Unseeded",
            'played again, undisturbed: step 3 differs in result.content[0].text: recorded "',
            "random.Random",
        ),
        ("Outside", 'played again, undisturbed: step 1 differs in result.content[0].text: recorded "1", now ', "reset"),
        (
            "Process",
            "stopped after step 1 and played again by its journal in another process: the episode cannot be continued "
            'here: step 1 differs in result.content[0].text: recorded "',
            "let reset begin anew",
        ),
        (
            "Forgetful",
            "stopped after step 1 and loaded from its saved state in another process: step 2 differs in "
            'result.content[0].text: recorded "3", now "2"',
            "Save in save_state all",
        ),
        (
            "Drifting",
            "stopped after step 1 and loaded from its saved state in another process: step 2 differs in "
            "result.content[0].text: recorded ",
            "put it back in load_state",
        ),
        ("Unsaved", "the environment failed: NotSupported: Unsaved cannot be saved: self.lock cannot be pickled", ""),
    ],
)
def test_an_environment_that_lies_is_named_with_the_first_difference(
    name: str, problem: str, remedy: str, cli: Cli
) -> None:
    (finding,) = judged(cli, f"{WORLDS}:{name}", status=1)["findings"]
    assert (finding["check"], finding["verdict"]) == ("durability", "failed")
    assert finding["reason"].startswith(problem), finding["reason"]
    assert remedy in finding["remedy"]


@pytest.mark.process
@pytest.mark.parametrize(("name", "way"), [("Walk", "rerun"), ("Saved", "export"), ("Refusing", "rerun")])
def test_an_honest_environment_is_stopped_after_each_step(name: str, way: str, cli: Cli) -> None:
    part = judged(cli, f"{WORLDS}:{name}")
    assert part["verdict"] == "ok" and part["facts"] == {"class": way, "stops": {"the oracle of go": [1, 2, 3, 4]}}
    assert part["summary"] == f"{way}: stopped after 4 of 4 steps, and continued in another process"


def test_of_an_environment_that_restarts_nothing_is_judged(cli: Cli) -> None:
    part = judged(cli, f"{WORLDS}:Restarted", status=2)
    (finding,) = part["findings"]
    assert (finding["verdict"], part["facts"]) == ("not applicable", {"class": "restart"})
    assert "only a new episode is honest" in finding["reason"]


@pytest.mark.process
def test_saved_states_of_episodes_that_cannot_be_repeated_are_a_warning(cli: Cli) -> None:
    (finding,) = judged(cli, f"{WORLDS}:SavedClock")["findings"]
    assert finding["verdict"] == "warning" and finding["reason"].startswith("played again, undisturbed: step 1 differs")


@pytest.mark.process
@pytest.mark.parametrize("name", ["echo_mcp", "ledger_mcp"])
def test_a_shipped_environment_is_continued_after_each_step(name: str, cli: Cli) -> None:
    part = judged(cli, str(ROOT / "envs" / name))
    assert part["verdict"] == "ok" and part["facts"]["class"] == "rerun"
    assert all(stops == [*range(1, len(stops) + 1)] for stops in part["facts"]["stops"].values())


@pytest.mark.parametrize("steps", [1, 2, MAX_STOPS, MAX_STOPS + 1, 1000])
def test_stops_are_spread_and_the_last_is_after_the_last_step(steps: int) -> None:
    stops = spread(steps)
    assert stops[-1] == steps and len(stops) == min(steps, MAX_STOPS)
    assert stops == sorted(set(stops)) and stops[0] >= 1
