"""Verifiers: what a task's spec says of an episode, and that nothing else becomes a score."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpenv import ANY, InvalidTasks, Misuse, Reward, TaskSet
from mcpenv.errors import InvalidVerifier, VerifierFailed
from mcpenv.rewards.verifiers import Evidence, check, missing_here, run, specs
from mcpenv_client.types.checked import MAX_CHECKED, MAX_EXPECTED, MAX_VALUE, CheckedChange
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.tasks import OracleCall, Task
from mcpenv_client.types.values import decode, encode

TASK = Task(id="pay", metadata={"amount": 10}, oracle=[OracleCall(tool_name="pay")], reward_range=(-1.0, 2.0))
BEFORE = {"accounts": {"1": {"balance": 100}}}
AFTER = {"accounts": {"1": {"balance": 90}}}


def verified(spec: dict[str, Any], after: Any = AFTER, before: Any = BEFORE, task: Task | None = TASK) -> Reward | None:
    check(spec)
    return asyncio.run(run(spec, Evidence(task, before, after)))


def failure(spec: dict[str, Any], after: Any = AFTER, before: Any = BEFORE) -> str:
    with pytest.raises(VerifierFailed) as failed:
        verified(spec, after, before)
    return str(failed.value)


# -- states


def test_a_state_that_is_as_expected_is_worth_the_top_of_the_range_and_any_other_the_bottom() -> None:
    exactly = {"kind": "expect_exactly", "changes": {"accounts/1/balance": 90}}
    assert verified(exactly) == Reward(2.0) and verified(exactly, BEFORE) == Reward(-1.0)
    assert verified(exactly, task=None) == Reward(1.0) and verified(exactly, BEFORE, task=None) == Reward(0.0)


def test_a_spec_has_marks_for_any_value_and_for_what_is_gone() -> None:
    one = {"kind": "expect_exactly", "changes": {"accounts/1/balance": {"$any": True}}}
    gone = {"kind": "expect_exactly", "changes": [["accounts/*", {"$removed": True}]]}
    assert verified(one) == Reward(2.0) and verified(gone) == Reward(-1.0)
    assert verified(gone, {"accounts": {}}) == Reward(2.0) and verified(one, {"accounts": {}}) == Reward(-1.0)


def test_what_may_change_what_must_and_what_does_not_count() -> None:
    only = {"kind": "expect_only", "changes": {"accounts/1/balance": 90}, "ignore": ["*/*/seen"]}
    must = {**only, "changes": {}, "require": {"accounts/1/balance": 90}}
    seen = {"accounts": {"1": {"balance": 100, "seen": 1}}}
    assert verified(only, seen) == Reward(2.0) and verified(must, seen) == Reward(-1.0)
    assert verified(only) == Reward(2.0) and verified(must) == Reward(2.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a.txt": {"text": "2"}}, "but one inside of it; name the inner place, a.txt/text"),
        ({"*": "2"}, "but one inside of it; name the inner place, a.txt/text"),
        ({"new/b.txt/text": "3"}, 'because new/b.txt is new; name it as a whole: {"new/b.txt": {"text": "3"}}'),
        ({"a.txt/text": "2", "new/b.txt": "3"}, 'new/b.txt was added as {"text": "3"}: expected "3"'),
        ({"c.txt/text": "2"}, 'c.txt/text: expected "2", and there is no such change'),
        ({"a.txt": {"$removed": True}}, "a.txt: expected REMOVED, and there is no such change"),
    ],
)
def test_a_change_that_is_named_at_another_level_is_told_its_name(changes: dict[str, Any], said: str) -> None:
    evidence = Evidence(TASK, {"a.txt": {"text": "1"}}, {"a.txt": {"text": "2"}, "new/b.txt": {"text": "3"}})
    assert asyncio.run(run({"kind": "expect_exactly", "changes": changes}, evidence)) == Reward(-1.0)
    assert any(problem.endswith(said) for problem in evidence.said), evidence.said


def test_a_verdict_has_its_evidence_beside_what_was_expected() -> None:
    before = {"a": 1, "b": {"x": 1}, "c": {"x": 1}, "text": "same " * 1000 + "old"}
    after = {"a": 2, "b": {"x": 1}, "new": {"x": 5, "y": [1]}, "text": "same " * 1000 + "new", "odd": "\ud800"}
    evidence = Evidence(TASK, before, after)
    changes = {"a": 2, "b/x": 3, "new": {"x": 6, "y": {"$any": True}}, "c": {"$removed": True}}
    assert asyncio.run(run({"kind": "expect_exactly", "changes": changes}, evidence)) == Reward(-1.0)
    found = {each.where: each for each in evidence.checked}
    any_value, removed = {"$any": True}, {"$removed": True}
    assert list(found) == ["text", "new", "odd", "b/x", "a", "c"]  # what is wrong stands first
    assert found["new"] == CheckedChange("new", "added", None, after["new"], [{"x": 6, "y": any_value}], False)
    assert found["odd"] == CheckedChange("odd", "added", None, "\ufffd", [], False)
    assert found["b/x"] == CheckedChange("b/x", "missing", None, None, [3], False)
    assert found["a"] == CheckedChange("a", "changed", 1, 2, [2], True)
    assert found["c"] == CheckedChange("c", "removed", {"x": 1}, None, [removed], True)
    text = found["text"]
    assert text.cut and text.before.endswith("old") and text.after.endswith("new") and text.before.startswith("…same")
    assert len(text.before) <= MAX_VALUE + 2


def test_evidence_is_bounded_and_has_a_json_form() -> None:
    world = {str(number): "x" * 5000 for number in range(200)}
    verdict = Evidence(TASK, {}, world | {"1": {"deep": ["y" * 5000]}}).changes.expect_exactly(
        {"0": {"when": datetime.date(2026, 1, 1)}, "gone": float("nan"), "2": ANY}
    )
    assert len(verdict.evidence) == MAX_CHECKED and all(each.cut for each in verdict.evidence)
    data = Trajectory("e", evidence=verdict.evidence).to_plain()
    assert Trajectory.from_plain(data).evidence == verdict.evidence
    assert len(json.dumps(data["evidence"])) < MAX_CHECKED * 3 * MAX_VALUE
    assert verdict.evidence[0].expected == [{"when": "datetime.date(2026, 1, 1)"}]


def test_evidence_of_a_deep_world_and_of_many_expected_values_can_be_sent() -> None:
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    pairs = [("rows/*", {"id": number, "text": "x" * 500}) for number in range(300)]
    rows = {str(number): {"id": -number} for number in range(1, 61)}
    changes = Evidence(TASK, {"rows": {}}, {"rows": rows, "deep": deep}).changes
    verdict = changes.expect_exactly(pairs)
    data = encode({"data": {"trajectory": Trajectory("e", evidence=verdict.evidence).to_plain()}})
    assert len(data) < 400_000 and decode(data)
    assert all(len(each.expected) <= MAX_EXPECTED for each in verdict.evidence)
    (odd,) = Evidence(TASK, {}, {"deep": deep}).changes.expect_exactly({}).evidence
    assert odd.cut and odd.after == "[" * 190 + "1" + "]" * 190


def test_the_first_difference_of_long_texts_is_found_in_linear_time() -> None:
    same = "x" * 12_000_000
    changes = Evidence(TASK, {"a": same + "old"}, {"a": same + "new"}).changes
    (found,) = changes.expect_exactly({"a": same + "other"}).evidence
    assert found.before.endswith("xold") and found.after.endswith("xnew") and found.expected[0].endswith("xother")


def test_a_state_needs_a_world() -> None:
    with pytest.raises(Misuse, match=r"env\.world"):
        Evidence(TASK, None, None).changes
    spec = {"kind": "expect_only", "changes": {}}
    assert "env.world" in failure(spec, None, None)
    with pytest.raises(InvalidVerifier, match=r"verifier: reads the world.*env\.world"):
        check(spec, has_world=False)


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], r"^verifier: is a list"),
    "no kind": ({}, r"^verifier\.kind: is None; it must be one of expect_exactly, expect_only(, \w+)*$"),
    "unknown kind": ({"kind": "exact"}, r"^verifier\.kind: is 'exact'"),
    "unhashable kind": ({"kind": []}, r"^verifier\.kind"),
    "bad pattern": ({"kind": "expect_only", "changes": {"/a": 1}}, r"^verifier\.changes.*'/a' is not a path"),
    "bad ignore": ({"kind": "expect_only", "changes": {}, "ignore": ["a*"]}, r"^verifier\.ignore\.0: .*star"),
    "no changes": ({"kind": "expect_exactly"}, r"^verifier\.changes: field required"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_spec_that_is_wrong_is_refused_before_any_episode(what: str) -> None:
    spec, said = WRONG[what]
    with pytest.raises(InvalidVerifier, match=said):
        check(spec)


def test_a_task_set_refuses_a_wrong_spec_when_it_is_read(tmp_path: Path) -> None:
    rows = [{"id": "a"}, {"id": "b", "verifier": {"kind": "expect_only", "changes": {"a": 1}, "ignore": ["*x"]}}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InvalidTasks, match=r"tasks\.jsonl, line 2: verifier\.ignore\.0: '\*x'"):
        TaskSet.from_path(tmp_path / "tasks.jsonl").splits()
    with pytest.raises(InvalidTasks, match=r"task 0: verifier\.kind: is 'exact'"):
        TaskSet([Task(id="a", verifier={"kind": "exact"})]).splits()


def test_a_world_that_was_made_huge_is_no_score() -> None:
    state = {"kind": "expect_only", "changes": {"**": {"$any": True}}}
    assert "too large" in failure(state, {"files": ["x" * 1000] * 70_000})


# -- kinds of other distributions

KIND = """
from typing import Literal

from mcpenv import Reward
from mcpenv.rewards.verifiers import VerifierSpec


class AtLeast(VerifierSpec):
    kind: Literal["at_least"]
    number: int

    def missing(self):
        return "needs luck: pip install luck" if self.number == 13 else None

    async def reward(self, evidence, in_thread):
        return Reward(float(len(self.changes(evidence)) >= self.number))
"""


@pytest.fixture
def _a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with a kind of verifiers."""
    (tmp_path / "some_verifiers.py").write_text(KIND)
    info = tmp_path / "some_verifiers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-verifiers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mcpenv.verifiers]\nat_least = some_verifiers:AtLeast\nexpect_only = some_verifiers:AtLeast\n"
        "gone = no_such_module:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    specs.installed.cache_clear()
    yield
    specs.installed.cache_clear()
    sys.modules.pop("some_verifiers", None)


@pytest.mark.usefixtures("_a_kind")
def test_a_kind_of_another_distribution_verifies() -> None:
    one, two = ({"kind": "at_least", "number": number} for number in (1, 2))
    assert verified(one) == Reward(1.0) and verified(two) == Reward(0.0)
    assert verified({**one, "ignore": ["**"]}) == Reward(0.0)
    assert missing_here(one) is None and missing_here({**one, "number": 13}) == "needs luck: pip install luck"
    with pytest.raises(InvalidVerifier, match=r"^verifier\.number: field required"):
        check({"kind": "at_least"})
    with pytest.raises(InvalidVerifier, match=r"gone of some-verifiers: no_such_module:Gone cannot be loaded"):
        check({"kind": "gone"})
    assert verified({"kind": "expect_only", "changes": {"**": {"$any": True}}}) == Reward(2.0)  # is the kernel's
