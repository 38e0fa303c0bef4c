"""Episodes as one HTML file: it says all that the record has, runs nothing, and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from attacked_record import attacked
from command_line import Cli, command_lines
from exported import export, record
from record_worlds import Dice

from mcpenv import Recorder
from mcpenv.extensions.exports.page import contents, episode_page
from mcpenv.extensions.exports.page.changes import ABSENT, Change, changes
from mcpenv.extensions.exports.page.markup import html_of
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv.trajectories.blobs import FOLDER
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnUsage
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory

TAGS = {"html", "head", "meta", "title", "style", "body", "main", "article", "section", "h1", "h2", "h3", "p", "a"}
TAGS |= {"dl", "dt", "dd", "div", "span", "code", "pre", "details", "summary", "ul", "li", "img", "audio"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "meter", "time"}
ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "id", "href", "src", "alt", "loading"}
ATTRIBUTES |= {"controls", "open", "scope", "tabindex", "role", "aria-label", "value", "min", "max", "datetime"}
SOURCE = re.compile(r"data:(image/(png|svg\+xml)|audio/wav);base64,[A-Za-z0-9+/]*={0,2}")


class Page(HTMLParser):
    """The page as a parser of the standard library reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_style = False
        self.style = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.style += data
        else:
            self.text += data

    def ids(self) -> list[str]:
        return [found for _, attributes in self.tags if (found := attributes.get("id")) is not None]

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.tags if tag == "a"]

    def check(self) -> None:
        """Nothing but the elements that mcpenv makes: no script, no handler, no address."""
        for tag, attributes in self.tags:
            assert tag in TAGS, tag
            assert attributes.keys() <= ATTRIBUTES, attributes
            assert tag == "a" or "href" not in attributes
            assert str(attributes.get("href", "#")).startswith("#")
            assert "src" not in attributes or SOURCE.fullmatch(str(attributes["src"])), attributes["src"]
        assert len(set(self.ids())) == len(self.ids())
        assert {link[1:] for link in self.links()} <= set(self.ids())


def page_of(folder: Path, *options: str) -> Page:
    return Page(export(folder, "html", "page.html", *options).read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "record")
    return tmp_path / "record"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


DEEP: Any = "the end"
for _ in range(60):
    DEEP = [DEEP, "x" * 70]


@pytest.mark.parametrize(
    "value",
    [
        {"rows": [{"name": "Ann <b>", "text": 'she said "no: 7", twice', "at": -1.5e-7, "on": None}] * 3, "": {}},
        [["a: ", "b"] * 20, "true " * 20, 12345678901234567890, {"key: ": [False, True] * 20}],
        DEEP,
        "one short text",
    ],
)
def test_long_json_folds_and_says_all(value: Any) -> None:
    page = Page(re.sub('<span class="muted">.*?</span>', "", html_of(contents.json_of(value))))  # how many are inside
    assert json.loads(page.text) == value


def test_of_long_json_what_is_large_is_folded_at_first() -> None:
    page = Page(html_of(contents.json_of({"small": ["x" * 30] * 3, "large": ["x" * 30] * 100})))
    assert [dict(attributes) for tag, attributes in page.tags if tag == "details"] == [{"open": ""}, {"open": ""}, {}]
    assert [tag for tag, _ in Page(html_of(contents.json_of(["x" * 30] * 5_000))).tags] == ["pre"]


def test_nothing_that_a_record_has_is_markup(tmp_path: Path) -> None:
    text = episode_page(attacked(tmp_path))
    page = Page(text)
    page.check()
    assert page.text.count("<img src=x onerror=") > 10
    assert not re.search(r"<(script|a|object|embed|iframe|link|base|form)\b", text, re.IGNORECASE)


def test_the_policy_allows_the_page_its_own_style_and_nothing_else(folder: Path) -> None:
    page = page_of(folder)
    page.check()
    (policy,) = (str(found["content"]) for _, found in page.tags if found.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert "script" not in policy and "http" not in policy
    assert "url(" not in page.style and "@import" not in page.style


def test_a_page_has_each_step_with_call_result_reward_and_status(folder: Path) -> None:
    text = page_of(folder, "--id", "bare").text
    for wanted in (
        "test/low-1",
        "level 2, aims, low",
        "Stay low.",
        '{"times": 2}',
        "not with these dice",
        "agent_error, stage tool",
    ):
        assert wanted in text
    assert "reward 0.5 (effort 0.5)" in text and "terminated: enough" in text
    assert "Changed since the reset" in text


def test_a_model_s_turns_stand_where_its_steps_are(folder: Path) -> None:
    text = page_of(folder, "--id", "played").text
    places = [text.index(each) for each in ("You play with dice.", "Two at once.", "1. say", "2. refuse", "I give up.")]
    assert places == sorted(places)
    assert "Answer to the model" not in text, "what the model read is what the steps returned"


def test_requests_to_a_model_stand_before_the_steps_that_they_made(tmp_path: Path) -> None:
    steps = [
        StepRecord(ToolCall("add", {"by": number}, number), ToolOutcome.returned("done", 0.1), started_at=10.0 + number)
        for number in (1, 2)
    ]
    turns = [
        ModelTurn("messages", "/v1/messages", {}, status=200, answer={"said": "<b>first</b>"}, started_at=10.5),
        ModelTurn("messages", "/v1/messages", {}, error="it hung up", started_at=11.5, model="m-2"),
    ]
    for turn, step in zip(turns, (1, 2), strict=True):
        turn.calls, turn.usage = [TurnCall("a", "mcp__env__add", {"by": step}, step)], TurnUsage(1234, 5)
    with Recorder(tmp_path) as recorder:
        trajectory = Trajectory("e1", steps=steps)
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=turns))
    page = page_of(tmp_path, "--id", "e1")
    wanted = (
        "Model, turn 0",
        "1234 tokens in, 5 out",
        "<b>first</b>",
        "mcp__env__add",
        "(step 1)",
        "1. add",
        "it hung up",
        "2. add",
    )
    places = [page.text.index(each) for each in wanted]
    assert places == sorted(places)
    assert "b" not in {tag for tag, _ in page.tags}


def test_many_episodes_have_an_overview_that_links_to_each(folder: Path) -> None:
    page = page_of(folder)
    assert page.links() == ["#episode-1", "#episode-2", "#episode-3"]
    assert "episode-3-step-2" in page.ids()
    assert "mean 0, median -0.5, -0.5 to 1" in page.text


def test_no_episode_is_a_page_that_says_so(folder: Path, cli: Cli) -> None:
    done = cli("trajectories", "export", str(folder), "--format", "html", "--id", "none")
    assert done.status == 0 and "No episode" in Page(done.out).text and "0 episodes" in done.err


def test_texts_and_images_are_bounded_and_what_is_left_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_TEXT", 10)
    monkeypatch.setattr(contents, "MAX_FILE", 100)
    episode = attacked(tmp_path)
    page = Page(episode_page(episode))
    page.check()
    assert "more characters are left out" in page.text
    assert "is larger than a file of the page" in page.text


def test_a_page_has_only_so_much_room_for_all_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_FILES", 100)
    assert "what is left of the page's room" in Page(episode_page(attacked(tmp_path))).text


def test_an_image_whose_file_is_a_link_out_of_the_record_is_not_in_the_page(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    blobs = tmp_path / "record" / FOLDER
    blobs.mkdir(parents=True)
    name = f"{'a' * 64}.png"
    (blobs / name).symlink_to(secret)
    env: Any = Dice()
    env.reset(episode_id="linked")
    env.call_tool("say", {"text": "here"})
    env.end()
    trajectory = env.trajectory
    assert trajectory is not None
    trajectory.observation = {"screen": {"type": "image", "mimeType": "image/png", "blob": name}}
    with Recorder(tmp_path / "record") as recorder:
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("Dice")))
    with serving(Dice, ServerConfig(record=tmp_path / "record")) as url:
        answer = httpx.get(f"{url}/records/linked/page.html")
    assert answer.status_code == 200 and name in answer.text
    assert base64.b64encode(b"not yours").decode() not in answer.text


def test_a_server_gives_an_episode_of_its_record_as_a_file(tmp_path: Path) -> None:
    record(tmp_path)
    with serving(Dice, ServerConfig(record=tmp_path, control_token="secret-token")) as url:
        assert httpx.get(f"{url}/records/played/page.html").status_code == 401
        headers = {"Authorization": "Bearer secret-token"}
        answer = httpx.get(f"{url}/records/played/page.html", headers=headers)
        assert httpx.get(f"{url}/records/nothing/page.html", headers=headers).status_code == 404
    assert answer.headers["content-disposition"] == 'attachment; filename="episode-played.html"'
    assert "sandbox" in answer.headers["content-security-policy"]
    Page(answer.text).check()
    assert "I give up." in answer.text


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 3, 4], "c": None}, "b.1 b.2 c a"),
        (1, True, ""),
        ({"a": 1.0}, {"a": 1}, None),
        ([], {}, ""),
    ],
)
def test_changes_are_named_by_their_path(before: Any, after: Any, found: str | None) -> None:
    paths = [change.path for change in changes(before, after)]
    assert paths == ([] if found is None else found.split() or [""])


def test_a_side_that_is_not_there_is_not_null() -> None:
    assert list(changes({}, {"a": None})) == [Change("a", ABSENT, None)]
