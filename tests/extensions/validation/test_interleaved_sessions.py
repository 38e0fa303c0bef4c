"""The isolation check plays different calls in two sessions, and compares each with the same calls alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mcpenv import Evidence, MCPEnvironment, ObjectWorld
from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.validation.parts import interleaved
from mcpenv.extensions.validation.parts.candidate import Candidate
from mcpenv.extensions.validation.parts.interleaved import judge_interleaved
from mcpenv.extensions.validation.parts.judged import Judged
from mcpenv.extensions.validation.parts.load import judge_load
from mcpenv_client.types.tasks import Task


def task_of(name: str, *calls: tuple[str, dict[str, Any]]) -> Task:
    oracle = [{"tool_name": tool, "arguments": arguments} for tool, arguments in calls]
    return Task.model_validate({"id": name, "split": "train", "prompt": "Do it.", "oracle": oracle})


def judged(make: Callable[[], MCPEnvironment], *tasks: Task) -> Judged:
    into = Judged("load")
    into.summary = judge_interleaved(Candidate(make, tasks), into)
    return into


class Board(MCPEnvironment):
    """A board with one text. Where it is kept is the matter of subclasses."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.board = self.kept()

        @self.tool
        def write(text: str) -> str:
            """Write a text on the board."""
            self.board["text"] = text
            return "written"

    def kept(self) -> dict[str, str]:
        return {}

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.board.clear()

    def verify(self, evidence: Evidence) -> bool | None:
        return self.board.get("text") == "kingfisher"


class SharedBoard(Board):
    SHARED: dict[str, str] = {}

    def kept(self) -> dict[str, str]:
        return self.SHARED


class BoardInSight(Board):
    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def read() -> str:
            """Return the text on the board."""
            return self.board.get("text", "")


class SharedBoardInSight(BoardInSight):
    SHARED: dict[str, str] = {}

    def kept(self) -> dict[str, str]:
        return self.SHARED


class SharedWorld(SharedBoard):
    def __init__(self) -> None:
        super().__init__()
        self.world = ObjectWorld(lambda: dict(self.board))

    def verify(self, evidence: Evidence) -> None:
        return None


class Unrepeatable(Board):
    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def roll(for_real: bool = False) -> int:
            """Roll a die of many sides."""
            return random.SystemRandom().randrange(10**9) if for_real else 0


BIRD = task_of("bird", ("write", {"text": "kingfisher"}))
FISH = task_of("fish", ("write", {"text": "trout"}))


def test_a_sound_environment_is_compared_in_every_pair_and_order() -> None:
    into = judged(BoardInSight, BIRD, FISH)
    assert into.findings == [] and into.summary == ""
    assert into.facts["interleaved"] == 2 * 2 * 4


class Crashing(MCPEnvironment):
    """A tool that always fails by mistake, which gives each failure an incident id of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def crash() -> str:
            """Fail."""
            raise ZeroDivisionError("a mistake")


@pytest.mark.parametrize("judge", [judge_interleaved, judge_load])
def test_the_ids_of_incidents_are_no_leak(judge: Callable[[Candidate, Judged], Any]) -> None:
    into = Judged("load")
    judge(Candidate(Crashing, ()), into)
    assert [finding for finding in into.findings if finding.verdict is Verdict.FAILED] == []


@pytest.mark.parametrize("tasks", [(), (BIRD,)])
def test_a_session_that_reads_what_another_has_written_is_found(tasks: tuple[Task, ...]) -> None:
    (found,) = judged(SharedBoardInSight, *tasks).findings
    assert found.verdict is Verdict.FAILED and found.check == "isolation"
    assert found.where == ("bird" if tasks else "")
    assert "at call 1 (read) than alone" in found.reason and found.remedy.startswith("Keep state in the instance")


def test_a_reward_that_another_session_spoils_is_found_where_no_tool_reads() -> None:
    (found,) = judged(SharedBoard, BIRD, FISH).findings
    assert found.verdict is Verdict.FAILED and "at the end than alone" in found.reason
    assert "reward" in found.reason


def test_a_world_that_another_session_changes_is_found_where_nothing_is_scored() -> None:
    (found,) = judged(SharedWorld, BIRD).findings
    assert found.verdict is Verdict.FAILED and "at the world before the end than alone" in found.reason


def test_a_session_that_does_not_repeat_is_a_warning_and_no_leak() -> None:
    rolled = task_of("rolled", ("roll", {"for_real": True}))
    into = judged(Unrepeatable, rolled, BIRD)
    assert {finding.verdict for finding in into.findings} == {Verdict.WARNING}
    assert any(
        finding.reason.startswith("the oracle of rolled cannot be compared: played alone again, it differs at call 1")
        for finding in into.findings
    )


def test_what_the_time_did_not_allow_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "INTERLEAVING_S", 0.0)
    into = judged(Board, BIRD)
    assert into.findings == [] and into.summary == "1 of 8 pairs of sessions compared in 0 s"
    assert [found.check for found in judged(SharedBoardInSight, BIRD).of(Verdict.FAILED)] == ["isolation"]
    monkeypatch.setattr(interleaved, "FIRST_PAIR_S", 0.0)
    into = judged(SharedBoardInSight, BIRD)
    assert into.findings == [] and into.summary == "0 of 8 pairs of sessions compared in 0 s"
