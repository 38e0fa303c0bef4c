"""The evaluations below a folder, as the console lists, shows and compares them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from exported import record

from mcpenv.extensions.evaluation.results import EpisodeResult, Failure, ResultsFile
from mcpenv.extensions.evaluation.run_directory import SUMMARY
from mcpenv.extensions.evaluation.run_listing import RunListing
from mcpenv.extensions.evaluation.run_page import write_report
from mcpenv.extensions.evaluation.settings import SETTINGS
from mcpenv.extensions.evaluation.stored_run import read_run
from mcpenv.trajectories.blobs import FOLDER
from mcpenv_client.errors import InvalidMessage


def stored(folder: Path, scores: dict[str, float], environment: str = "World", started_at: float = 1.0) -> Path:
    folder.mkdir(parents=True)
    settings = {"format": 1, "environment": {"name": environment, "version": "1"}, "agent": {"model": folder.name}}
    (folder / SETTINGS).write_text(json.dumps(settings))
    file = ResultsFile(folder)
    for task, score in scores.items():
        file.append(EpisodeResult("test", task, 1, 0, score=score, full_reward=1.0, digest="d", started_at=started_at))
    file.close()
    (folder / SUMMARY).write_text(json.dumps({"planned": len(scores), "pass_threshold": None}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    many = {f"t{number}": 0.0 for number in range(8)}
    stored(folder / "old", {**many, "won": 1.0, "same": 1.0})
    stored(folder / "deep" / "new", {**dict.fromkeys(many, 1.0), "won": 0.0, "same": 1.0}, started_at=2.0)
    return folder


def test_evaluations_are_listed_newest_first_and_unreadable_ones_are_named(runs: Path, tmp_path: Path) -> None:
    (stored(runs / "broken", {"a": 1.0}) / SETTINGS).write_text("[]")
    (runs / "linked").symlink_to(stored(tmp_path / "elsewhere", {"a": 1.0}))
    found = RunListing(runs).rows()
    assert [row["name"] for row in found["runs"]] == ["deep/new", "old"]
    assert found["runs"][0]["pass_at_1"] == 0.9 and found["runs"][0]["agent"] == "new"
    (left_out,) = found["left_out"]
    assert left_out["where"] == "broken" and "not a JSON object" in left_out["why"]
    assert str(tmp_path) not in json.dumps(found)


def test_two_evaluations_are_compared_task_by_task_with_flips_and_intervals(runs: Path, tmp_path: Path) -> None:
    found = RunListing(runs).compare("old", "deep/new", None)
    assert found["verdict"].startswith("the candidate is better: pass@1 +0.") and found["significant"]
    figures, tasks = found["tables"][:2]
    assert figures["rows"][0][0] == "pass@1" and figures["rows"][0][4].startswith("[+0.")
    assert tasks["title"] == "10 tasks: 1 lost, 8 gained, 1 the same"
    texts = [[cell if isinstance(cell, str) else cell[0]["text"] for cell in row[:5]] for row in tasks["rows"]]
    assert texts[0] == ["test/won", "1/1", "0/1", "-1.000", "lost"] and tasks["rows"][0][4][0]["style"] == "error"
    assert texts[-1] == ["test/same", "1/1", "1/1", "", "same"]
    assert (found["baseline"]["directory"], found["candidate"]["directory"]) == ("old", "deep/new")
    assert str(tmp_path) not in json.dumps(found)


@pytest.mark.parametrize(
    ("baseline", "candidate", "why"),
    [
        ("old", "../elsewhere", "candidate: there is no evaluation '../elsewhere'"),
        ("none", "old", "baseline: there is no evaluation 'none'"),
        ("old", "old", "are the same folder"),
        ("old", "other", "evaluations of different environments are not comparable"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    runs: Path, tmp_path: Path, baseline: str, candidate: str, why: str
) -> None:
    stored(runs / "other", {"a": 1.0}, "Another")
    stored(tmp_path / "elsewhere", {"a": 1.0})
    with pytest.raises(InvalidMessage, match=why.replace(".", r"\.")):
        RunListing(runs).compare(baseline, candidate, None)


@pytest.fixture
def url(runs: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "mcpenv", "console", str(runs), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            told: dict[str, Any] = json.loads(process.stdout.readline())
            assert told.keys() == {"url", "console", "evaluations"}
            yield told["url"]
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_the_console_of_a_folder_of_evaluations_has_them_and_no_records(url: str) -> None:
    session = httpx.get(f"{url}/console/api/session").json()
    assert (session["records"], session["evaluations"]) == (False, True)
    assert len(httpx.get(f"{url}/evaluations").json()["runs"]) == 2
    sides = {"baseline": "old", "candidate": "deep/new"}
    assert httpx.get(f"{url}/evaluations/compare", params=sides).json()["significant"]
    refused = httpx.get(f"{url}/evaluations/compare", params={**sides, "pass_threshold": "much"})
    assert refused.status_code == 422 and "pass_threshold" in refused.json()["message"]
    assert httpx.get(f"{url}/evaluations/compare").status_code == 422
    assert httpx.get(f"{url}/records").status_code == 404
    assert httpx.get(f"{url}/evaluations", headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_report_has_figures_and_the_returns_of_each_tasks_episodes(runs: Path) -> None:
    file = ResultsFile(runs / "old")
    file.append(EpisodeResult("test", "won", 1, 1, "second", score=0.5, full_reward=1.0, digest="d", started_at=1.0))
    file.append(EpisodeResult("test", "won", 1, 2, "third", failure=Failure.MODEL_ERROR, started_at=1.0))
    file.close()
    record(runs / "old" / "record")
    report = RunListing(runs).report("old")
    assert (report["title"], report["recorded"]) == ("Evaluation of World", True)
    plots = write_report(read_run(runs / "old")).read_text(encoding="utf-8")
    captions = [caption for _, _, _, (_, _, caption) in report["charts"]]
    assert len(captions) == plots.count("<svg") == 4 and all(f">{caption}<" in plots for caption in captions)
    bars = [each for each in report["charts"][1][2][2:] if each[0] == "rect"]
    assert [bar[2][2] for bar in bars] == ["return 0: 8", "return 0.5: 1", "return 1: 2"]
    figures, tasks, settings = report["tables"]
    assert ("Episodes", "12 of 10") in figures["rows"]
    assert ("pass threshold", "each task's full reward") in settings["rows"]
    assert [row[0] for row in tasks["rows"][7:]] == ["test/t7", "test/won", "test/same"]
    assert tasks["rows"][8] == (
        "test/won",
        "1/2",
        "0.75",
        "0",
        "model error 1",
        [
            {"id": None, "text": "1", "name": "1: test/won, sample 0"},
            {"id": "second", "text": "0.5", "name": "0.5: test/won, sample 1"},
            {"id": "third", "text": "no score", "name": "no score: test/won, sample 2"},
        ],
    )


def test_a_report_without_a_record_leads_to_no_episode(runs: Path, tmp_path: Path) -> None:
    # A record that is elsewhere is none of the folder's.
    record(tmp_path / "elsewhere")
    (runs / "old" / "record").symlink_to(tmp_path / "elsewhere")
    report = RunListing(runs).report("old")
    assert (
        not report["recorded"] and report["notes"][-1] == "Its folder has no record, so its episodes cannot be shown."
    )
    assert all(episode["id"] is None for row in report["tables"][1]["rows"] for episode in row[-1])
    with pytest.raises(InvalidMessage, match=r"there is no evaluation '\.\./elsewhere'"):
        RunListing(runs).report("../elsewhere")


def test_the_console_answers_the_record_of_each_evaluation(runs: Path, url: str) -> None:
    record(runs / "deep" / "new" / "record")
    of_new = f"{url}/evaluations/deep%2Fnew"
    assert httpx.get(f"{of_new}/report").json()["recorded"]
    assert {row["id"] for row in httpx.get(f"{of_new}/records").json()["rows"]} == {"bare", "model", "played"}
    episode = httpx.get(f"{of_new}/records/bare").json()["episode"]
    assert episode["trajectory"]["episode_id"] == "bare"
    image = f"{'0' * 64}.png"
    (runs / "deep" / "new" / "record" / FOLDER).mkdir()
    (runs / "deep" / "new" / "record" / FOLDER / image).write_bytes(b"an image")
    assert httpx.get(f"{of_new}/records/bare/blobs/{image}").content == b"an image"
    assert "attachment" in httpx.get(f"{of_new}/records/bare/page.html").headers["content-disposition"]
    for missing in ("old/records", "none/records", "deep%2Fnew/records/none", "..%2Fdeep/records"):
        assert httpx.get(f"{url}/evaluations/{missing}").status_code == 404, missing
    assert httpx.get(f"{url}/evaluations/none/report").status_code == 422
    assert httpx.get(f"{of_new}/records", headers={"Origin": "http://evil.example"}).status_code == 403
