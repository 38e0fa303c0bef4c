"""The pages that watch sessions and read records, in Debian's Chromium, against a served world that records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import started
from console_world import ATTACK
from evaluate_world import Counting
from fastmcp import Client
from record_worlds import Dice, Heard, Shout

from mcpenv import Action, MCPEnvironment, ToolError
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client import EnvClient, Status, StatusCode, StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.records import Fork, Reward, Trajectory

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from visitor import WAIT_S, Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

MANY = 10_000
NOTICE = "//*[@id='notice']"


class Reader:
    """A visitor of one server's console."""

    def __init__(self, url: str, visitor: Visitor) -> None:
        self.url = url
        self.visitor = visitor
        self.browser = visitor.browser
        self.find, self.press, self.see, self.offline = visitor.find, visitor.press, visitor.read, visitor.offline

    def open(self, page: str) -> None:
        self.visitor.open(self.url, page)

    def steps(self) -> list[str]:
        return [str(each.get_property("textContent")) for each in self.visitor.all(".steps > li strong")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        yield visitor


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def reader(record: Path, browser: Visitor) -> Iterator[Reader]:
    browser.offline(False)
    browser.width(1280)
    with serving(Dice, ServerConfig(record=record), max_concurrent_envs=4) as url:
        yield Reader(url, browser)


def played(url: str, *texts: str) -> str:
    """Play an episode that says the texts, and return its id."""
    with EnvClient(url).sync() as env:
        episode = str(env.reset(seed=1).info["episode_id"])
        for text in texts:
            env.call_tool("say", {"text": text})
    return episode


def test_a_session_is_watched_while_its_agent_steps(reader: Reader) -> None:
    reader.open("live")
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1000)
        env.call_tool("roll")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("1. roll")
        for _ in range(3):
            env.call_tool("roll")
        reader.see("4. roll")
        assert reader.steps() == [f"{number}. roll" for number in range(1, 5)]
    reader.see("The session is over.")


def test_a_watched_episode_has_its_prompt_and_an_outline(browser: Visitor) -> None:
    browser.width(1280)
    with serving(Counting, ServerConfig()) as url, EnvClient(url).sync() as env:
        for _ in range(2):
            env.reset(task="solve")
        env.call_tool("add", {"by": 1})
        browser.open(url, "live")
        browser.find("//a[starts-with(@id, 'session-')]").click()
        browser.see("solve: count to 2 (solve).", "//section[@aria-label='Task']")
        for number in (2, 3):
            env.call_tool("add", {"by": 0})
            browser.see(f"{number}. add", "//*[@aria-label='Outline']")
        browser.find("//*[@aria-label='Outline']//button[.='2. add']").click()
        browser.find("//li[@data-step='2' and @aria-current='step']")
        env.reset(task="miss")
        browser.see("miss: ", "//section[@aria-label='Task']")
        assert browser.all("[aria-label='Outline'] button") == []


def test_a_lost_stream_goes_on_where_it_was(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1000)
        env.call_tool("roll")
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("1. roll")
        reader.offline(True)
        reader.browser.execute_script("window.stop()")  # a browser keeps the streams that are open
        reader.see("Connection lost")
        env.call_tool("say", {"text": "meanwhile"})
        reader.offline(False)
        reader.see("2. say")
        reader.see("Connected again")
        assert reader.steps() == ["1. roll", "2. say"]


def test_a_session_is_cancelled_after_a_question(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1)
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("Live")
        reader.press("Cancel the session")
        WebDriverWait(reader.browser, WAIT_S).until(lambda browser: browser.switch_to.alert).accept()
        reader.see("The session is over.")


class Waiting(MCPEnvironment):
    """Wait for ever."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    waits = threading.Event()

    def __init__(self) -> None:
        @self.tool
        async def wait() -> str:
            """Wait."""
            self.waits.set()
            return await asyncio.Future[str]()


def test_an_agent_whose_session_is_cancelled_during_a_call_is_told_and_the_server_goes_on(browser: Visitor) -> None:
    async def play(address: str) -> list[str]:
        async with Client(address) as agent:
            answers = [await agent.call_tool("wait", raise_on_error=False) for _ in range(2)]
        return [str(each.content[0].text) for each in answers if each.is_error]

    browser.offline(False)
    with serving(Waiting, max_concurrent_envs=1) as url, EnvClient(url).sync() as env, ThreadPoolExecutor(1) as pool:
        played = pool.submit(asyncio.run, play(env.reset().info["mcp_url"]))
        assert Waiting.waits.wait(WAIT_S)
        reader = Reader(url, browser)
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("Live")
        reader.press("Cancel the session")
        WebDriverWait(browser.browser, WAIT_S).until(lambda page: page.switch_to.alert).accept()
        reader.see("The session is over.")
        assert played.result(WAIT_S) == ["This session is over.", "The episode is over."]
        assert env.reset().info["episode_id"]


def test_a_session_is_paused_and_goes_on_when_it_is_resumed(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1000)
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.press("Pause")
        reader.find("//button[starts-with(., 'Resume')]")
        with ThreadPoolExecutor(1) as pool:
            step = pool.submit(env.call_tool, "roll")
            with pytest.raises(TimeoutError):
                step.result(0.5)
            reader.find("//button[starts-with(., 'Resume')]").click()
            assert step.result(WAIT_S).error is None
        reader.see("1. roll")


def test_a_person_and_the_address_branch_from_any_step_of_a_record(record: Path, reader: Reader) -> None:
    def branch_at(page: str, step: int) -> str:
        reader.open(page)
        link = f"//a[.='Branch here'][contains(@href, 'steps={step}')]"
        reader.browser.execute_script("arguments[0].click()", reader.find(link))
        reader.visitor.until(lambda _: "play?record=" in reader.browser.current_url)
        reader.see(f"after step {step}")
        return str(reader.browser.execute_script("return location.hash"))

    def history() -> list[str]:
        return [each.text for each in reader.visitor.all("[aria-label=History] li > button:first-child") if each.text]

    with EnvClient(reader.url).sync() as env:
        episode = str(env.reset(seed=1, target=9).info["episode_id"])
        env.call_tool("say", {"text": "one"})
        env.step({"type": "shout", "text": "two"})
        env.call_tool("picture")
        while not env.call_tool("roll").done:
            pass
        last = len(env.trajectory().steps)
    address = branch_at(f"records/{episode}", 3)
    assert history() == ["1. say", "2. shout: 0.5", "3. picture: 0.5"]
    reader.visitor.see("3 calls came out as recorded.", NOTICE)
    assert len(reader.visitor.all("[aria-label=Result] img[src^='data:image/png']")) == 1
    reader.press("roll")
    reader.visitor.call()
    reader.visitor.see("4. roll")
    reader.browser.refresh()  # the episode goes on, and is not begun again
    reader.visitor.see("The episode goes on where this page was left.", NOTICE)
    assert reader.browser.execute_script("return location.hash") == address
    for left in ("3. picture: 0.5", "2. shout: 0.5"):  # by a snapshot, then by the record
        reader.press("Undo")
        reader.visitor.until(lambda _, left=left: history()[-1] == left)
    assert reader.browser.execute_script("return location.hash").endswith("steps=2")
    reader.press("End")
    reader.see("The episode is over")
    reader.visitor.begin_anew(reader.url)
    wanted = {"where": f'parent = "{episode}"', "sort": "parent_step"}
    row, *undone = httpx.get(f"{reader.url}/records", params=wanted).json()["rows"]
    assert row["parent_step"] == 2 and {each["parent_step"] for each in undone} == {3}
    branch_at(f"records/{row['place']}", 0)  # of a branch
    assert history() == []
    branch_at(f"records/{episode}?with={row['place']}", 1)
    assert history() == ["1. say"]
    reader.visitor.offline(True)
    reader.press("Undo")  # by the record, which cannot be read
    reader.visitor.see("Not undone: ", NOTICE)
    reader.visitor.offline(False)
    reader.open(f"records/{episode}?step={last}")
    reader.find(f"//li[@data-step='{last}']//a[.='Branch here']").send_keys(Keys.ENTER)
    told = f"The episode is over after step {last}. This is the step before it, and the form has its call."
    reader.visitor.see(told, NOTICE)
    reader.visitor.call()
    reader.visitor.see(f"{last}. roll")
    reader.see("terminated")


def test_a_family_of_many_branches_is_a_tree_that_leads_to_episodes_and_steps(record: Path, reader: Reader) -> None:
    def write(name: str, steps: int, worth: float, parent: str | None = None, at: int = 0) -> None:
        made = [StepRecord(ToolCall("roll", {}, step=n + 1), ToolOutcome(), None) for n in range(steps)]
        origin = None if parent is None else Fork(parent, at)
        recorder.write(
            RecordedEpisode(
                Trajectory(name, steps=made, end_reward=Reward(worth), total_reward=worth, forked_from=origin),
                RecordedEnvironment("dice"),
            )
        )

    with Recorder(record) as recorder:
        write("root", 40, 0.5)
        for number in range(64):
            write(f"branch-{number}", 41 + number % 7, number / 64, "root", number % 38 + 1)
        write("inner", 44, 2.0, "branch-9", 30)
    tree = "//*[@aria-label='Tree of branches']"
    for width, theme in ((390, "dark"), (768, "light"), (1440, "light")):
        reader.visitor.width(width)
        reader.visitor.theme(theme)
        reader.open("records/branch-9")
        assert reader.find(f"{tree}//*[@aria-current='true']//a").get_attribute("title") == "branch-9"
        assert len(reader.visitor.all(".tree li li")) == 65 and len(reader.visitor.all(".tree li li li")) == 1
        assert reader.find(tree).size["height"] < 500
        assert reader.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert reader.visitor.serious_findings() == []
    reader.find(f"{tree}//*[@aria-label='Step 30 of branch-9, where it leaves']").send_keys(Keys.ENTER)
    reader.find("//li[@aria-current='step'][@data-step='30']")
    reader.find(f"{tree}//a[@title='root']").send_keys(Keys.ENTER)
    reader.find("//h1[contains(., 'root')]")


class Moody(Dice):
    """Answers otherwise in each session."""

    sessions = 0

    def __init__(self) -> None:
        super().__init__()
        Moody.sessions += 1
        self.mood = Moody.sessions

        @self.tool
        def ask() -> str:
            """Answer in every second session."""
            if self.mood % 2:
                raise ToolError("not now")
            return "yes"

    def act(self, action: Action) -> Heard:
        assert isinstance(action, Shout)
        return Heard(echo=f"{action.text} {self.mood}")


def test_a_branch_is_refused_with_the_first_difference_and_plays_up_to_it(record: Path, browser: Visitor) -> None:
    def record_of(*steps: Any) -> str:
        with EnvClient(url).sync() as env:
            episode = str(env.reset(seed=2**60, target=1000).info["episode_id"])
            for step in steps:
                env.step(step)
        return episode

    call = {"type": "call_tool", "arguments": {}}
    same = [call | {"tool_name": name} for name in ("roll", "refuse", "crash", "picture")]
    with serving(Moody, ServerConfig(record=record), max_concurrent_envs=4) as url:
        browser.offline(False)
        browser.open(url, f"play?record={record_of(*same)}&steps=4")
        browser.see("4 calls came out as recorded.", NOTICE)
        browser.find("//summary[.='The same as code']").click()
        for name in ("Python", "curl"):
            code = browser.find(f"//pre[@aria-label='{name}']").text
            assert f'"seed":{2**60}' in code.replace(" ", "").replace("'", '"') and "whole" not in code
        browser.press("End")
        browser.see("The episode is over")
        for differing in ({"type": "shout", "text": "x"}, call | {"tool_name": "ask"}):
            browser.open(url, f"play?record={record_of(same[0], differing, same[0])}&steps=3")
            browser.read("step 2 differs in")
            table = browser.find("//*[@aria-label='Changes']//tbody/tr")
            assert len({each.text for each in table.find_elements(By.CSS_SELECTOR, "td")}) == 2
            browser.press("Play 2 calls again")
            browser.see("2 of 2 calls were made again.", NOTICE)
            browser.press("End")
            browser.see("The episode is over")


def test_a_record_without_its_first_steps_is_not_played_again(record: Path, reader: Reader) -> None:
    steps = [StepRecord(ToolCall("roll", {}, step=8), ToolOutcome(), None)]
    with Recorder(record) as recorder:
        recorder.write(RecordedEpisode(Trajectory("late", steps=steps, dropped=7), RecordedEnvironment("dice")))
    reader.open("records/late")
    reader.see("The first 7 steps of the episode were not kept.")
    reader.see("8. roll")
    assert not reader.visitor.all("main a[href^='#/play']")


def test_a_step_says_what_changed_since_the_same_was_asked(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        episode = env.reset(seed=1, target=1000).info["episode_id"]
        for name, arguments in (("roll", {}), ("say", {"text": "a"}), ("roll", {}), ("say", {"text": "a"})):
            env.call_tool(name, arguments)
        for text in "xy":
            env.step({"type": "shout", "text": text})
    reader.open(f"records/{episode}?step=6")
    for text in (
        "Changed since step 1: 1",
        "Unchanged since step 2.",
        "Changed since the reset",
        "Changed since step 5: 1",
    ):
        reader.see(text)


def test_the_newest_step_is_followed_until_the_reader_scrolls_up(reader: Reader) -> None:
    at_the_end = "return scrollY + innerHeight >= document.documentElement.scrollHeight - 60"
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=10_000)
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        for _ in range(40):
            env.call_tool("say", {"text": "more"})
        reader.see("40. say")
        reader.visitor.until(lambda page: page.execute_script(at_the_end))
        follow = reader.find("//button[.='Follow the newest step']")
        assert not follow.is_displayed()
        reader.browser.execute_script("scrollTo(0, 100)")
        reader.visitor.until(lambda _: follow.is_displayed())
        env.call_tool("roll")
        reader.see("step 41")
        assert reader.browser.execute_script("return scrollY") < 200
        follow.click()
        reader.see("41. roll")
        reader.visitor.until(lambda page: page.execute_script(at_the_end))
        assert not follow.is_displayed()


def test_a_session_is_watched_while_a_call_of_it_runs(browser: Visitor) -> None:
    async def play(address: str) -> None:
        async with Client(address) as agent:
            await agent.call_tool("wait")

    browser.offline(False)
    Waiting.waits.clear()
    with serving(Waiting) as url, EnvClient(url).sync() as env, ThreadPoolExecutor(1) as pool:
        playing = pool.submit(asyncio.run, play(env.reset().info["mcp_url"]))
        assert Waiting.waits.wait(WAIT_S)
        reader = Reader(url, browser)
        reader.open("live")
        reader.see("running, busy")
        session = f"{url}/sessions/{httpx.get(f'{url}/sessions').json()['sessions'][0]['session_id']}"
        httpx.post(f"{session}/pause", json={})
        reader.see("running, paused")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("Live")
        reader.see("running for")
        assert not playing.done()
        httpx.delete(session)
        with pytest.raises(Exception, match="This session is over"):
            playing.result(WAIT_S)


def test_keys_go_through_steps_that_differ_and_rows_of_lists(reader: Reader) -> None:
    def press(key: str, place: str, wanted: str) -> None:
        reader.browser.switch_to.active_element.send_keys(key)
        reader.visitor.until(lambda page: page.execute_script(f"return document.activeElement.{place}") == wanted)

    one, other = played(reader.url, *"axby"), played(reader.url, *"aqbz")
    reader.open(f"records/{one}?with={other}")
    reader.see("The first difference is at step 2.")
    for key, step in (("n", "2"), ("n", "4"), ("N", "2"), ("j", "3"), ("k", "2")):
        press(key, "dataset.step", step)
    reader.open("records")
    reader.see("2 episodes")
    for key, id in (("j", "episode-0"), ("j", "episode-1"), ("k", "episode-0"), ("/", "where")):
        press(key, "id", id)
    reader.open(f"records/{one}")
    reader.see("4 steps")
    press("/", "id", "find")


def test_the_command_shows_new_episodes_and_what_it_cannot_read(record: Path, reader: Reader, tmp_path: Path) -> None:
    played(reader.url, "one")
    with started(tmp_path, "console", record.name, "--port", "0") as command:
        watcher = Reader(command.wait_for(r"(http://127\.0\.0\.1:\d+)/console").group(1), reader.visitor)
        watcher.open("records")
        watcher.see("1 episode")
        played(reader.url, "two")
        (segment,) = record.glob("*.jsonl.gz")
        killed = record / segment.name.replace("000001", "000002")
        killed.write_bytes(segment.read_bytes()[:-20])
        watcher.press("Load again")
        watcher.see("1 part of the record cannot be shown")
        watcher.find("//summary[contains(., 'cannot be shown')]").click()
        watcher.see(killed.name)
        watcher.find("//a[starts-with(@id, 'episode-')]").click()
        watcher.see("1. say")
        assert not watcher.visitor.all("main a[href^='#/play']")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_no_serious_finding_on_a_page(reader: Reader, width: int, theme: str) -> None:
    reader.visitor.width(width)
    reader.visitor.theme(theme)
    one, other = played(reader.url, "same", "left"), played(reader.url, "same", "right")
    pages = {
        "live": "No session is open",
        "records": "2 episodes",
        f"records/{one}": "2. say",
        f"records/{one}?with={other}": "The first difference",
        "records/unknown": "No such episode",
        "nowhere": "No such page",
    }
    found = {}
    for page, text in pages.items():
        reader.open(page)
        reader.see(text)
        found[page] = reader.visitor.serious_findings()
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1000)
        env.call_tool("roll")
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("1. roll")
        found["a session"] = reader.visitor.serious_findings()
    assert not any(found.values()), found


def test_a_control_token_is_asked_for_and_stays_out_of_the_address(tmp_path: Path, browser: Visitor) -> None:
    with serving(Dice, ServerConfig(control_token="secret-token")) as url:
        browser.open(url, "live")
        browser.type("Control token", "wrong")
        browser.press("Sign in")
        browser.find("//p[@id='token-error'][contains(., 'token')]")
        assert browser.serious_findings() == []
        # One attempt a second is allowed.
        browser.until(lambda _: _signed_in(browser))
        browser.read("No session is open")
        assert "secret" not in browser.browser.current_url
        assert browser.browser.execute_script("return document.cookie + localStorage.length") == "0"
        browser.press("Sign out")
        browser.find("//label[.='Control token']")


def _signed_in(visitor: Visitor) -> bool:
    if not visitor.all("#token"):
        return True
    visitor.type("Control token", "secret-token")
    visitor.press("Sign in")
    return False


def test_ten_thousand_episodes_are_listed_by_few_rows_and_filtered(record: Path, reader: Reader) -> None:
    with Recorder(record) as recorder:
        for number in range(MANY):
            trajectory = Trajectory(f"episode-{number:05}", started_at=1e9 + number, ended_at=1e9 + number + 1)
            trajectory.status = Status(StatusCode.COMPLETED if number % 100 == 0 else StatusCode.CANCELLED)
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("dice")))
            if number % 200 == 0:
                recorder.flush()
    reader.open("records")
    reader.see("10,000 episodes")
    reader.see(f"episode-{MANY - 1:05}")
    assert len(reader.browser.find_elements(By.CSS_SELECTOR, ".window tbody tr")) < 100
    reader.browser.execute_script("const list = document.querySelector('.window'); list.scrollTop = list.scrollHeight")
    reader.see("episode-00000")
    reader.visitor.type("Condition", "status = completed\n")
    reader.see("100 episodes")
    assert reader.browser.execute_script("return location.hash") == "#/records?where=status+%3D+completed"


def test_the_first_difference_of_two_episodes_is_marked(reader: Reader) -> None:
    one, other = played(reader.url, "same", "left"), played(reader.url, "same", "right")
    reader.open(f"records/{one}?with={other}")
    reader.see("The first difference is at step 2.")
    found = reader.browser.find_elements(By.CSS_SELECTOR, ".steps > li > .verdict:first-child")
    verdicts = [each.text for each in found]
    assert verdicts == ["Step 1: equal", "Step 2: call and outcome differ. This is the first difference."]


def test_equal_episodes_are_told_to_be_equal(reader: Reader) -> None:
    one, other = played(reader.url, "same"), played(reader.url, "same")
    reader.open(f"records/{one}?with={other}")
    reader.see("The episodes are equal")


def test_nothing_that_a_record_has_is_run(reader: Reader) -> None:
    episode = played(reader.url, ATTACK)
    reader.open(f"records/{episode}?step=1")
    reader.see("onerror")
    assert not reader.visitor.attacked()


def test_text_is_found_in_steps_and_keys_go_through_them(reader: Reader) -> None:
    episode = played(reader.url, "one", "two", "three")
    reader.open(f"records/{episode}")
    reader.find("//input[@id='find']").send_keys("THREE\n")
    reader.see("1 of 1")
    assert reader.find("//li[@aria-current='step']").get_attribute("data-step") == "3"
    reader.browser.switch_to.active_element.send_keys("k")
    reader.find("//li[@aria-current='step'][@data-step='2']")


def test_the_list_says_how_many_episodes_it_hides_and_shows_them(record: Path, reader: Reader) -> None:
    def write(id: str, agent: str) -> None:
        trajectory = Trajectory(id, started_at=1e9, ended_at=1e9 + 1, status=Status(StatusCode.COMPLETED))
        with Recorder(record) as recorder:
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("dice"), agent={"name": agent}))

    write("mine", "console")
    reader.open("records")
    reader.see("0 episodes. Hidden: 1 played in the console.")
    assert "No episode" not in reader.find("//main").text
    write("other", "somebody")
    reader.press("Load again")
    reader.see("1 episode. Hidden: 1 played in the console.")
    reader.press("Show them")
    reader.see("2 episodes")
    assert reader.browser.execute_script("return location.hash") == "#/records?console=shown"
    assert "Hidden" not in reader.find("//p[@role='status']").text


def test_two_compared_episodes_have_their_ids_and_returns_above_their_steps(reader: Reader) -> None:
    said = played(reader.url, "same")
    with EnvClient(reader.url).sync() as env:
        rolled = str(env.reset(seed=1).info["episode_id"])
        env.call_tool("roll")
    # The list compares rows by their places, as an id may stand in a record twice.
    places = {row["id"]: row["place"] for row in httpx.get(f"{reader.url}/records").json()["rows"]}
    reader.open(f"records/{places[said]}?with={places[rolled]}")
    reader.see("The first difference")
    heads = [each.text.split("\n") for each in reader.visitor.all(".pair > div")]
    assert heads == [[said, "1 step, return \u2013"], [rolled, "1 step, return 0.5"]]
    lefts = [each.location["x"] for each in reader.visitor.all(".pair > div, .steps > li:first-child > div")]
    assert lefts == pytest.approx(lefts[2:] * 2, abs=5), "a heading stands above its column"
    assert reader.find("//table//th[2]").text == said
    reader.find(f"//a[.='{said}']").click()
    reader.see(f"Episode {said}")
    assert reader.find("//dt[.='Return']/following-sibling::dd").text == "not scored"


def test_the_reward_of_an_episode_is_explained_live_once_it_has_ended(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1)
        reader.open("live")
        reader.visitor.complaints()  # those of the tests before
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("running for")
        env.call_tool("roll")
        reader.see("over after")
        reader.find("//section[@aria-label='Why this reward']//meter[@aria-label='won']")
        assert reader.visitor.complaints() == []


def test_no_pause_is_offered_between_two_episodes(reader: Reader) -> None:
    with EnvClient(reader.url).sync() as env:
        env.reset(seed=1, target=1000)
        reader.open("live")
        reader.find("//a[starts-with(@id, 'session-')]").click()
        reader.see("running for")
        pause = reader.find("//button[.='Pause']")
        reader.visitor.until(lambda _: pause.is_displayed() and pause.is_enabled())
        env.end()
        reader.see("over after")
        assert not pause.is_enabled()
        env.reset(seed=2, target=1000)
        reader.see("running for")
        assert pause.is_enabled()
