"""Exports: what trainers read says what happened. Their own libraries read it in test_export_readers.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from exported import CHAT, export, record, rows
from record_worlds import PIXEL

from mcpenv import Evidence, MCPEnvironment, Reward, Trajectory
from mcpenv.cli import execute
from mcpenv.cli.output import number_of
from mcpenv.extensions.exports.atif import atif_document
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv.trajectories.episode import Ending


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "record")
    return tmp_path / "record"


def by_id(folder: Path, form: str, *options: str) -> dict[str, Any]:
    return {row["metadata"]["id"]: row for row in rows(export(folder, form, f"{form}.jsonl", *options))}


def test_openai_chats_have_the_prompt_and_each_call_with_its_answer(folder: Path) -> None:
    bare = by_id(folder, "chat-openai")["bare"]
    user, *pairs = bare["messages"]
    assert user == {"role": "user", "content": "Reach 1000 with dice of 6 sides."}
    calls, answers = pairs[::2], pairs[1::2]
    assert [call["tool_calls"][0]["function"] for call in calls] == [
        {"name": "roll", "arguments": '{"times": 2}'},
        {"name": "picture", "arguments": "{}"},
        {"name": "refuse", "arguments": "{}"},
        {"name": "shout", "arguments": '{"text": "go"}'},
    ]
    assert [call["tool_calls"][0]["id"] for call in calls] == [answer["tool_call_id"] for answer in answers]
    assert [answer["content"] for answer in answers[1:]] == [
        "[image]",
        "not with these dice",
        '{"metadata": {}, "echo": "go (4)"}'.replace("4", answers[0]["content"]),
    ]
    assert [tool["function"]["name"] for tool in bare["tools"]] == ["roll", "say", "picture", "refuse", "crash"]
    assert bare["metadata"]["task_id"] == "low-1" and bare["metadata"]["split"] == "test"
    assert bare["metadata"]["return"] == 1.0 and bare["metadata"]["reason"] == "enough"
    assert json.loads(bare["metadata"]["reward_components"]) == {"effort": 2.0}


class Promised(MCPEnvironment):
    """Worth something though nobody does anything."""

    def verify(self, evidence: Evidence) -> Reward:
        return Reward(0.5, {"kept": 0.25})


@pytest.mark.parametrize("form", ["chat-openai", "chat-anthropic"])
def test_a_chat_says_what_an_end_was_paid_that_was_no_step(tmp_path: Path, form: str) -> None:
    with Recorder(tmp_path / "record") as recorder:
        env = Promised()
        recorder.attach(env)
        env.reset(episode_id="kept")
        env.end()
    said = by_id(tmp_path / "record", form)["kept"]["metadata"]
    parts = {"verified": 0.5, "verified/kept": 0.25}
    assert (said["return"], said["end_reward"], said["verified"]) == (0.5, 0.5, 0.5)
    assert json.loads(said["end_reward_components"]) == json.loads(said["reward_components"]) == parts
    (row,) = pq.read_table(export(tmp_path / "record", "parquet", "episodes.parquet")).to_pylist()
    assert {name: row[name] for name in said if not name.endswith("_at")} == {
        name: value for name, value in said.items() if not name.endswith("_at")
    }


def test_the_chat_in_which_a_model_played_is_exported_as_it_was(folder: Path) -> None:
    expected = json.loads(json.dumps(CHAT))
    expected[2]["tool_calls"][1]["function"]["arguments"] = "{}"
    assert by_id(folder, "chat-openai")["played"]["messages"] == expected
    with_objects = by_id(folder, "chat-openai", "--arguments", "object")["played"]["messages"]
    assert [call["function"]["arguments"] for call in with_objects[2]["tool_calls"]] == [{"text": "hé"}, {}]


def test_anthropic_chats_take_turns_and_mark_what_failed(folder: Path) -> None:
    chats = by_id(folder, "chat-anthropic")
    played, bare = chats["played"], chats["bare"]
    assert played["system"] == "You play with dice."
    assert played["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Stay low."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Two at once."},
                {"type": "tool_use", "id": "a", "name": "say", "input": {"text": "hé"}},
                {"type": "tool_use", "id": "b", "name": "refuse", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": '{"said":"hé"}'},
                {"type": "tool_result", "tool_use_id": "b", "content": "not with these dice", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "I give up."}]},
    ]
    assert [message["role"] for message in bare["messages"]] == ["user", *["assistant", "user"] * 4]
    (picture,) = bare["messages"][4]["content"]
    assert picture["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    ]
    assert set(bare["tools"][0]) == {"name", "description", "input_schema"}


def test_a_parquet_table_has_a_row_an_episode(folder: Path) -> None:
    table = pq.read_table(export(folder, "parquet", "episodes.parquet"))
    found = {row["id"]: row for row in table.to_pylist()}
    bare = found["bare"]
    assert (bare["task_id"], bare["split"], bare["seed"], bare["return"]) == ("low-1", "test", 1, 1.0)
    assert (bare["level"], bare["family"], bare["tags"]) == (2, "aims", ["low"])
    assert (bare["terminated"], bare["truncated"], bare["reason"], bare["n_steps"]) == (True, False, "enough", 4)
    assert json.loads(bare["messages"]) == by_id(folder, "chat-openai")["bare"]["messages"]
    assert [step["tool_name"] for step in bare["steps"]] == ["roll", "picture", "refuse", "shout"]
    assert json.loads(bare["steps"][0]["arguments"]) == {"times": 2}
    assert bare["steps"][2]["error_type"] == "execution_error" and bare["steps"][2]["reward"] == -0.5
    assert json.loads(bare["steps"][2]["reward_components"]) == {"effort": 0.5}
    assert bare["started_at"].timestamp() <= bare["ended_at"].timestamp()


def test_atif_is_a_document_an_episode(folder: Path) -> None:
    out = export(folder, "atif", "documents")
    assert sorted(file.name for file in out.iterdir()) == ["bare.json", "model.json", "played.json"]
    played = json.loads((out / "played.json").read_text())
    assert played["schema_version"] == "ATIF-v1.8" and played["session_id"] == "played"
    assert played["agent"]["name"] == "script" and played["agent"]["extra"] == {"temperature": 0}
    assert [(step["step_id"], step["source"]) for step in played["steps"]] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
    ]
    said, refused = played["steps"][2]["observation"]["results"]
    assert said["extra"]["step"] == 1 and "reward" not in said["extra"]
    assert refused["extra"]["reward"] == -0.5 and refused["extra"]["error_type"] == "execution_error"
    assert played["final_metrics"]["extra"]["return"] == -0.5
    assert "end_reward" not in played["final_metrics"]["extra"]


def test_atif_has_what_the_end_was_worth(tmp_path: Path) -> None:
    trajectory = Trajectory("ended", total_reward=1.5, terminated=True, ended_at=1.0)
    trajectory.end_reward, trajectory.verified = Reward(1.5, {"tidy": 0.5}), Reward(1.0, {"verified": 1.0})
    (told,) = [atif_document(RecordedEpisode(trajectory, RecordedEnvironment("Dice")), [])]
    assert told["final_metrics"]["extra"] == {
        "return": 1.5, "reward_components": {"tidy": 0.5},
        "end_reward": 1.5, "end_reward_components": {"tidy": 0.5},
        "verified": 1.0, "verified_components": {"verified": 1.0},
    }  # fmt: skip


def test_one_atif_document_goes_to_one_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = export(folder, "atif", "one.json", "--id", "bare")
    assert json.loads(one.read_text())["trajectory_id"] == "bare"
    many = str(folder.parent / "many.json")
    assert execute(["trajectories", "export", str(folder), "--format", "atif", "--out", many]) == 2
    assert "takes exactly one episode, but several episodes would be exported" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--task", "low-1"), {"bare", "model", "played"}),
        (("--task", "other"), set()),
        (("--split", "train"), set()),
        (("--min-return", "0"), {"bare"}),
        (("--min-return", "1.0000000000000002"), {"bare"}),
        (("--min-return", "1.0001"), set()),
        (("--ended", "terminated", "--limit", "1"), {"bare"}),
        (("--ended", "reset"), set()),
    ],
    ids=["task", "other-task", "split", "return", "rounding", "more", "ended", "none"],
)
def test_the_same_conditions_choose_episodes_for_every_command(
    folder: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], found: set[str]
) -> None:
    assert by_id(folder, "chat-openai", *options).keys() == found
    capfd.readouterr()
    assert execute(["trajectories", "list", str(folder), "--json", *options]) == 0
    assert {json.loads(line)["id"] for line in capfd.readouterr().out.splitlines()} == found
    assert execute(["trajectories", "stats", str(folder), "--json", *options]) == 0
    assert json.loads(capfd.readouterr().out)["episodes"] == len(found)


def test_a_list_is_a_table(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "list", str(folder)]) == 0
    heading, *lines = capfd.readouterr().out.splitlines()
    assert heading.split() == ["id", "task", "environment", "steps", "return", "ending", "status", "when"]
    assert [line.split()[:7] for line in lines] == [
        ["bare", "test/low-1", "Dice", "4", "1", "terminated", "completed"],
        ["model", "test/low-1", "Dice", "2", "-0.5", "terminated", "completed"],
        ["played", "test/low-1", "Dice", "2", "-0.5", "terminated", "completed"],
    ]


def test_an_episode_is_shown_as_a_page(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "show", str(folder), "ba"]) == 0
    page = capfd.readouterr().out
    for said in (
        "Reach 1000 with dice",
        "1. roll(times=2)",
        "execution_error: ",
        "not with these dice",
        "reward -0.5 (effort 0.5)",
    ):
        assert said in page
    assert page.splitlines()[0] == "bare  Dice 0.1.0"
    assert page.splitlines()[-1] == "terminated (enough), return 1"
    assert execute(["trajectories", "show", str(folder), "bare", "--json"]) == 0
    shown = RecordedEpisode.from_line(capfd.readouterr().out.encode())
    assert shown.id == "bare" and len(shown.trajectory.steps) == 4
    assert execute(["trajectories", "show", str(folder), "nothing"]) == 2
    assert "there is no episode 'nothing'" in capfd.readouterr().err
    assert execute(["trajectories", "show", str(folder)]) == 2
    assert f"has several episodes, such as bare and model. To list them: mcpenv trajectories list {folder}" in (
        capfd.readouterr().err
    )


def test_a_page_has_nothing_that_a_terminal_would_obey(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (segment,) = folder.glob("episodes-*")
    text = subprocess.run(["gzip", "-dc", str(segment)], capture_output=True, check=True).stdout
    wicked = folder.parent / "episodes-wicked.jsonl"
    wicked.write_bytes(text.splitlines()[0].replace(b"not with these dice", b"\\u001b[2J\\u0007not"))
    assert execute(["trajectories", "show", str(wicked), "bare"]) == 0
    page = capfd.readouterr().out
    assert "\x1b" not in page and "\x07" not in page and r"\x1b[2J\x07not" in page


def test_figures_are_those_of_the_episodes(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "stats", str(folder), "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["episodes"] == 3 and figures["endings"] == {"terminated": 3}
    assert figures["return"]["mean"] == 0.0 and figures["return"]["max"] == 1.0 and figures["return"]["p50"] == -0.5
    assert figures["steps"]["min"] == 2 and figures["steps"]["p75"] == 3.0
    assert figures["tools"]["refuse"] == {
        "calls": 3,
        "errors": 3,
        "error_rate": 1.0,
        "by_type": {"execution_error": 3},
    }
    assert figures["tools"]["roll"]["error_rate"] == 0.0
    assert figures["tasks"] == [{"split": "test", "id": "low-1", "episodes": 3, "mean_return": 0.0}]
    assert execute(["trajectories", "stats", str(folder)]) == 0
    page = capfd.readouterr().out
    assert page.startswith("3 episodes\n") and "refuse" in page and "100.0%" in page and "test/low-1" in page


def test_an_empty_record_has_nothing_and_a_missing_one_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["trajectories", "list", str(tmp_path)]) == 0
    assert execute(["trajectories", "stats", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "0 episodes\n"
    assert execute(["trajectories", "list", str(tmp_path / "none")]) == 2
    assert "there is no such record" in capfd.readouterr().err


def test_a_folder_of_other_things_is_no_record_and_a_record_in_it_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "tools" / "more").mkdir()
    unnamed = f"{folder / 'tools'}: this is no record; name the folder that --record was given"
    for command, elsewhere, hint in (
        ("check", folder.parent, f"{folder.parent}: this is no record; is it {folder}?"),
        ("list", folder / "tools", unnamed),
        ("stats", folder / "tools", unnamed),
    ):
        assert execute(["trajectories", command, str(elsewhere)]) == 2
        shown = capfd.readouterr()
        assert shown.out == "" and shown.err == f"error: {hint}\n"


def test_records_below_the_named_folder_are_exported_with_their_tools(folder: Path, tmp_path: Path) -> None:
    with Recorder(tmp_path / "another") as recorder:
        recorder.write(RecordedEpisode(Trajectory("without tools"), RecordedEnvironment("Dice")))
    found = by_id(tmp_path, "chat-openai", "--limit", "9")
    assert "without tools" in found and found["bare"]["tools"] == by_id(folder, "chat-openai")["bare"]["tools"]


def test_an_ending_that_there_is_not_is_refused_with_those_that_there_are(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["trajectories", "list", str(folder), "--ended", "banana"]) == 2
    said = capfd.readouterr().err
    assert '"banana"' in said and all(f'"{ending}"' in said for ending in get_args(Ending))


def test_one_is_not_said_in_the_plural(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "list", str(folder), "--limit", "1"]) == 0
    assert execute(["trajectories", "stats", str(folder), "--limit", "1"]) == 0
    shown = capfd.readouterr()
    assert shown.err == "1 episode\n" and "\n1 episode\n" in shown.out
    assert (number_of(0, "step"), number_of(1, "step"), number_of(2, "step")) == ("0 steps", "1 step", "2 steps")


def test_without_pyarrow_one_line_says_what_to_install(folder: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\nfrom mcpenv.cli import execute\n"
        f"sys.exit(execute(['trajectories', 'export', {str(folder)!r}, '--format', 'parquet', '--out', 'x.parquet']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "error: parquet needs pyarrow: pip install 'mcpenv[parquet]'\n"


def test_parquet_is_not_written_to_a_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "export", str(folder), "--format", "parquet"]) == 2
    assert "--out FILE.parquet" in capfd.readouterr().err


def test_a_seed_of_64_bits_is_kept_as_text_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from mcpenv.extensions.exports.parquet import write_parquet

    seeds = [5, 2**63 - 1, 2**63, 2**64 - 1, None]
    episodes: list[Any] = [
        (RecordedEpisode(Trajectory("e", seed=seed), RecordedEnvironment("Quiet")), []) for seed in seeds
    ]
    write_parquet(episodes, tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("seed").to_pylist() == [5, 2**63 - 1, None, None, None]
    assert table.column("seed_text").to_pylist() == [None if seed is None else str(seed) for seed in seeds]
    assert "2 seeds of more than 64 bits" in capsys.readouterr().err


class Numbers(MCPEnvironment):
    """Says numbers that a float has not."""

    def __init__(self) -> None:
        @self.tool
        def double(number: int) -> dict[str, int]:
            """Double a number."""
            return {"twice": 2 * number}


@pytest.mark.parametrize("form", ["chat-openai", "chat-anthropic", "atif", "html", "parquet"])
def test_large_whole_numbers_keep_each_digit(tmp_path: Path, form: str) -> None:
    large = [2**53 + 1, -(2**63) - 1, 10**40 + 1]
    with Recorder(tmp_path / "record") as recorder, Numbers() as env:
        recorder.attach(env)
        env.reset(seed=2**53 + 1, episode_id="large")
        for number in large:
            env.call_tool("double", {"number": number})
        env.end()
    suffix = {"parquet": "parquet", "html": "html"}.get(form, "jsonl")
    file = export(tmp_path / "record", form, f"out.{suffix}")
    if form == "parquet":
        (row,) = pq.read_table(file).to_pylist()
        assert row["seed"] == 2**53 + 1
        text = json.dumps([[step["arguments"], step["structured_content"]] for step in row["steps"]])
    else:
        text = file.read_text()
    for number in large:
        assert str(number) in text and str(2 * number) in text
