"""One Chromium for all episodes of a process, and a page of MiniWoB for each of them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

from mcpenv import ConfigurationError

WANTED = "pip install --no-deps miniwob==1.1.0 && pip install playwright==1.65.2"

try:
    from playwright.async_api import Browser, BrowserContext, ElementHandle, Page, Playwright, async_playwright
    from playwright.async_api import Error as PlaywrightError
except ImportError as error:
    raise ConfigurationError(f"{error}. Install the pages and what drives the browser: {WANTED}") from error

T = TypeVar("T")

_package = find_spec("miniwob")  # which wants gymnasium and selenium when it is imported
if _package is None or _package.origin is None:
    raise ConfigurationError(f"There is no package miniwob. Install the pages and what drives the browser: {WANTED}")
PAGES = Path(_package.origin).parent / "html" / "miniwob"
WIDTH, HEIGHT = 500, 320
BEGIN = 1_475_280_000
"""The time at which each episode begins, in seconds since 1970. Some pages show a calendar of that year."""

SECONDS_OF_AN_ACTION = 1
FOREVER_MS = 2**31 - 1

# What a page draws by chance before its episode begins, and the browser's own frames, while its clock still runs.
BEFORE = """window.drawnFrame = window.requestAnimationFrame.bind(window);
let state = 1; Math.random = () => (state = state * 48271 % 2147483647) / 2147483647;"""

START = """([seed, longest]) => {
    core.EPISODE_MAX_TIME = longest;
    Math.seedrandom(seed);
    core.startEpisodeReal();
}"""

# The images of the page and of its style, also those that are shown only below the mouse: an element has no size while
# its image is not there.
LOADED = """async () => {
    const rules = [...document.styleSheets].filter(each => !each.href).flatMap(each => [...each.cssRules]);
    const named = rules.flatMap(rule => [...rule.cssText.matchAll(/url\\("(.+?)"\\)/g)]).map(([, address]) => address);
    window.imagesOfStyle ||= [...new Set(named)].map(address => Object.assign(new Image(), {src: address}));
    const loads = image => image.complete || new Promise(done => image.onload = image.onerror = done);
    await Promise.all([...window.imagesOfStyle, ...document.images].map(loads));
}"""

DRAWN = "() => new Promise(done => drawnFrame(() => drawnFrame(done)))"

OUTCOME = "() => ({done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL})"

# The elements that are seen and have no other ones in them, or a text of their own: in a line each, with their centre.
ELEMENTS = """() => {
    const hidden = '#query, #reward-display, #sync-task-cover, #click-canvas, script, style, head, option, br';
    const clear = ['rgba(0, 0, 0, 0)', 'transparent', 'none'];
    const seen = [];
    for (const element of document.body.querySelectorAll('*')) {
        if (element.closest(hidden)) continue;
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        if (box.width === 0 || box.height === 0 || style.visibility === 'hidden' || style.opacity === '0') continue;
        const own = [...element.childNodes].filter(each => each.nodeType === 3).map(each => each.data).join(' ')
            .replace(/\\s+/g, ' ').trim();
        const tag = element.tagName.toLowerCase();
        const input = ['input', 'select', 'textarea', 'button', 'a'].includes(tag) || element.isContentEditable;
        const leaf = ![...element.children].some(each => each.getBoundingClientRect().width > 0);
        if (!own && !input && !leaf && !element.onclick) continue;
        const words = [element.type ? `${tag} ${element.type}` : tag];
        const text = own || (input ? element.textContent.replace(/\\s+/g, ' ').trim() : '');
        if (tag !== 'textarea' && tag !== 'select' && text) words.push(JSON.stringify(text));
        if (tag === 'select') {
            words.push('of ' + [...element.options].map(each => JSON.stringify(each.text)).join(' | '));
            words.push('chosen ' + JSON.stringify([...element.selectedOptions].map(each => each.text).join(' | ')));
        } else if (element.type === 'checkbox' || element.type === 'radio') {
            words.push(element.checked ? 'checked' : 'unchecked');
        } else if (tag === 'input' || tag === 'textarea') {
            words.push('value ' + JSON.stringify(element.value));
        }
        if (element.ownerSVGElement) {
            const fill = element.getAttribute('fill') || style.fill;
            words.push(`fill ${fill}`);
        } else if (!clear.includes(style.backgroundColor) && !input) {
            words.push(`background ${style.backgroundColor}`);
        }
        const kind = element.getAttribute('class');
        if (kind && !text) words.push(`class ${kind}`);
        if (element.id && !text) words.push(`id ${element.id}`);
        words.push(`${Math.round(box.width)}x${Math.round(box.height)}`);
        words.push(`at ${Math.round(box.x + box.width / 2)},${Math.round(box.y + box.height / 2)}`);
        seen.push([element, words.join(' ')]);
    }
    window.elementsSeen = seen.map(([element]) => element);
    return seen.map(([, words]) => words);
}"""


FIELD = """number => {
    const found = (window.elementsSeen || [])[number - 1];
    const takes = found && (['INPUT', 'TEXTAREA', 'SELECT'].includes(found.tagName) || found.isContentEditable);
    return takes && found.isConnected ? found : null;
}"""

CENTRE = """number => {
    const element = (window.elementsSeen || [])[number - 1];
    if (!element || !element.isConnected) return null;
    element.scrollIntoView({block: 'nearest', inline: 'nearest'});
    const box = element.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
}"""


class SharedBrowser:
    """A Chromium that runs while an environment is open, driven in a thread of its own."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def open(self) -> None:
        with self._lock:
            if self._users == 0:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="miniwob-browser", daemon=True).start()
                self.run(self._start())
            self._users += 1

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                assert self._loop is not None
                self.run(self._stop())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def run(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Wait for something that is awaited in the browser's thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result()

    async def new_context(self) -> BrowserContext:
        assert self._browser is not None
        return await self._browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, offline=True, service_workers="block"
        )

    async def _start(self) -> None:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=chromium, args=["--disable-gpu", "--disable-smooth-scrolling"]
        )

    async def _stop(self) -> None:
        assert self._browser is not None and self._playwright is not None
        await self._browser.close()
        await self._playwright.stop()


shared = SharedBrowser()


class WebPage:
    """A page that is begun with a seed. Its clock stands still, but for one second that each action takes."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self._context, self.page = context, page

    @classmethod
    async def begin(cls, name: str, seed: int) -> Self:
        context = await shared.new_context()
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("dialog", lambda dialog: dialog.accept())
        await page.add_init_script(BEFORE)
        await page.clock.install(time=BEGIN)
        await page.goto((PAGES / f"{name}.html").as_uri())
        await page.evaluate(LOADED)
        await page.clock.pause_at(BEGIN + 60)
        await page.evaluate(START, [str(seed), FOREVER_MS])
        await page.evaluate(LOADED)
        await page.clock.run_for(SECONDS_OF_AN_ACTION * 1000)
        return cls(context, page)

    async def close(self) -> None:
        await self._context.close()

    async def wish(self) -> tuple[str, dict[str, str]]:
        """Return what the page asks for, and the parts of it that the page names."""
        said: str | dict[str, Any] = await self.page.evaluate("() => core.getUtterance()")
        return (said, {}) if isinstance(said, str) else (said["utterance"], said["fields"])

    async def look(self) -> tuple[dict[str, Any], list[str]]:
        """Return whether the page is done, with its reward, and its elements in words."""
        return await self.page.evaluate(OUTCOME), await self.page.evaluate(ELEMENTS)

    async def act(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Do what the tool of that name does, and let a second pass. Return why not, if it cannot be done."""
        try:
            refused: str | None = await getattr(self, f"_{name}")(**arguments)
        except PlaywrightError as error:
            refused = error.message.partition("\n")[0]
        if refused is None:
            await self.page.evaluate(DRAWN)  # scrolling is told to the page with the next frame
            await self.page.clock.run_for(SECONDS_OF_AN_ACTION * 1000)
        return refused

    async def _click(self, element: int) -> str | None:
        refused = await self._hover(element)
        if refused is None:
            await self.page.mouse.down()
            await self.page.mouse.up()
        return refused

    async def _hover(self, element: int) -> str | None:
        place: list[float] | None = await self.page.evaluate(CENTRE, element)
        if place is None:
            return f"There is no element {element} any more: look again."
        await self.page.mouse.move(*place)
        return None

    async def _click_at(self, x: float, y: float) -> None:
        await self.page.mouse.click(x, y)

    async def _write(self, element: int, text: str) -> str | None:
        field = await self._field(element)
        if field is None:
            return f"Element {element} is no field that takes a text."
        kind = await field.get_attribute("type")
        if kind in ("date", "time", "color", "range"):
            await field.fill(text)
            return None
        await field.evaluate("field => { field.scrollIntoView({block: 'nearest'}); field.focus(); }")
        await self.page.keyboard.press("Control+A")
        await self.page.keyboard.press("Delete")
        await self.page.keyboard.type(text)
        return None

    async def _press(self, key: str) -> None:
        await self.page.keyboard.press(key)

    async def _choose(self, element: int, options: list[str]) -> str | None:
        field = await self._field(element)
        names = None if field is None else await field.evaluate("field => [...field.options || []].map(o => o.text)")
        if field is None or not names:
            return f"Element {element} is no list of options."
        missing = [each for each in options if each not in names]
        if missing:
            return f"There is no option {missing[0]!r}. There are: {', '.join(names)}"
        await field.select_option(label=options, force=True)
        return None

    async def _drag(self, from_x: float, from_y: float, to_x: float, to_y: float) -> None:
        mouse = self.page.mouse
        await mouse.move(from_x, from_y)
        await mouse.down()
        await mouse.move(to_x, to_y, steps=5)
        await mouse.up()

    async def _field(self, element: int) -> ElementHandle | None:
        found = await self.page.evaluate_handle(FIELD, element)
        return found.as_element()
