"""Reviews of episodes: written beside a record, filtered by, compared between raters, and exported as preferences."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import command_lines

from mcpenv import MCPEnvironment
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.reviews import FILE, Review, Reviews, agreements, facts_of, review_of
from mcpenv.extensions.records.where import parse
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task


def recorded(folder: Path, ids: str = "abcd") -> Path:
    """Write episodes of one task, which say their own names."""
    with Recorder(folder) as recorder:
        for number, each in enumerate(ids):
            step = StepRecord(ToolCall("say", {"word": each}, 1), ToolOutcome.returned(each, 0.1), reward=Reward(0.5))
            trajectory = Trajectory(
                each, task=Task(id="t", prompt="Say a word."), steps=[step], started_at=1.0 + number
            )
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("words")))
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return recorded(tmp_path / "record")


def rate(record: Path, episode: str, rater: str, rating: int | None, **more: Any) -> None:
    Reviews(record).write(review_of({"episode": episode, "rater": rater, "rating": rating, **more}))


def test_the_last_review_of_a_rater_stands_and_an_empty_one_takes_it_back(record: Path) -> None:
    kept = Reviews(record)
    assert kept.said() == {}
    rate(record, "a", "Ann", 2, tags=["loop"])
    rate(record, "a", "Bob", 4)
    rate(record, "a", "Ann", 5, note="better than I thought")
    assert [(each.rater, each.rating, each.tags) for each in kept.said()["a"]] == [("Ann", 5, ()), ("Bob", 4, ())]
    assert kept.said() is kept.said()  # read once, until the file changes
    rate(record, "a", "Ann", None)
    rate(record, "a", "Bob", None)
    assert kept.said() == {} and len((record / FILE).read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rater": ""}, "rater"),
        ({"rater": "Ann\n"}, None),
        ({"rater": "A\nnn"}, "rater"),
        ({"rating": 0}, "rating"),
        ({"rating": 6}, "rating"),
        ({"rating": "good"}, "rating"),
        ({"rating": True}, "rating"),
        ({"tags": ["x"] * 21}, "tags"),
        ({"tags": ["x" * 101]}, "tags.0"),
        ({"note": "x" * 10_001}, "note"),
        ({"other": 1}, "other"),
    ],
)
def test_what_is_no_review_is_refused_by_the_name_of_its_field(wrong: dict[str, Any], named: str | None) -> None:
    given = {"episode": "a", "rater": "Ann", "rating": 3, **wrong}
    if named is None:
        assert review_of(given).rater == "Ann"
        return
    with pytest.raises(InvalidMessage, match=f"^{named}: "):
        review_of(given)


def test_several_writers_lose_no_review(record: Path) -> None:
    def write(rater: str) -> None:
        for number in range(50):
            rate(record, f"e{number}", rater, 1 + number % 5, note="é" * 2000)

    threads = [threading.Thread(target=write, args=(f"rater {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = Reviews(record)
    assert len(kept.said()) == 50 and all(len(each) == 4 for each in kept.said().values()) and kept.unreadable == 0


@pytest.mark.parametrize("what", ["outside", "loop", "pipe", "folder"])
def test_a_file_from_elsewhere_has_no_reviews_and_takes_none(record: Path, what: str, tmp_path: Path) -> None:
    file = record / FILE
    if what == "outside":
        outside = tmp_path / "outside.jsonl"
        outside.write_text(Review(episode="a", rater="Eve", rating=5).model_dump_json() + "\n")
        file.symlink_to(outside)
    elif what == "loop":
        file.symlink_to(file)
    elif what == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    assert Reviews(record).said() == {}
    with pytest.raises(OSError, match=r".+"):
        rate(record, "a", "Ann", 1)


def test_lines_that_cannot_be_read_cost_no_other(record: Path) -> None:
    rate(record, "a", "Ann", 1)
    with (record / FILE).open("ab") as file:
        file.write(b'{"episode": "a"\n\xff\xfe\n[]\n')
    rate(record, "b", "Ann", 2)
    kept = Reviews(record)
    assert sorted(kept.said()) == ["a", "b"] and kept.unreadable == 3


def test_rows_have_the_mean_rating_and_conditions_filter_by_it(record: Path) -> None:
    index = RecordIndex(record)
    assert index.find(parse("rating = none")).total == 4
    rate(record, "a", "Ann", 5, tags=["clean"])
    rate(record, "a", "Bob", 4, note="Slow, but right")
    rate(record, "b", "Ann", 1, tags=["loop"])
    for text, wanted in (
        ("rating >= 4", ["a"]),
        ("rating = 4.5", ["a"]),
        ('tag("loop")', ["b"]),
        ('note ~ "slow"', ["a"]),
        ("rating != none and rating < 4", ["b"]),
    ):
        assert [row["id"] for row in index.find(parse(text)).rows] == wanted, text
    assert [row["id"] for row in index.find(sort="-rating").rows][:2] == ["a", "b"]
    assert facts_of(index.reviews_of("a"))["raters"] == 2


def test_the_agreement_of_two_raters_is_a_weighted_kappa(record: Path) -> None:
    for episode, (ann, bob) in {"a": (1, 2), "b": (3, 3), "c": (5, 4), "d": (2, None)}.items():
        rate(record, episode, "Ann", ann)
        rate(record, episode, "Bob", bob, tags=["seen"])
    rate(record, "a", "Cy", 1)
    first, *others = agreements(Reviews(record).said())
    assert (first.one, first.other, first.episodes) == ("Ann", "Bob", 3)
    assert first.equal == pytest.approx(1 / 3) and first.close == 1.0
    # observed (1 + 0 + 1) / 3; by chance the mean of the squares over all nine pairs of their ratings
    assert first.kappa == pytest.approx(1 - (2 / 3) / (30 / 9))
    assert [(each.one, each.other, each.kappa) for each in others] == [("Ann", "Cy", None), ("Bob", "Cy", 0.0)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    with command_lines(None, monkeypatch, capfd) as command:
        yield command


def test_the_command_shows_reviews_and_agreement(record: Path, run: Any) -> None:
    rate(record, "a", "Ann", 5, tags=["clean"], note="Good\x1b[31m")
    rate(record, "a", "Bob", 4)
    rate(record, "b", "Ann", 1)
    done = run("trajectories", "reviews", str(record))
    assert done.status == 0 and "Ann and Bob: 1 episode rated by both, 0% equal, 100% within 1" in done.out
    assert "\x1b[31m" not in done.out
    listed = json.loads(run("trajectories", "reviews", str(record), "--json", "--where", "rating > 4").out)
    assert [(each["rater"], each["rating"]) for each in listed["reviews"]] == [("Ann", 5), ("Bob", 4)]
    (row,) = map(
        json.loads, run("trajectories", "list", str(record), "--json", "--where", "rating < 2").out.splitlines()
    )
    assert (row["id"], row["rating"], row["review_tags"]) == ("b", 1.0, [])


def test_records_below_a_folder_are_read_as_one_with_all_their_reviews(run: Any, tmp_path: Path) -> None:
    for name, ids in (("one", "ab"), ("two", "cd")):
        recorded(tmp_path / "fleet" / name, ids)
    rate(tmp_path / "fleet" / "one", "a", "Ann", 5)
    rate(tmp_path / "fleet" / "two", "c", "Ann", 1)
    with (tmp_path / "fleet" / "two" / FILE).open("ab") as file:
        file.write(b"no review\n")
    fleet = str(tmp_path / "fleet")
    listed = [*map(json.loads, run("trajectories", "list", fleet, "--json").out.splitlines())]
    assert {row["id"]: row["rating"] for row in listed} == {"a": 5, "b": None, "c": 1, "d": None}
    assert len(run("trajectories", "list", fleet, "--json", "--limit", "3").out.splitlines()) == 3
    assert json.loads(run("trajectories", "stats", fleet, "--json", "--where", "rating <= 2").out)["episodes"] == 1
    assert json.loads(run("trajectories", "show", fleet, "d", "--json").out)["trajectory"]["episode_id"] == "d"
    reviews = run("trajectories", "reviews", fleet, "--json")
    assert [each["episode"] for each in json.loads(reviews.out)["reviews"]] == ["a", "c"]
    assert f"1 line of {tmp_path / 'fleet' / 'two' / FILE} cannot be read" in reviews.err
    (pair,) = map(json.loads, run("trajectories", "export", fleet, "--format", "dpo").out.splitlines())
    assert (pair["chosen_rating"], pair["rejected_rating"]) == (5, 1)


def test_rows_of_records_below_a_folder_have_the_reviews_beside_their_own_record(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recorded(tmp_path / name, "a")
    index = RecordIndex(tmp_path, below=True)
    place = {row["server"]: row["place"] for row in index.find().rows}
    rate(tmp_path / "two", "a", "Ann", 1)
    assert [row["server"] for row in index.find(parse("rating <= 2")).rows] == ["two"]
    assert not index.reviews_of(place["one"]) and index.reviews_of(place["two"])[0].rater == "Ann"


def test_preferences_are_exported_as_pairs_and_as_labels(record: Path, run: Any, tmp_path: Path) -> None:
    done = run("trajectories", "export", str(record), "--format", "dpo")
    assert done.status == 2 and "no reviews" in done.err
    for episode, rating in {"a": 5, "b": 1, "c": 3, "d": 5}.items():
        rate(record, episode, "Ann", rating)
    pairs = [*map(json.loads, run("trajectories", "export", str(record), "--format", "dpo").out.splitlines())]
    assert [(each["chosen_rating"], each["rejected_rating"]) for each in pairs] == [(5, 1), (5, 3)]
    chosen, rejected = (json.dumps(pairs[0][each]) for each in ("chosen", "rejected"))
    assert '\\"a\\"' in chosen and '\\"b\\"' in rejected and pairs[0]["prompt"][-1]["content"] == "Say a word."
    out = tmp_path / "kto.jsonl"
    assert run("trajectories", "export", str(record), "--format", "kto", "--out", str(out)).status == 0
    labels = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["label"], each["rating"]) for each in labels] == [(True, 5), (False, 1), (True, 5)]


def test_a_review_is_written_over_http_and_episodes_have_neighbours(record: Path) -> None:
    with serving(_Words, ServerConfig(record=record, control_token="secret-of-a-test")) as url:
        with httpx.Client(base_url=url) as http:
            assert http.put("/records/a/review", json={"rater": "Eve", "rating": 5}).status_code == 401
            http.headers["Authorization"] = "Bearer secret-of-a-test"
            answer = http.put("/records/a/review", json={"rater": "Ann", "rating": 4, "tags": ["clean"]})
            assert answer.status_code == 200
            assert [(each["rater"], each["rating"]) for each in answer.json()["reviews"]] == [("Ann", 4)]
            assert http.get("/records/a").json()["reviews"] == answer.json()["reviews"]
            refused = http.put("/records/a/review", json={"rater": "Ann", "rating": 9})
            assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["rating"])
            assert http.put("/records/none/review", json={"rater": "Ann", "rating": 1}).status_code == 404
            assert http.put("/records/a/review", content=b"[" + b" " * (65 << 10)).status_code == 422
            # the newest stands first
            beside = http.get("/records/b/neighbours").json()
            places = {row["id"]: row["place"] for row in http.get("/records").json()["rows"]}
            assert beside == {"position": 3, "total": 4, "previous": places["c"], "next": places["a"]}
            ends = http.get("/records/a/neighbours", params={"sort": "started", "where": 'id != "b"'}).json()
            assert ends == {"position": 1, "total": 3, "previous": None, "next": places["c"]}
            assert http.get("/records/a/neighbours", params={"where": 'id = "b"'}).json()["position"] is None
    (record / FILE).unlink()
    (record / FILE).mkdir()
    with serving(_Words, ServerConfig(record=record)) as url:
        refused = httpx.put(f"{url}/records/a/review", json={"rater": "Ann", "rating": 1})
        assert refused.status_code == 409 and "is not written" in refused.json()["message"]
        web_page = httpx.put(
            f"{url}/records/a/review", json={"rater": "Eve"}, headers={"Origin": "http://evil.example"}
        )
        assert web_page.status_code == 403


class _Words(MCPEnvironment):
    """A world of words."""

    def __init__(self) -> None:
        @self.tool
        def say(word: str) -> str:
            """Say a word."""
            return word


def test_a_line_that_was_cut_costs_no_later_review(record: Path) -> None:
    rate(record, "a", "Ann", 1)
    with (record / FILE).open("ab") as file:
        file.write(b'{"episode": "b", "ra')  # its writer was stopped
    rate(record, "c", "Ann", 2)
    kept = Reviews(record)
    assert sorted(kept.said()) == ["a", "c"] and kept.unreadable == 1


def test_the_rows_of_a_record_without_reviews_are_collected_once(record: Path) -> None:
    index = RecordIndex(record)
    assert index.select() is index.select()
    rate(record, "a", "Ann", 1)
    selected = index.select()
    assert selected is index.select() and {row.summary["rating"] for row in selected} == {None, 1.0}


def test_a_review_is_of_the_named_episode_while_others_are_recorded(record: Path) -> None:
    index = RecordIndex(record)
    place = index.find(parse('id = "b"')).rows[0]["place"]
    recorded(record, "efgh")
    assert (index.id_of(place), index.id_of("b"), index.id_of("nobody")) == ("b", "b", None)


def test_the_agreement_of_many_ratings_takes_no_time_that_grows_with_their_square() -> None:
    def review(rater: str, number: int, rating: int) -> Review:
        return Review(episode=str(number), rater=rater, rating=rating)

    said = {str(n): [review("Ann", n, 1 + n % 5), review("Bob", n, 1 + n // 2 % 5)] for n in range(50_000)}
    (found,) = agreements(said)  # 2,500,000,000 pairs of ratings
    assert found.episodes == 50_000 and found.kappa == pytest.approx(0.5)
