"""Finding episodes in a big record, and the rollouts of a task, in Debian's Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest
from record_worlds import Dice

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv.trajectories.segments import Segments, member_of
from mcpenv_client import Status, StatusCode, StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.records import Reward, Trajectory
from mcpenv_client.types.tasks import Task

pytest.importorskip("selenium", reason="a browser is driven by it")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

MANY, SEVERAL, MEMBER = 100_000, 5_000, 1_000
"""Episodes of the big record and of the other one, and of one member of a segment."""


def episode(name: str, at: int, calls: str, worth: float, agent: str = "codex", task: str = "t") -> RecordedEpisode:
    """Return an episode that calls a tool for each letter, with an argument from an upper-case one."""
    steps = [
        StepRecord(
            ToolCall(call.lower(), {"big": True} if call.isupper() else {}, number),
            ToolOutcome.returned(f"<{number}>", 0.1),
        )
        for number, call in enumerate(calls, 1)
    ]
    trajectory = Trajectory(
        name,
        seed=at,
        task=Task(id=task, split="train", level=1 + at % 2),
        steps=steps,
        end_reward=Reward(worth),
        total_reward=worth,
        terminated=True,
        started_at=1e9 + at,
        ended_at=1e9 + at + 0.5,
    )
    trajectory.status = Status(StatusCode.COMPLETED)
    return RecordedEpisode(trajectory, RecordedEnvironment("Letters"), agent={"name": agent})


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        visitor.width(1280)
        yield visitor


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("big"), MANY) as url:
        yield url


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("several"), SEVERAL) as url:
        yield url


@contextmanager
def served(record: Path, count: int) -> Iterator[str]:
    """Serve a record whose lines are those of a few episodes with other numbers: writing each would take a minute."""
    segments = Segments(record, 1 << 30)
    lines = {calls: episode("e000000", 0, calls, 0.125, task="TASK").line() for calls in ("a", "ab", "abc", ODD)}
    for start in range(0, count, MEMBER):
        segments.append(member_of(b"".join(numbered(lines, at) for at in range(start, start + MEMBER))))
    segments.close()
    with serving(Dice, ServerConfig(record=record)) as url:
        # The first request reads the record, however long that takes on a loaded machine.
        assert httpx.get(f"{url}/records", timeout=600).json()["total"] == count
        yield url


ODD = "abcdefghij"


def numbered(lines: dict[str, bytes], at: int) -> bytes:
    odd = at in (7, 70, 700)
    line = (
        lines[ODD if odd else "abc"[: 1 + at % 3]]
        .replace(b"e000000", b"e%06d" % at)
        .replace(b"TASK", b"t%d" % (at % 40))
    )
    line = line.replace(b'"seed":0', b'"seed":%d' % at).replace(b'"level":1', b'"level":%d' % (1 + at % 2))
    line = line.replace(b"0.125", b"%.2f" % (0.95 if odd else at % 50 / 100))
    return line.replace(b"1000000000.", b"%d." % (10**9 + at))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    record = tmp_path_factory.mktemp("group")
    with Recorder(record) as recorder:
        for at in range(16):
            won = at % 4 == 0
            recorder.write(
                episode(f"rollout-{at}", at, "abC" if won else "abc" + "d" * (at % 3), float(won), task="of/sixteen")
            )
        for at in range(4):
            recorder.write(episode(f"level-{at}", at, "ab"[: 1 + at % 2], 0.5, agent="claude", task="equal"))
    with serving(Dice, ServerConfig(record=record)) as url:
        yield url


def where(browser: Visitor) -> str:
    query = str(browser.browser.execute_script("return location.hash")).partition("?")[2]
    return parse_qs(query).get("where", [""])[0]


def drag(browser: Visitor, chart: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over a chart; the places are parts of its width and height from its upper left corner."""
    plot = browser.find(f"//figure[.//strong[.='{chart}']]//div[contains(@class, 'plot')]")
    browser.browser.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", plot)
    wide, high = plot.size["width"], plot.size["height"]
    at = [(int((x - 0.5) * (wide - 2)), int((y - 0.5) * (high - 2))) for x, y in (start, end)]
    pointer = ActionChains(browser.browser).move_to_element_with_offset(plot, *at[0]).click_and_hold()
    pointer.move_to_element_with_offset(plot, *at[1]).release().perform()


def shown(browser: Visitor) -> list[str]:
    return [each.text for each in browser.all(".window tbody th a")]


def test_brushes_lead_from_a_big_record_to_three_episodes_and_the_address_survives_a_reload(
    browser: Visitor, big: str
) -> None:
    began = time.perf_counter()
    browser.open(big, "records")
    browser.read(f"{MANY:,} episodes")
    browser.find("//figure[.//strong[.='Returns']]")
    charts = time.perf_counter() - began
    drag(browser, "Returns", (0.8, 0.5), (1, 0.5))
    browser.read("3 episodes")
    print(f"{charts:.1f} s to the charts, {time.perf_counter() - began - charts:.1f} s to three episodes")
    assert shown(browser) == ["e000700", "e000070", "e000007"]
    assert where(browser).startswith("return >= ")
    browser.find("//button[starts-with(., 'Episode')]").click()
    browser.until(lambda _: shown(browser) == ["e000007", "e000070", "e000700"])
    browser.browser.refresh()
    browser.read("3 episodes")
    browser.until(lambda _: shown(browser) == ["e000007", "e000070", "e000700"])
    assert browser.field("return from").get_property("value")
    browser.find("//th[@aria-sort='ascending'][contains(., 'Episode')]")


def test_a_brush_over_the_scatter_bounds_both_and_the_keyboard_does_too(browser: Visitor, several: str) -> None:
    browser.open(several, "records?where=agent+%3D+codex")
    browser.find("//figure[.//strong[.='Steps by return']]")
    drag(browser, "Steps by return", (0.7, 0), (1, 0.4))
    browser.read("3 episodes")
    assert where(browser).startswith('agent = "codex" and return >= ') and " and steps >= " in where(browser)
    browser.open(several, "records")
    browser.read(f"{SEVERAL:,} episodes")
    browser.type("steps from", "10" + Keys.TAB)
    browser.read("3 episodes")
    assert where(browser) == "steps >= 10"
    browser.type("steps from", Keys.BACKSPACE + Keys.TAB)
    browser.read(f"{SEVERAL:,} episodes")
    drag(browser, "Tasks by attempt", (0.9, 0.48), (0.95, 0.54))
    browser.until(lambda _: where(browser).startswith('task in ("t'))


def test_every_column_sorts_and_groups_have_their_means(browser: Visitor, several: str) -> None:
    browser.open(several, "records?where=seed+%3C+30")
    browser.read("30 episodes")
    for column in ("Episode", "Task", "Steps", "Return", "Status", "Agent", "Ending", "Started"):
        browser.find(f"//thead//button[starts-with(., '{column}')]").click()
        browser.find(f"//th[@aria-sort][starts-with(., '{column}')]")
        browser.read("30 episodes")
    for way in ("ascending", "descending"):
        browser.find("//thead//button[starts-with(., 'Return')]").click()
        browser.find(f"//th[@aria-sort='{way}'][starts-with(., 'Return')]")
    browser.until(lambda _: shown(browser)[:2] == ["e000007", "e000029"])
    browser.choose("Group by", "level")
    browser.find("//thead//button[starts-with(., 'Mean return')]").click()
    browser.until(lambda _: [each.text for each in browser.all("[aria-label=Groups] tbody th")] == ["1", "2"])
    assert "group=level" in browser.browser.execute_script("return location.hash")
    browser.find("//div[@aria-label='Groups']//a[.='1']").click()
    browser.read("15 episodes")
    assert where(browser) == "seed < 30 and level = 1"


def test_a_condition_is_completed_and_a_wrong_one_is_pointed_at(browser: Visitor, several: str) -> None:
    browser.open(several, "records")
    browser.read(f"{SEVERAL:,} episodes")
    field = browser.field("Condition")
    for typed, offered in (
        ("ag", "agent"),
        ("ent ", "agent ="),
        ("= c", 'agent = "codex"'),
        ("odex and err", "agent = codex and errors"),
    ):
        field.send_keys(typed)
        browser.until(
            lambda _, offered=offered: offered in [each.get_property("value") for each in browser.all("option")]
        )
    field.clear()
    field.send_keys('agent = "codex" ')
    field.send_keys("and steps > x", Keys.ENTER)
    browser.read("column 29: expected a number, found 'x'")
    assert field.get_attribute("aria-invalid") == "true"
    field.send_keys(Keys.BACKSPACE, "5", Keys.ENTER)
    browser.read("3 episodes")
    assert field.get_attribute("aria-invalid") == "false"


def test_older_addresses_become_conditions(browser: Visitor, several: str) -> None:
    browser.open(several, "records?return_min=0.9&tool=j&task=t7&console=shown")
    browser.read("1 episode")
    assert where(browser) == 'task ~ "t7" and tool("j") and return >= 0.9'


def test_sixteen_rollouts_stand_on_one_trie_with_their_advantages(browser: Visitor, group: str) -> None:
    browser.open(group, "records?group=task")
    browser.find("//a[.='train/of/sixteen']").click()
    browser.read("16 rollouts")
    browser.read("After step 2, where winners and losers part most: 100 % of the differences")
    rows = browser.all(".trie tbody tr")
    assert len(rows) == 16
    spans = [each.get_attribute("rowspan") for each in browser.all(".trie td[rowspan]")]
    assert spans[:6] == ["16", "16", "4", "12", "8", "4"]
    assert [row.text.count("+1.73") for row in rows[:5]] == [1, 1, 1, 1, 0] and "-0.58" in rows[-1].text
    browser.all(".trie a[aria-label^='Compare']")[-1].click()
    browser.read("The first difference is at step 3.")
    browser.open(group, "task/equal")
    browser.read("All scores are equal: no gradient.")


def test_an_extra_step_is_one_difference(browser: Visitor, tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write(episode("short", 1, "abcd", 1.0))
        long = episode("long", 2, "abXcd", 1.0)
        for step, short in zip([*long.trajectory.steps[:2], *long.trajectory.steps[3:]], "1234", strict=True):
            step.outcome = ToolOutcome.returned(f"<{short}>", 0.1)
        recorder.write(long)
    with serving(Dice, ServerConfig(record=tmp_path)) as url:
        browser.open(url, "records/short?with=long")
        browser.read("The first difference is at step 3.")
        browser.read("Steps that differ: 1.")
        verdicts = [each.text for each in browser.all(".steps > li > .verdict:first-child")]
        assert verdicts[2:] == [
            "Step 3: only one episode has this step. This is the first difference.",
            "Step 3 and 4: equal",
            "Step 4 and 5: equal",
        ]


def test_a_chart_says_the_values_under_the_pointer_and_leads_to_the_step(browser: Visitor, tmp_path: Path) -> None:
    long = episode("long", 1, "abcdefghij", 0.5)
    for number, step in enumerate(long.trajectory.steps, 1):
        step.reward = Reward(number / 10, {"near": number / 10 - 0.05, "far": 0.05, "all": number / 10})
    with Recorder(tmp_path) as recorder:
        recorder.write(long)
    with serving(Dice, ServerConfig(record=tmp_path)) as url:
        browser.open(url, "records/long")
        browser.read("Parts: near, reward, far.")
        axis = browser.find("//input[@type='range'][contains(@aria-label, 'Reward per step')]")
        axis.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        browser.read("3. c: reward 0.3, near 0.25, far 0.05, all 0.3")
        assert browser.find("//figure[2]//*[@class='axis']").text == "1\nend"
        axis.send_keys(Keys.ENTER)
        browser.until(lambda page: page.execute_script("return document.activeElement.dataset.step") == "3")
        assert "step=3" in browser.browser.execute_script("return location.hash")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_no_serious_finding_and_nothing_is_wider_than_the_page(
    browser: Visitor, group: str, width: int, theme: str
) -> None:
    browser.width(width)
    browser.theme(theme)
    browser.complaints()  # those of the tests before
    found = {}
    for page, text in {
        "records": "20 episodes",
        "records?group=agent&sort=-mean": "Mean return",
        "task/train%2Fof%2Fsixteen": "16 rollouts",
    }.items():
        browser.open(group, page)
        browser.read(text)
        browser.browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        found[page] = browser.serious_findings()
        wider = browser.browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, (page, wider)
    browser.width(1280)
    browser.theme("light")
    assert not any(found.values()), found
    assert browser.complaints() == []
