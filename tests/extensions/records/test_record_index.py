"""The index of a record: it has every episode that can be read, and says of the others where and why."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from mcpenv import Trajectory
from mcpenv.errors import DamagedRecord
from mcpenv.extensions.records import record_index
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.where import EVERYTHING, Condition, Has
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv.trajectories.reader import Lost, read_episodes
from mcpenv.trajectories.segments import member_of


def line(name: str, ended_at: float, reason: str = "") -> bytes:
    trajectory = Trajectory(name, reason=reason or None, started_at=1.0, ended_at=ended_at)
    return RecordedEpisode(trajectory, RecordedEnvironment("Dice", "1")).line()


def ids(index: RecordIndex, wanted: Condition = EVERYTHING) -> list[str]:
    return [row["id"] for row in index.find(wanted, 0, 100).rows]


def test_compressed_segments_and_text_are_both_shown_the_newest_episode_first(tmp_path: Path) -> None:
    (tmp_path / "episodes-a.jsonl.gz").write_bytes(member_of(line("third", 30)) + member_of(line("first", 10)))
    (tmp_path / "episodes-b.jsonl").write_bytes(line("fourth", 40) + b"\n" + line("second", 20).rstrip())
    index = RecordIndex(tmp_path)
    page = index.find(EVERYTHING, 1, 2)
    assert (page.total, [row["id"] for row in page.rows]) == (4, ["third", "second"])
    assert (page.damaged, page.left_out) == (0, [])
    for name in ("first", "second", "third", "fourth"):
        found = index.read(name)
        assert found is not None and found[1].id == name
        assert RecordedEpisode.from_line(found[0]).id == name


def test_what_is_left_out_is_named_with_its_place_and_cause(tmp_path: Path) -> None:
    (tmp_path / "episodes-a.jsonl").write_bytes(line("whole", 1) + b"{}\n" + line("torn", 2)[:-9])
    (tmp_path / "episodes-b.jsonl.gz").write_bytes(member_of(line("before", 3)) + b"not a member")
    page = RecordIndex(tmp_path).find(EVERYTHING, 0, 9)
    assert [row["id"] for row in page.rows] == ["before", "whole"]
    assert page.damaged == 2
    left_out = {entry["where"]: entry["why"] for entry in page.left_out}
    start = len(line("whole", 1))
    assert "Field required" in left_out.pop(f"episodes-a.jsonl, byte {start}")
    assert "is being written, or whose writer died" in left_out.pop(f"episodes-a.jsonl, byte {start + 3}")
    ((where, why),) = left_out.items()
    assert where.startswith("episodes-b.jsonl.gz, byte 0") and "no episode after that byte" in why


BOMBS = {
    "lines": (b"{}\n" * 1_048_576, record_index.MAX_WITHOUT_ROW + 1, "1000 lines that are no episode"),
    "gaps": (Lost(1, 1, 0.0, 0.0, "full").line() * 100_000, 1, "1000 lines that are no episode"),
    "blanks": (b" \n" * 50_000_000, 0, None),
    "lists": (b'{"trajectory":{"steps":[' + b"{}," * 1_000_000 + b"{}]}}\n", 1, "more than 1000000 objects and lists"),
    "text": (b'"' + b"x" * (64 * 2**20) + b'"\n', 1, "the line has more than 64 MiB"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_few_bytes_that_become_many_are_left_out(kind: str, tmp_path: Path) -> None:
    text, damaged, why = BOMBS[kind]
    (tmp_path / "episodes-a.jsonl.gz").write_bytes(member_of(line("before", 1)) + gzip.compress(text, 1))
    tracemalloc.start()
    try:
        page = RecordIndex(tmp_path).find(EVERYTHING, 0, 9)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text) + 2_000_000
    finally:
        tracemalloc.stop()
    assert ([row["id"] for row in page.rows], page.damaged) == (["before"], damaged)
    assert why is None or why in page.left_out[0]["why"]


@pytest.mark.parametrize("name", ["episodes-a.jsonl", "episodes-a.jsonl.gz"])
def test_a_line_without_an_end_is_damage(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.trajectories.segments.MAX_MEMBER_BYTES", 100_000)
    text = line("before", 1)
    with (tmp_path / name).open("wb") as file:
        file.write(member_of(text) + member_of(b"x" * 200_000) if name.endswith(".gz") else text)
        if name.endswith(".jsonl"):
            file.truncate(1 << 32)
    page = RecordIndex(tmp_path).find(EVERYTHING, 0, 9)
    assert [row["id"] for row in page.rows] == ["before"] and "more than 0 MiB" in page.left_out[0]["why"]
    read = read_episodes(tmp_path)
    assert next(read).id == "before"
    with pytest.raises(DamagedRecord, match="more than 0 MiB"):
        next(read)


def test_a_segment_that_grows_is_read_on_and_a_torn_end_that_is_completed_is_shown(tmp_path: Path) -> None:
    segment = tmp_path / "episodes-a.jsonl.gz"
    second = member_of(line("second", 2))
    segment.write_bytes(member_of(line("first", 1)) + second[:-9])
    index = RecordIndex(tmp_path)
    page = index.find(EVERYTHING, 0, 9)
    assert ([row["id"] for row in page.rows], len(page.left_out), page.damaged) == (["first"], 1, 0)
    with segment.open("ab") as file:
        file.write(second[-9:] + member_of(line("third", 3)))
    assert ids(index) == ["third", "second", "first"]
    assert index.find(EVERYTHING, 0, 9).left_out == []


def test_episodes_of_a_segment_that_is_gone_or_was_replaced_are_gone(tmp_path: Path) -> None:
    one, other = tmp_path / "episodes-a.jsonl", tmp_path / "episodes-b.jsonl"
    one.write_bytes(line("first", 1) + line("second", 2))
    other.write_bytes(line("third", 3))
    index = RecordIndex(tmp_path)
    assert len(ids(index)) == 3
    other.unlink()
    one.write_bytes(line("fresh", 4))
    assert ids(index) == ["fresh"]
    assert index.read("second") is None
    one.write_bytes(line("brash", 4))  # as long as before: only the reading of it tells
    with pytest.raises(DamagedRecord, match="another episode now"):
        index.read("fresh")


def test_two_episodes_of_one_id_are_both_there_each_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "episodes-a.jsonl").write_bytes(line("same", 1, "earlier") + line("same", 2, "later"))
    index = RecordIndex(tmp_path)
    later, earlier = index.find(EVERYTHING, 0, 9).rows
    reasons = [found[1].trajectory.reason for name in (later["place"], earlier["place"]) if (found := index.read(name))]
    assert reasons == ["later", "earlier"]
    newest = index.read("same")
    assert newest is not None and newest[1].trajectory.reason == "later"


def test_a_text_is_found_in_any_case_and_in_a_member_of_many_lines(tmp_path: Path) -> None:
    text = b"".join(line(f"e{number}", number, "Grüße" if number == 7 else "no") for number in range(20))
    (tmp_path / "episodes-a.jsonl.gz").write_bytes(gzip.compress(text))
    index = RecordIndex(tmp_path)
    assert ids(index, Has("text", "GRÜSSE")) == ["e7"]
    assert ids(index, Has("text", "grüße")) == ["e7"]
    assert ids(index, Has("text", "nowhere")) == []


def test_no_link_leads_out_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_bytes(line("secret", 1))
    record = tmp_path / "record"
    record.mkdir()
    (record / "episodes-a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    page = RecordIndex(record).find(EVERYTHING, 0, 9)
    assert page.rows == [] and "outside of the record" in page.left_out[0]["why"]


def test_of_a_record_that_is_too_large_the_oldest_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_index, "MAX_INDEXED", 2)
    (tmp_path / "episodes-a.jsonl").write_bytes(b"".join(line(f"e{number}", number) for number in range(1, 6)))
    page = RecordIndex(tmp_path).find(EVERYTHING, 0, 9)
    assert [row["id"] for row in page.rows] == ["e5", "e4"]
    assert page.left_out[0]["why"].startswith("3 older episodes")
