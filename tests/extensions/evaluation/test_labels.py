"""The figures of an evaluation by level, family and tag."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from mcpenv.extensions.evaluation.plan import samples_of
from mcpenv.extensions.evaluation.results import EpisodeResult
from mcpenv.extensions.evaluation.summary import MAX_LABELS, summarize
from mcpenv_client.pool import TaskSampler
from mcpenv_client.types.tasks import Task


def _result(task: str, score: float, sample: int = 0, **labels: object) -> EpisodeResult:
    plain = {"split": "test", "task": task, "seed": 1, "sample": sample, "return": score, "full_reward": 1.0, **labels}
    return EpisodeResult.from_plain(plain)


def test_each_label_has_the_pass_rate_of_its_tasks() -> None:
    summary = summarize(
        [
            _result("a", 1.0, level=10, family="sums", tags=["carry", "carry"]),
            _result("a", 0.0, 1, level=10, family="sums", tags=["carry", "carry"]),
            _result("b", 0.0, level=2, family="sums"),
            _result("c", 1.0, tags=["carry"]),
        ],
        planned=4,
    )
    rows = [
        (each.kind, each.label, each.tasks, each.scored, each.passed, each.pass_rate and each.pass_rate.value)
        for each in summary.labels
    ]
    assert rows == [
        ("level", "2", 1, 1, 0, 0.0),
        ("level", "10", 1, 2, 1, 0.5),
        ("family", "sums", 2, 3, 1, 0.25),
        ("tag", "carry", 2, 3, 2, 0.75),
    ]
    assert summary.pass_at[1].value == 0.5
    assert summary.to_plain()["labels"][1]["pass_rate"]["value"] == 0.5


def test_a_summary_has_a_bounded_number_of_labels_and_keeps_those_of_most_tasks() -> None:
    results = [_result(f"t{number}", 1.0, tags=[f"own {number}", "all"]) for number in range(MAX_LABELS + 50)]
    labels = summarize(results, planned=len(results)).labels
    assert len(labels) == MAX_LABELS and labels[0].label == "all"


def test_results_without_labels_have_no_figures_of_labels() -> None:
    assert summarize([_result("a", 1.0)], planned=1).labels == []


def test_labels_are_planned_and_do_not_change_what_a_task_is() -> None:
    bare, labelled = Task(id="a"), Task(id="a", level=3, family="sums", tags=["carry"])
    (of_bare,), (planned,) = samples_of([bare], 1), samples_of([labelled], 1)
    assert (planned.level, planned.family, planned.tags) == (3, "sums", ("carry",))
    assert of_bare.digest == planned.digest


def test_a_sampler_begins_with_the_pass_rates_of_an_evaluation() -> None:
    results = [_result("a", float(sample < 6), sample, level=1) for sample in range(8)] + [_result("b", 0.0, level=2)]
    summary = json.loads(json.dumps(summarize(results, planned=9).to_plain()))
    rows = [
        {"split": "train", "index": index, "task_id": name, "level": level}
        for index, (name, level) in enumerate([("a", 1), ("b", 2), ("new", 1), ("other", 3)])
    ]
    sampler = TaskSampler(rows, seed=1)
    assert sampler.begin_from(summary) == 2
    assert [sampler.rate(row) for row in rows] == [0.75, 0.0, 0.75, 0.5]
    drawn = Counter(row["task_id"] for row in itertools.islice(sampler, 1000))  # type: ignore[index]
    assert drawn["other"] > drawn["a"] > 100 > drawn["b"]
    ids = TaskSampler(["a", Task(id="b"), {"world": "shop", "task": "a"}])
    assert ids.begin_from(summary) == 2 and ids.rate("a") == 0.75 and ids.rate({"world": "shop", "task": "a"}) == 0.5
    assert ids.begin_from(summary, world="shop") == 1 and ids.rate({"world": "shop", "task": "a"}) == 0.75
    with pytest.raises(ValueError, match="an evaluation"):
        sampler.begin_from({})
