"""A visitor of a console: Debian's Chromium, driven as a person would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

WAIT_S = float(os.environ.get("MCPENV_TEST_WAIT_S", "60"))
TRACES = "main script, main [onerror], main [onload], main a[href^='javascript:'], main object, main embed"


class Visitor:
    """A browser on a console."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def open(self, url: str, page: str) -> None:
        """Load the console anew and show one of its pages."""
        # The same document with another hash would not load its modules anew.
        self.browser.get("about:blank")
        self.browser.get(f"{url}/console/#/{page}")

    def play(self, url: str) -> None:
        """Begin an episode, also where this tab has one already."""
        self.begin_anew(url)
        self.open(url, "play")
        self.press("Start an episode")
        self.see("Start")

    def begin_anew(self, url: str) -> None:
        """Forget the episode that this tab plays."""
        self.browser.get(f"{url}/health")
        self.browser.execute_script("sessionStorage.clear()")

    def unfold(self, summary: str) -> None:
        """Open details that are closed."""
        details = self.find(f"//details[summary[starts-with(normalize-space(), '{summary}')]]")
        self.browser.execute_script("arguments[0].open = true", details)

    def press(self, text: str) -> None:
        """Click a button once it can be clicked. The page may draw it anew between finding and clicking it."""

        def click(browser: Chrome) -> bool:
            button = browser.find_element(By.XPATH, f"//button[normalize-space()='{text}']")
            if not (button.is_displayed() and button.is_enabled()):
                return False
            # The driver would scroll the button under the page's header.
            browser.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", button)
            button.click()
            return True

        self.until(click)

    def find(self, path: str) -> WebElement:
        return self.until(lambda browser: browser.find_element(By.XPATH, path))

    def until(self, condition: Any) -> Any:
        """Wait for a condition. Elements that the page has drawn anew since they were found are looked for again."""
        again = [NoSuchElementException, StaleElementReferenceException]
        return WebDriverWait(self.browser, WAIT_S, ignored_exceptions=again).until(condition)

    def all(self, selector: str) -> Any:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def field(self, name: str) -> WebElement:
        """Return the first field with a label."""
        label = self.find(f"//label[@for and normalize-space()='{name}']").get_attribute("for")
        assert label is not None
        return self.browser.find_element(By.ID, label)

    def type(self, name: str, text: str) -> None:
        field = self.field(name)
        if field.get_attribute("type") != "file":
            field.clear()
        field.send_keys(text)

    def choose(self, name: str, text: str) -> None:
        Select(self.field(name)).select_by_visible_text(text)

    def give(self, name: str) -> None:
        """Tick the box of an optional value."""
        self.find(f"//input[@aria-label='Give {name}']").click()

    def see(self, text: str, place: str = "//section[@aria-label='Result']") -> None:
        """Wait until a text stands on the page of play, or elsewhere."""
        self.find(place)
        self.until(lambda browser: text in browser.find_element(By.XPATH, place).text)

    def read(self, text: str) -> None:
        """Wait until a text stands anywhere on the page."""
        self.see(text, "//main")

    def call(self) -> None:
        self.press("Call")

    def errors(self) -> list[str]:
        """Return the messages that stand at fields."""
        return [each.text for each in self.all(".field .error, fieldset > .error") if each.text]

    def width(self, pixels: int, height: int = 900) -> None:
        # A window is at least 500 pixels wide; a device is not.
        metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def offline(self, yes: bool) -> None:
        self.browser.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": yes, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def serious_findings(self) -> list[tuple[str, str]]:
        """Return what axe-core finds on the page as it is: rule and element."""
        axe = Path(os.environ["MCPENV_NODE_MODULES"]) / "axe-core" / "axe.min.js"
        source = axe.read_text(encoding="utf-8")
        # The page's policy forbids what it did not load; the driver's own scripts are not bound by it.
        self.browser.execute_script(source)
        found = self.browser.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run().then((found) => done(found.violations))"
        )
        return [
            (each["id"], node["html"])
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def attacked(self) -> bool:
        """Return True if a script of a tool's has run, or an element of it is there."""
        if self.browser.execute_script("return window.attacked ?? null") is not None:
            return True
        return bool(
            self.all("main script, main [onerror], main [onload], main a[href^='javascript:'], main object, main embed")
        )

    def complaints(self) -> list[str]:
        """Return the errors in the browser's console since the last look."""
        return [str(each["message"]) for each in self.browser.get_log("browser") if each["level"] == "SEVERE"]


@contextmanager
def visiting() -> Iterator[Visitor]:
    """Yield a visitor in a new browser."""
    options = ChromeOptions()
    options.binary_location = _program("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=Service(_program("chromedriver")))
    try:
        yield Visitor(browser)
    finally:
        browser.quit()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found
