"""The web pages of MiniWoB++, from the package ``miniwob`` of PyPI, in Chromium."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from fastmcp.utilities.types import Image
from pydantic import AfterValidator, Field

from mcpenv import Evidence, MCPEnvironment, OracleCall, Reward, Task, TaskLimits, TaskSet, ToolError
from mcpenv.worlds import ObjectWorld

from .web_pages import PAGES, WebPage, shared

TASKS = Path(__file__).with_name("tasks.jsonl")
"""Pages with seeds, what they ask for, and calls that do it, as `make_tasks.py` found them."""

LEVELS = (1, 2, 4, 7)
"""The most calls of a solution, by level; the fifth level has more."""

CLOSE = 0.9
"""The reward of a page from which on it counts as 1. Some pages give less than 1 for a click that is pixels away."""

Number = Annotated[int, Field(ge=1, description="The number of an element, as it was last listed")]
X = Annotated[float, Field(ge=0, le=500, description="Pixels from the left")]
Y = Annotated[float, Field(ge=0, le=320, description="Pixels from the top")]
Key = Annotated[str, Field(min_length=1, max_length=30, description="Enter, Tab, ArrowDown, Control+C, a")]
Text = Annotated[str, Field(max_length=2000)]


def known(page: str) -> str:
    """Return the name of a page. Raise `ValueError` if there is none of that name."""
    names = [file.stem for file in PAGES.glob("*.html")]
    if page not in names:
        near = get_close_matches(page, names, 1)
        raise ValueError(f"there is no page {page!r} in miniwob" + (f"; did you mean {near[0]!r}?" if near else ""))
    return page


def make_task(line: str) -> Task:
    """Return the task of a line of `TASKS`."""
    found = json.loads(line)
    calls = [OracleCall(tool_name=name, arguments=arguments) for name, arguments in found["calls"]]
    return Task(
        id=f"{found['page']}-{found['seed']}",
        split=found["split"],
        prompt=found["prompt"],
        seed=found["seed"],
        options={"page": found["page"]},
        limits=TaskLimits(max_steps=15 + 3 * len(calls)),
        oracle=calls,
        level=1 + sum(len(calls) > most for most in LEVELS),
        family=found["page"],
        tags=sorted({name for name, _ in found["calls"]}),
    )


class MiniWoBEnvironment(MCPEnvironment):
    """Do what is asked for on a small web page, in a browser.

    Description:
        The pages of MiniWoB++: buttons, forms, menus, mailboxes, tables, shapes. Each tool acts and then lists what
        is seen: an element a line, with its number, its text and the place of its centre.

    Tools:
        look(): list what is seen.
        click(element): click on an element; click_at(x, y): on a place.
        hover(element): move the mouse to an element.
        write(element, text): replace the text of a field.
        press(key): press a key, or several at once.
        choose(element, options): choose options of a list.
        drag(from_x, from_y, to_x, to_y): hold the button of the mouse from one place to another.
        screenshot(): see the page.

    Observation:
        Of a reset: ``metadata.prompt``, what is asked for. Of a step: what is seen.

    Reward:
        At the end, that of the page, without the part for haste, and at least 0.0.

    Start:
        The page ``page`` with the seed.

    End:
        Terminated when the page says so. Truncated after the task's ``max_steps``.

    Arguments:
        page: a reset option, the name of a page.

    Version:
        1.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "miniwob"
    VERSION = "1.1.0"
    tasks = TaskSet(map(make_task, TASKS.read_text().splitlines() if TASKS.exists() else [])).with_licence(
        "MIT", source="miniwob 1.1.0"
    )

    def __init__(self) -> None:
        self._page: WebPage | None = None
        self.instruction = ""
        self.fields: dict[str, str] = {}
        self.started: dict[str, Any] = {}
        self.actions: list[tuple[str, dict[str, Any]]] = []
        self.outcome: dict[str, Any] = {"done": False, "reward": 0}
        self.seen: list[str] = []
        self.world = ObjectWorld(lambda: {**self.started, **self.outcome, "seen": self.seen})
        shared.open()
        for tool in (self.look, self.click, self.click_at, self.hover, self.write, self.press, self.choose, self.drag):
            self.tool(tool)
        self.tool(self.screenshot)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        page: Annotated[str, AfterValidator(known)] = "click-test",
    ) -> None:
        self._begin(page, seed or 0)

    def _begin(self, page: str, seed: int) -> None:
        self._leave()
        self.started, self.actions = {"page": page, "seed": seed}, []
        self._page = shared.run(WebPage.begin(known(page), seed))
        self.instruction, self.fields = shared.run(self._page.wish())
        self._look()

    def _leave(self) -> None:
        if self._page is not None:
            shared.run(self._page.close())
            self._page = None

    def close(self) -> None:
        self._leave()
        shared.close()

    def save_state(self) -> dict[str, Any]:
        return {**self.started, "actions": self.actions}

    def load_state(self, state: dict[str, Any]) -> None:
        self._begin(state["page"], state["seed"])
        for name, arguments in state["actions"]:
            self._act(name, **arguments)

    def look(self) -> str:
        """List what is seen."""
        return self._listed()

    def click(self, element: Number) -> str:
        """Click on an element, after scrolling to it."""
        return self._act("click", element=element)

    def click_at(self, x: X, y: Y) -> str:
        """Click on a place."""
        return self._act("click_at", x=x, y=y)

    def hover(self, element: Number) -> str:
        """Move the mouse to an element, without a click. Some menus open then."""
        return self._act("hover", element=element)

    def write(self, element: Number, text: Text) -> str:
        """Replace the text of a field, by the keyboard."""
        return self._act("write", element=element, text=text)

    def press(self, key: Key) -> str:
        """Press a key, or several at once."""
        return self._act("press", key=key)

    def choose(self, element: Number, options: Annotated[list[str], Field(max_length=100)]) -> str:
        """Choose the options of a list that have these texts, and no others."""
        return self._act("choose", element=element, options=options)

    def drag(self, from_x: X, from_y: Y, to_x: X, to_y: Y) -> str:
        """Press the button of the mouse at one place, and let go of it at another."""
        return self._act("drag", from_x=from_x, from_y=from_y, to_x=to_x, to_y=to_y)

    def screenshot(self) -> Image:
        """See the page."""
        assert self._page is not None
        return Image(data=shared.run(self._page.page.screenshot()), format="png")

    def verify(self, evidence: Evidence) -> Reward:
        """Return the reward of the page, from 0 to 1. Where a place must be met, what is close enough earns 1."""
        assert evidence.after is not None
        reward = float(evidence.after["reward"])
        return Reward(1.0 if reward >= CLOSE else max(0.0, reward))

    def _act(self, name: str, **arguments: Any) -> str:
        assert self._page is not None
        refused = shared.run(self._page.act(name, arguments))
        if refused is not None:
            raise ToolError(refused)
        self.actions.append((name, arguments))
        self._look()
        if self.outcome["done"]:
            self.finish()
            return "The page says that the task is over."
        return self._listed()

    def _look(self) -> None:
        assert self._page is not None
        self.outcome, self.seen = shared.run(self._page.look())

    def _listed(self) -> str:
        return "\n".join(f"{number}. {words}" for number, words in enumerate(self.seen, 1)) or "There is nothing."
