"""``mcpenv card``: figures that are measured, faults that it finds, and its age."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from evaluate_endpoint import Answer, Endpoint, called, said

from mcpenv import TaskSet
from mcpenv.cli import execute
from mcpenv.extensions.card.counting import count
from mcpenv.extensions.card.fingerprint import BEGIN, END, FORMAT, fingerprint_of, stale
from mcpenv.extensions.card.measure import Extent, hash_of, measure
from mcpenv.extensions.card.pages import html, markdown
from mcpenv.extensions.card.plays import Step
from mcpenv.targets.target import load_target

ENVS = Path(__file__).resolve().parents[3] / "envs"
LAMPS = Path(__file__).with_name("lamps.py")
SMALL = Extent(tasks=4, validated=2, looked_at=40, learning=80)


@contextmanager
def quiet(name: str, steps: int) -> Iterator[Step]:
    yield lambda: None


def card_of(target: str, extent: Extent = SMALL) -> dict[str, Any]:
    return measure(load_target(target), target, extent, None, quiet)


@pytest.fixture(scope="module")
def lamps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lamps")
    shutil.copy(LAMPS, folder / "lamp_world.py")
    return card_of(str(folder / "lamp_world.py:Lamps"))


def ledger(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the ledger, with other text in some of its files."""
    shutil.copytree(ENVS / "ledger_mcp", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    return folder


def test_a_card_has_the_tasks_with_their_labels_licence_and_version(lamps: dict[str, Any]) -> None:
    assert lamps["environment"] == {"name": "lamps", "version": "2.1.0", "description": "Lamps of a house."}
    tasks = lamps["tasks"]
    assert (tasks["number"], tasks["licence"]) == (88, "MIT")
    assert re.fullmatch(r"[0-9a-f]{16}", tasks["version"])
    splits = {each["split"]: each for each in tasks["splits"]}
    assert splits["train"]["levels"] == {"1": 20, "2": 20}
    assert splits["train"]["families"] == 2
    assert splits["train"]["with_solution"] == splits["train"]["looked_at"] == 40
    assert [splits[split]["with_canary"] for split in splits] == [0, 0, 8]


def test_all_tasks_are_counted_and_of_composed_ones_the_families_of_their_goals(lamps: dict[str, Any]) -> None:
    def task(rng: Any, index: int) -> dict[str, Any]:
        composed = {"families": ["one", f"goal {index}"]} if index else {}
        return {"prompt": f"number {index}", "level": 1 + index % 2, "family": "several", "metadata": composed}

    tasks = TaskSet.generate(task, seed=1, sizes={"train": 250})
    every = count(tasks, "train", None, lambda: None).to_plain("train")
    assert (every["looked_at"], every["levels"], every["families"]) == (250, {"1": 125, "2": 125}, 251)
    few = count(tasks, "train", 6, lambda: None).to_plain("train")
    assert (few["tasks"], few["looked_at"], few["families"]) == (250, 6, 7)
    assert "of the first" not in markdown(lamps)
    cut = markdown({**lamps, "tasks": {**lamps["tasks"], "splits": [few]}})
    assert "| train | 250 | 1 to 2 | 7 |" in cut and "are those of the first 6 of each split" in cut


def test_agents_of_known_strength_stand_in_their_order(lamps: dict[str, Any]) -> None:
    agents = lamps["difficulty"]["agents"]
    assert [*agents] == ["idle", "random", "40% mistakes", "20% mistakes", "5% mistakes", "solution"]
    assert (agents["idle"]["solved"], agents["solution"]["solved"]) == (0.0, 1.0)
    assert agents["solution"]["by_level"] == {"1": 1.0, "2": 1.0}
    assert agents["40% mistakes"]["solved"] <= agents["5% mistakes"]["solved"]
    assert 0 < agents["solution"]["interval"][0] < 1 == agents["solution"]["interval"][1]


def test_a_table_learns_the_tools_of_families_and_is_measured_on_other_tasks(lamps: dict[str, Any]) -> None:
    learned = lamps["learnability"]
    assert (learned["level"], learned["families"], learned["words"]) == (1, ["switch", "dim"], 3)
    assert (learned["tasks"], learned["unseen_tasks"]) == (10, 10)
    assert learned["before"] < learned["after"] == 1.0


def test_solutions_by_heart_do_not_solve_variants(lamps: dict[str, Any]) -> None:
    contamination = lamps["contamination"]
    assert contamination["variants"] == ["train_variants"]
    assert contamination["canary"] == {"train": 0.0, "train_variants": 0.0, "test": 1.0}
    (beside,) = contamination["beside"]
    assert (beside["agent"], beside["original"], beside["variant"]) == ("20% mistakes", "train", "train_variants")
    one, other = beside["of_originals"], beside["of_variants"]
    assert one["tasks"] == other["tasks"] == lamps["difficulty"]["tasks"] and 0 < one["solved"] <= 1
    assert one["solved"] == other["solved"]  # the same calls go wrong
    shown = f"| 20% mistakes | train | {one['tasks']} | {one['solved']:.2f} ("
    assert shown in markdown(lamps) and "<td>train</td>" in html(lamps)
    variants, test = contamination["by_heart"]
    assert (variants["known"], variants["played"], variants["solved"]) == ("train", "train_variants", 0.0)
    assert (test["known"], test["played"], test["variants"]) == ("train", "test", False)


def test_a_card_is_reproduced_but_for_its_cost_and_its_hash_covers_all_of_it(
    lamps: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copy(LAMPS, tmp_path / "lamp_world_again.py")
    again = card_of(str(tmp_path / "lamp_world_again.py:Lamps"))
    for part in ("tasks", "difficulty", "learnability", "contamination", "determinism", "findings"):
        assert again[part] == lamps[part], part
    assert lamps["determinism"]["differing"] == lamps["findings"] == []
    assert lamps["soundness"]["sound"]
    assert lamps["hash"] == hash_of(lamps) != hash_of({**lamps, "mcpenv": "0"})


def test_the_pages_have_the_same_figures(lamps: dict[str, Any]) -> None:
    text, page = markdown(lamps), html(lamps)
    assert text.startswith("# Card of lamps 2.1.0\n\nLamps of a house.\n")
    assert "| solution | 1.00 | 0.51 to 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert (
        "<h1>Card of lamps 2.1.0</h1>" in page and '<th scope="row">solution</th><td class="number">1.00</td>' in page
    )
    for shown in (text, page):
        assert lamps["hash"] in shown and lamps["fingerprint"] in shown
        assert "A rate by level is of some 2 tasks only, so that small differences between levels are noise." in shown
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert {len(line.split(" | ")) for line in text.splitlines() if line.startswith("| fingerprint")} == {2}


def test_a_card_of_all_tasks_is_sound_and_a_part_that_ran_in_part_is_not_just_ok(lamps: dict[str, Any]) -> None:
    soundness = lamps["soundness"]
    whole = {**lamps, "soundness": {**soundness, "tasks_played": soundness["tasks"]}}
    assert "## Soundness: sound\n" in markdown(whole) and "| load | ok | " in markdown(whole)
    parts = [{**part, "in_part": part["part"] == "load"} for part in soundness["parts"]]
    cut = markdown({**lamps, "soundness": {**soundness, "sound": False, "parts": parts}})
    assert "## Soundness: not known to be sound\n" in cut and "| load | ok, in part | " in cut


def test_texts_of_an_environment_are_not_markup(lamps: dict[str, Any]) -> None:
    nasty = "a | b <script>x</script> [y](z)\n# __init__ is_it"
    changed = {**lamps, "environment": {**lamps["environment"], "description": nasty}, "findings": [nasty]}
    text, page = markdown(changed), html(changed)
    assert r"a \| b \<script\>x\</script\> \[y\](z) # \_\_init\_\_ is_it" in text
    assert "&lt;script&gt;" in page and "<script" not in page


FAULTS = {
    "a verifier that pays for nothing": (
        ("tasks.jsonl", '"expect_exactly"', '"expect_only"'),
        [
            r"difficulty: an agent that does nothing solves 100% of the tasks",
            r"tasks: .*doing nothing scores 1, which is full",
        ],
    ),
    "a reset that leaves rows of the episode before": (
        ("environment.py", '("accounts", "transfers", "holds", "reports")', '("accounts", "holds")'),
        [r"determinism: \d tasks? played twice differ", r"difficulty: the solutions solve \d+% of their tasks"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_put_into_an_environment_is_a_finding_of_its_card(fault: str, tmp_path: Path) -> None:
    change, wanted = FAULTS[fault]
    card = card_of(str(ledger(tmp_path / "ledger_copy", change)))
    for pattern in wanted:
        assert any(re.match(pattern, finding) for finding in card["findings"]), card["findings"]
        assert re.search(pattern.partition(":")[0], markdown(card))
    assert not card["soundness"]["sound"]
    assert "## Soundness: unsound" in markdown(card)


def test_the_same_environment_without_a_fault_has_no_finding(tmp_path: Path) -> None:
    card = card_of(str(ledger(tmp_path / "ledger_copy")))
    assert card["findings"] == []
    assert (card["soundness"]["tasks_played"], card["soundness"]["tasks"]) == (2, 22)
    said = "Soundness: sound in the 2 of 22 tasks that were played"
    assert f"## {said}\n" in markdown(card) and f"<h2>{said}</h2>" in html(card)
    assert str(tmp_path) not in json.dumps(card)


# -- the command


def test_a_card_in_a_readme_is_older_after_the_environment_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ledger(tmp_path / "ledger_copy")
    before = (folder / "README.md").read_text().partition(BEGIN)[0].strip()
    (folder / "README.md").write_text(before)
    check = ["card", str(folder), "--check"]
    assert execute(check) == 1
    assert "it has no card" in capsys.readouterr().err
    assert execute(["card", str(folder), "--readme", "-n", "2", "--quick"]) == 0
    text = (folder / "README.md").read_text()
    assert text.startswith(before) and text.count(BEGIN) == text.count(END) == 1
    assert "## Card of ledger 1.0.0" in text and "### Difficulty" in text
    assert execute(check) == 0

    (folder / "README.md").write_text(text + "\nMore words.\n")
    assert execute(check) == 0
    tasks = folder / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("850.00", "849.00", 1))
    capsys.readouterr()
    assert execute(check) == 1
    assert "the card is older than the files of" in capsys.readouterr().err


def test_a_card_is_written_to_a_file_in_the_format_of_its_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(LAMPS, tmp_path / "lamps_in_files.py")
    target, file = str(tmp_path / "lamps_in_files.py:Lamps"), tmp_path / "card.json"
    assert execute(["card", target, "--quick", "-n", "2", "--out", str(file), "--json"]) == 0
    assert json.loads(file.read_text()) == json.loads(capsys.readouterr().out)
    assert execute(["card", target, "--check", "--out", str(file)]) == 0
    (tmp_path / "another.py").write_text("")
    assert execute(["card", target, "--check", "--out", str(file)]) == 1


class LampModel(Endpoint):
    """A model that switches the first lamp of its prompt, and no other."""

    def _answer(self, path: str, key: str | None, body: dict[str, Any]) -> Answer:
        with self._mutex:
            self.asked.append(body)
            self.keys.append(key)
        prompt = next(message["content"] for message in body["messages"] if message["role"] == "user")
        if body["messages"][-1]["role"] == "tool":
            return said("Done.")
        kind, room = re.fullmatch(r"(\w+) the lamps of (\w+).*", prompt, re.DOTALL).groups()  # type: ignore[union-attr]
        return called((kind.lower(), {"room": room}))


def test_a_model_at_an_endpoint_plays_the_tasks_that_the_other_agents_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All tasks of level 1 come before those of level 2.
    (tmp_path / "lamps_of_a_model.py").write_text(LAMPS.read_text().replace("1 + index % 2", "1 + index // 20"))
    target, file = str(tmp_path / "lamps_of_a_model.py:Lamps"), tmp_path / "card.json"
    monkeypatch.setenv("KEY_OF_LAMPS", "a secret")
    with closing(LampModel()) as model:
        options = ["--model", "lamp-model", "--base-url", model.url, "--api-key-env", "KEY_OF_LAMPS"]
        assert execute(["card", target, "--quick", "-n", "4", "--out", str(file), *options]) == 0
    text = file.read_text()
    figures = json.loads(text)["difficulty"]["agents"]["model"]
    assert figures["agent"]["model"] == "lamp-model" and "a secret" not in text
    assert (figures["tasks"], figures["solved"], figures["failures"]) == (4, 0.5, 0)
    assert figures["by_level"] == {"1": 1.0, "2": 0.0}
    # It has learned nothing by heart, so that it solves as many variants, which are played once more.
    _, beside = json.loads(text)["contamination"]["beside"]
    assert (beside["agent"], beside["original"], beside["variant"]) == ("model", "train", "train_variants")
    assert [beside[which]["solved"] for which in ("of_originals", "of_variants")] == [0.5, 0.5]
    assert len(model.asked) == 16 and set(model.keys) == {"Bearer a secret"}
    assert {tool["function"]["name"] for tool in model.asked[0]["tools"]} == {"switch", "dim", "look"}


def test_an_environment_without_tasks_says_what_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    execute(["card", str(ENVS / "echo_mcp"), "--quick"])
    text = capsys.readouterr().out
    for heading in ("## Tasks", "## Difficulty", "## Learnability", "## Contamination"):
        assert f"{heading}\n\nNot measured: the environment has no tasks." in text


def test_wrong_options_are_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["card", "no_such_environment", "--check"]) == 2
    assert execute(["card", str(ENVS / "echo_mcp"), "-n", "0"]) == 2
    assert "-n is 0; it must be 1 or more" in capsys.readouterr().err
    for name in ("card.txt", "card", ".md"):
        assert execute(["card", str(ENVS / "echo_mcp"), "--out", str(tmp_path / name)]) == 2
        assert "its suffix names no format; write .md or .html or .json, or give --format" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def test_the_fingerprint_counts_files_that_episodes_depend_on(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text("a = 1\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "one.py").write_text("b = 1\n")
    first = fingerprint_of(tmp_path)
    for name in ("README.md", "ladder.svg", ".hidden", "tools/__pycache__/one.pyc", "card.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert fingerprint_of(tmp_path) == first
    (tmp_path / "tools" / "one.py").rename(tmp_path / "tools" / "two.py")
    assert fingerprint_of(tmp_path) != first
    assert stale(tmp_path, tmp_path / "nowhere.md") is not None


def test_a_card_that_says_less_than_one_of_today_is_stale(tmp_path: Path, lamps: dict[str, Any]) -> None:
    (tmp_path / "environment.py").write_text("a = 1\n")
    new = {**lamps, "fingerprint": fingerprint_of(tmp_path)}
    for made, reason in [
        (markdown(new), None),
        (json.dumps(new), None),
        (html(new), None),
        (markdown({**new, "format": FORMAT - 1}), f"the card has format {FORMAT - 1}, and cards have format {FORMAT}"),
        (markdown(new).replace("| format |", "| |"), "the card has format 1,"),
        (markdown(new).replace("| durability |", "| |"), "the card lacks these parts of validation: durability"),
        (markdown(new).replace("| tasks | ok", "| | ok"), "the card lacks these parts of validation: tasks"),
        (html(new).replace(">tasks</th><td>ok", "></th><td>ok"), "the card lacks these parts of validation: tasks"),
        (json.dumps(new).replace('"load"', '"lode"'), "the card lacks these parts of validation: load"),
        (html(new).replace(">cheats<", "><"), "the card lacks these parts of validation: cheats"),
    ]:
        (tmp_path / "card.md").write_text(made)
        found = stale(tmp_path, tmp_path / "card.md")
        assert found is None if reason is None else reason in str(found)
