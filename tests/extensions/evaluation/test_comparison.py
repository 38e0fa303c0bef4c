"""Two evaluations compared: which tasks count, what differs, and what ``mcpenv eval compare`` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines
from evaluate_endpoint import scripted_endpoint
from evaluate_world import Counting

from mcpenv import ConfigurationError
from mcpenv.extensions.evaluation import EpisodeResult, Failure, ModelAgent, evaluate
from mcpenv.extensions.evaluation.comparison import Comparison, compare
from mcpenv.extensions.evaluation.comparison_tables import tables_of
from mcpenv.extensions.evaluation.results import RESULTS, ResultsFile
from mcpenv.extensions.evaluation.run_directory import SUMMARY
from mcpenv.extensions.evaluation.settings import SETTINGS

Returns = Mapping[str, Sequence[float | None]]
Stored = Callable[..., Path]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Write an evaluation's folder: returns by task, a sample each; None for an episode without a score."""

    def write(
        name: str, returns: Returns, *, threshold: float | None = None, planned: int | None = None, **more: Any
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        environment = {"name": more.pop("environment", "World"), "version": more.pop("version", "1")}
        digests, model, labels = more.pop("digests", {}), more.pop("model", name), more.pop("labels", {})
        settings = {"format": 1, "environment": environment, "agent": {"model": model}, "set": [], **more}
        (folder / SETTINGS).write_text(json.dumps(settings))
        file = ResultsFile(folder)
        for task, scores in returns.items():
            for sample, score in enumerate(scores):
                failure = Failure.ENVIRONMENT_ERROR if score is None else None
                digest = digests.get(task, "same")
                result = EpisodeResult(
                    "test", task, 1, sample, score=score, full_reward=1.0, digest=digest, failure=failure, steps=3
                )
                result = replace(result, **labels.get(task, {}))
                file.append(result)
        file.close()
        count = sum(map(len, returns.values())) if planned is None else planned
        (folder / SUMMARY).write_text(json.dumps({"planned": count, "pass_threshold": threshold}))
        return folder

    return write


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield lambda *arguments: run("eval", "compare", *arguments)


def many(score: float, tasks: int = 8, samples: int = 1) -> dict[str, list[float | None]]:
    return {f"task-{number}": [score] * samples for number in range(tasks)}


# -- the figures


def test_figures_are_means_over_tasks_of_estimates_of_each_task(stored: Stored) -> None:
    one = stored("one", {"a": [1, 0, 0, 0], "b": [1, 1, 1, 1]})
    other = stored("other", {"a": [1, 1, 0, 0], "b": [1, 1, 1, 0]})
    figures = compare(one, other).figures
    wanted = {
        "pass@1": (5 / 8, 5 / 8),
        "pass@2": ((1 - 3 / 6 + 1) / 2, (1 - 1 / 6 + 1) / 2),
        "pass@4": (1.0, 1.0),
        "pass^2": ((0 + 1) / 2, (1 / 6 + 3 / 6) / 2),
        "pass^4": (1 / 2, 0.0),
        "mean return": (5 / 8, 5 / 8),
        "steps": (3, 3),
        "seconds": (0, 0),
    }
    assert list(figures) == list(wanted)
    for name, figure in figures.items():
        assert (figure.baseline, figure.candidate) == pytest.approx(wanted[name]), name
    assert figures["pass@1"].difference.value == 0.0 and figures["pass^4"].difference.value == -0.5


def test_a_task_with_more_samples_counts_as_much_as_one_with_fewer(stored: Stored) -> None:
    one = stored("one", {"a": [0] * 9, "b": [0]})
    other = stored("other", {"a": [1] * 9, "b": [0]})
    found = compare(one, other)
    assert found.figures["pass@1"].candidate == 0.5
    # Only one task has samples enough, in both evaluations.
    assert (found.figures["pass@8"].candidate, found.figures["pass@8"].difference.tasks) == (1.0, 1)


def test_a_whole_change_is_significant_and_pass_at_1_decides(stored: Stored) -> None:
    found = compare(stored("one", many(0.0)), stored("other", many(1.0)))
    assert found.primary.name == "pass@1" and found.primary.difference.significant
    assert found.primary.difference.p == pytest.approx(2 / 2**8)


def test_the_figure_that_decides_is_given_for_each_label(cli: Cli, stored: Stored) -> None:
    labels = {f"task-{number}": {"level": 1 + number % 2, "tags": ["trap"] if number else []} for number in range(8)}
    one = stored("one", many(0), labels=labels)
    other = stored("other", {**many(0), "task-0": [1], "task-2": [1]}, labels=labels)
    found = compare(one, other)
    rows = [(each.kind, each.label, each.figure.name, each.figure.candidate) for each in found.labels]
    assert rows == [
        ("level", "1", "pass@1", 0.5),
        ("level", "2", "pass@1", 0.0),
        ("tag", "trap", "pass@1", pytest.approx(1 / 7)),
    ]
    assert [each.figure.difference.tasks for each in found.labels] == [4, 4, 7]
    plain = found.to_plain()["labels"]
    assert (plain[0]["kind"], plain[0]["label"], plain[0]["difference"]) == ("level", "1", 0.5)
    assert [each.figure.name for each in compare(one, other, metric="steps").labels] == ["steps"] * 3
    assert tables_of(found)[0]["title"] == "Figures" and tables_of(found)[1]["title"] == "pass@1 by label"
    lines = [line.split()[:5] for line in cli(str(one), str(other)).out.splitlines()]
    assert ["level", "1", "0.000", "0.500", "+0.500"] in lines
    bare = compare(stored("bare", many(0)), stored("bare too", many(1), model="bare"))
    assert bare.labels == [] and [each["title"][:7] for each in tables_of(bare)] == ["Figures", "8 tasks"]


def test_flips_name_tasks_whose_pass_rate_differs_first_those_that_lost_most(stored: Stored) -> None:
    one = stored("one", {"gained": [0, 1], "lost": [1, 1], "same": [1, 0], "half": [1, 1], "more": [1]})
    other = stored("other", {"gained": [1, 1], "lost": [0, 0], "same": [0, 1], "half": [1, 0], "more": [1, 1, 1]})
    flips = compare(one, other).flips
    assert [(flip.task, flip.change) for flip in flips] == [
        ("test/lost", -1.0),
        ("test/half", -0.5),
        ("test/gained", 0.5),
    ]
    assert flips[0].p == pytest.approx(1 / 3)


def test_episodes_without_a_score_count_in_no_figure_and_are_counted(stored: Stored) -> None:
    one = stored("one", {"a": [1, None, None], "b": [None]})
    other = stored("other", {"a": [1, 1, 0], "b": [1]})
    found = compare(one, other)
    assert (found.tasks, found.left_out.unscored, found.unscored) == (["test/a"], ["test/b"], (2, 0))
    assert found.figures["pass@1"].baseline == 1.0 and "pass@2" not in found.figures


def test_a_threshold_is_that_of_both_summaries_or_the_given_one(stored: Stored) -> None:
    one, other = stored("one", many(0.6), threshold=0.5), stored("other", many(0.4), threshold=0.5)
    assert compare(one, other).figures["pass@1"].difference.value == -1.0
    assert compare(one, other, pass_threshold=0.7).figures["pass@1"].difference.value == 0.0
    stricter = stored("stricter", many(0.6), threshold=0.9)
    with pytest.raises(ConfigurationError, match=r"thresholds: .*one 0.5, .*stricter 0.9; choose --pass-threshold"):
        compare(one, stricter)
    (stricter / SUMMARY).unlink()  # as of an evaluation that was interrupted
    assert compare(one, stricter).pass_threshold == 0.5


# -- which tasks count


def test_tasks_that_changed_or_that_one_evaluation_lacks_are_left_out_and_named(stored: Stored) -> None:
    one = stored("one", {"a": [1], "b": [1], "c": [1]}, digests={"b": "old"})
    other = stored("other", {"a": [0], "b": [0], "d": [1]}, digests={"b": "new"})
    found = compare(one, other)
    assert (found.tasks, found.left_out.changed) == (["test/a"], ["test/b"])
    assert (found.left_out.baseline_only, found.left_out.candidate_only) == (["test/c"], ["test/d"])
    assert found.left_out.count == 3 and found.figures["pass@1"].difference.value == -1.0


def test_evaluations_without_a_common_task_are_refused_with_the_reasons(stored: Stored) -> None:
    one, other = stored("one", many(1.0, 2), digests={"task-0": "old"}), stored("other", {"task-0": [1], "b": [1]})
    with pytest.raises(ConfigurationError) as refused:
        compare(one, other)
    assert str(refused.value).endswith(
        "have no task to compare: 1 only in the first (such as test/task-1); 1 only in the second (such as test/b); "
        "1 changed between them (such as test/task-0)"
    )


def test_evaluations_of_different_environments_are_refused(stored: Stored) -> None:
    with pytest.raises(ConfigurationError, match=r"one evaluated World, and .*other Moon; .* not comparable"):
        compare(stored("one", many(1.0)), stored("other", many(1.0), environment="Moon"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / SETTINGS).unlink(), "is no evaluation, it has no settings.json"),
        (lambda folder: (folder / SETTINGS).write_text("{"), "settings.json is not JSON"),
        (lambda folder: (folder / SETTINGS).write_text("[]"), "settings.json is not a JSON object"),
        (lambda folder: (folder / SETTINGS).write_text("{}"), "settings.json names no environment"),
        (lambda folder: (folder / RESULTS).unlink(), "has no finished episode: results.jsonl is missing or empty"),
        (lambda folder: (folder / RESULTS).write_text('{"task": 1}\n'), "results.jsonl:1: "),
        (lambda folder: (folder / SUMMARY).write_text("{}"), "summary.json is not a summary of mcpenv eval"),
    ],
)
def test_a_folder_that_is_no_evaluation_is_refused_with_the_file_that_is_wrong(
    stored: Stored, spoil: Callable[[Path], Any], said: str
) -> None:
    one, other = stored("one", many(1.0)), stored("other", many(1.0))
    spoil(other)
    with pytest.raises(ConfigurationError, match=said):
        compare(one, other)


def test_a_folder_of_evaluations_is_refused_with_those_in_it(stored: Stored, tmp_path: Path) -> None:
    one, other = stored("one", many(1.0)), stored("other", many(1.0))
    with pytest.raises(ConfigurationError, match=f"is it {one} or {other}[?]"):
        compare(tmp_path, one)
    with pytest.raises(ConfigurationError, match="does not exist"):
        compare(one, tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="is a file"):
        compare(one / RESULTS, one)
    with pytest.raises(ConfigurationError, match="are the same folder"):
        compare(one, tmp_path / "other" / ".." / "one")


# -- the command


def test_the_command_prints_figures_flips_and_the_verdict(cli: Cli, stored: Stored) -> None:
    stored("small", many(0.0) | {"own": [1]}, model="small")
    stored("large", many(1.0) | {"task-7": [0]}, model="large")
    done = cli("small", "large")
    assert (done.status, done.err) == (1, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["agent.model", '"small"', '"large"'] in lines
    assert "tasks: 8 compared, 1 left out\n  1 only in the baseline: test/own" in done.out
    assert ["pass@1", "0.000", "0.875", "+0.875", "[+0.500,", "+1.000]", "0.016", "8"] in lines
    assert "flips: 0 lost, 7 gained, 1 with the same pass rate" in done.out
    assert ["test/task-0", "0/1", "1/1", "+1.000", "1.000"] in lines
    assert done.out.endswith("the candidate is better: pass@1 +0.875\n")


def test_the_exit_status_is_1_for_a_change_and_with_fail_on_worse_only_for_a_loss(cli: Cli, stored: Stored) -> None:
    stored("low", many(0.0))
    stored("high", many(1.0))
    stored("high-again", many(1.0))
    assert cli("high", "high-again").status == 0
    assert (cli("low", "high").status, cli("low", "high", "--fail-on", "worse").status) == (1, 0)
    assert (cli("high", "low").status, cli("high", "low", "--fail-on", "worse").status) == (1, 1)
    assert "the candidate is worse: pass@1 -1.000" in cli("high", "low").out


def test_a_chosen_metric_decides_and_a_change_of_the_return_is_noted(cli: Cli, stored: Stored) -> None:
    stored("one", many(0.6))
    stored("other", many(0.5))
    done = cli("one", "other", "--fail-on", "worse")
    assert done.status == 0 and "no significant change of pass@1" in done.out
    assert done.err == "The mean return is significantly worse (p 0.008). With --metric return it decides.\n"
    done = cli("one", "other", "--fail-on", "worse", "--metric", "return")
    assert (done.status, done.err) == (1, "") and "the candidate is worse: mean return -0.100" in done.out
    assert cli("other", "one", "--fail-on", "worse", "--metric", "return").status == 0
    assert json.loads(cli("one", "other", "--metric", "return", "--json").out)["primary"] == "mean return"


def test_more_steps_are_worse(stored: Stored) -> None:
    one, other = compare(stored("one", many(1.0)), stored("other", many(1.0))), "steps"
    assert not one.figures[other].better
    more = replace(one.figures[other], difference=replace(one.figures[other].difference, value=1.0))
    assert not more.better and replace(more, difference=replace(more.difference, value=-1.0)).better


def test_an_unknown_metric_is_refused_with_those_that_are_there(cli: Cli, stored: Stored) -> None:
    stored("one", many(1.0))
    stored("other", many(1.0))
    done = cli("one", "other", "--metric", "pass@7")
    assert done.status == 2
    assert done.err == "error: the evaluations have no metric 'pass@7'; they have pass@1, return, steps, seconds\n"


def test_returns_that_differ_by_rounding_are_equal(stored: Stored) -> None:
    found = compare(stored("one", many(0.3)), stored("other", many(0.1 + 0.2)))
    assert found.figures["mean return"].difference.changed == 0


def test_the_document_has_all_that_was_found(cli: Cli, stored: Stored) -> None:
    stored("one", many(1.0, samples=2))
    stored("other", many(0.0, samples=2) | {"own": [None]})
    done = cli("one", "other", "--json")
    document = json.loads(done.out)
    assert done.status == 1 and document["significant"] and document["primary"] == "pass@1"
    assert document["figures"]["pass^2"]["interval"] == [-1.0, -1.0]
    assert document["left_out"] == {"baseline_only": [], "candidate_only": ["test/own"], "changed": [], "unscored": []}
    assert len(document["flips"]) == len(document["tasks"]) == 8
    assert document["candidate"]["agent"] == {"model": "other"}


def test_what_weakens_a_comparison_is_noted(cli: Cli, stored: Stored) -> None:
    stored("one", many(1.0, 5), version="1")
    stored("other", many(0.0, 5), version="2", set=["hard=1"], planned=9)
    done = cli("one", "other")
    assert done.status == 0
    assert done.err.splitlines() == [
        "The evaluations differ in environment.version, set: the change may come from that, and not from the agent.",
        "other has not come to its end: its finished episodes are compared.",
        "5 tasks: too few for an interval and for a significant change, which need at least 6.",
    ]


def test_too_few_tasks_that_differ_are_noted(cli: Cli, stored: Stored) -> None:
    stored("one", many(1.0, 6))
    stored("other", many(0.0, 5) | dict(list(many(1.0, 6).items())[5:]))
    done = cli("one", "other")
    assert done.status == 0 and "no significant change" in done.out
    assert "5 of 6 tasks differ: too few for a significant change, which needs at least 6 that differ." in done.err


def test_what_cannot_be_compared_exits_with_2_and_one_line(cli: Cli, stored: Stored, tmp_path: Path) -> None:
    stored("one", many(1.0))
    for arguments in (("one", "nowhere"), ("one",), ("one", "one"), ("one", "one", "--pass-threshold", "nan")):
        done = cli(*arguments)
        assert done.status == 2 and done.out == "" and done.err.startswith("error: ") and done.err.count("\n") == 1


def test_long_lists_of_flips_are_cut_and_said(cli: Cli, stored: Stored) -> None:
    stored("one", many(0.0, 30))
    stored("other", many(1.0, 30))
    done = cli("one", "other")
    assert done.out.count("0/1") == 20 and "and 10 more; --json has all of them" in done.out


# -- real evaluations


def evaluated(tmp_path: Path, name: str, **options: Any) -> Path:
    with scripted_endpoint() as endpoint:
        agent = ModelAgent("scripted", base_url=endpoint.url, backoff_s=0.001, max_turns=5)
        return evaluate(Counting, agent, out=tmp_path / name, split="many", **options).directory


@pytest.mark.slow
def test_the_same_agent_twice_is_no_change_and_another_sample_is_a_flip(tmp_path: Path) -> None:
    # The tasks "sometimes" pass in every second sample.
    one, other, more = (evaluated(tmp_path, name, k=k) for name, k in (("one", 1), ("other", 1), ("more", 2)))
    same: Comparison = compare(one, other)
    assert len(same.tasks) == 12 and same.flips == [] and not same.primary.difference.significant
    assert [difference.name for difference in same.settings] == ["agent.base_url"]
    flips = compare(one, more).flips
    assert [(flip.task, flip.baseline_passed, flip.candidate_passed) for flip in flips] == [
        (f"many/sometimes-{number}", 0, 1) for number in range(4)
    ]
    assert compare(one, more).figures["tokens"].baseline > 0
