"""Solve pages of MiniWoB by what they show, so that a task has calls that are known to solve it."""

from __future__ import annotations

import calendar
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COLORS = {
    "red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "aqua": (0, 255, 255), "cyan": (0, 255, 255),
    "black": (0, 0, 0), "white": (255, 255, 255), "magenta": (255, 0, 255), "yellow": (255, 255, 0),
    "lime": (0, 255, 0), "orange": (255, 165, 0), "pink": (255, 192, 203), "purple": (128, 0, 128),
    "gray": (128, 128, 128), "grey": (128, 128, 128), "olive": (128, 128, 0),
}  # fmt: skip
MONTHS = list(calendar.month_name)[1:]


@dataclass
class Element:
    """An element as the tools list it."""

    number: int
    words: str

    @property
    def tag(self) -> str:
        return self.words.split()[0]

    @property
    def text(self) -> str:
        found = re.search(r'^[^"]*?("(?:[^"\\]|\\.)*")', self.words.partition(" value ")[0])
        return json.loads(found[1]) if found else ""

    @property
    def value(self) -> str:
        found = re.search(r' value ("(?:[^"\\]|\\.)*")', self.words)
        return json.loads(found[1]) if found else ""

    @property
    def place(self) -> tuple[int, int]:
        found = re.search(r"at (-?\d+),(-?\d+)$", self.words)
        assert found is not None
        return int(found[1]), int(found[2])

    @property
    def size(self) -> tuple[int, int]:
        found = re.search(r"(\d+)x(\d+) at ", self.words)
        assert found is not None
        return int(found[1]), int(found[2])

    @property
    def color(self) -> tuple[int, int, int]:
        found = re.search(r"(?:background|fill) rgb\((\d+), (\d+), (\d+)\)", self.words)
        if found:
            return int(found[1]), int(found[2]), int(found[3])
        named = re.search(r"fill (\w+)", self.words)
        return COLORS.get(named[1] if named else "", (-1, -1, -1))


class Player:
    """Plays a page, and keeps the calls.

    Args:
        act: calls a tool, and returns what is seen after it. Raises `Over` at the end of the page.
        wish: what the page asks for.
        attempt: 0 at the first time that the same page is tried.
    """

    def __init__(self, act: Callable[..., list[str]], wish: str, fields: dict[str, str], attempt: int) -> None:
        self._act, self.wish, self.fields, self.attempt = act, wish, fields, attempt
        self.seen: list[Element] = []
        self.do("look")

    def do(self, tool: str, **arguments: Any) -> None:
        self.seen = [Element(number, words) for number, words in enumerate(self._act(tool, **arguments), 1)]

    def asked(self, pattern: str) -> re.Match[str]:
        found = re.search(pattern, self.wish)
        assert found is not None, self.wish
        return found

    def all(self, pattern: str) -> list[Element]:
        return [each for each in self.seen if re.search(pattern, each.words)]

    def one(self, pattern: str, nth: int = 0) -> Element:
        return self.all(pattern)[nth]

    def named(self, text: str, tags: str = "") -> Element:
        return next(each for each in self.seen if each.text == text and (not tags or each.tag in tags.split()))

    def shows(self, text: str) -> bool:
        return any(each.text == text for each in self.seen)

    def click(self, which: Element | str) -> None:
        element = self.named(which) if isinstance(which, str) else which
        self.do("click", element=element.number)

    def write(self, which: Element, text: str) -> None:
        self.do("write", element=which.number, text=text)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.do("drag", from_x=start[0], from_y=start[1], to_x=end[0], to_y=end[1])

    def fill(self, *texts: str) -> None:
        """Write into the fields, in their order, and submit."""
        for nth, text in enumerate(texts):
            self.write(self.one("^(input|textarea)", nth), text)
        self.submit()

    def submit(self) -> None:
        self.click(self.one('"(Submit|Login|Search|OK|Go!|Send)"'))

    def pass_time(self) -> None:
        self.do("press", key="Shift")


Solver = Callable[[Player], None]
SOLVERS: dict[str, Solver] = {}


def solves(*names: str) -> Callable[[Solver], Solver]:
    """Register a solver of pages."""

    def keep(solver: Solver) -> Solver:
        SOLVERS.update(dict.fromkeys(names, solver))
        return solver

    return keep


def is_shape(element: Element, words: list[str]) -> bool:
    """Whether an element is what a description such as "small red circle" means."""
    figure = element.tag in ("rect", "circle", "polygon")
    for word in words:
        kind = word.removesuffix("s") if word not in ("s",) else word
        if word in COLORS:
            fits = element.color == COLORS[word]
        elif word in ("large", "small"):
            fits = (element.size[1] > 15) == (word == "large")
        elif kind in ("item", "thing"):
            fits = True
        elif kind == "shape":
            fits = figure
        elif kind == "letter":
            fits = element.tag == "text" and element.text.isalpha()
        elif kind in ("digit", "number"):
            fits = element.tag == "text" and element.text.isdigit()
        elif kind in ("rectangle", "circle", "triangle"):
            fits = element.tag == {"rectangle": "rect", "circle": "circle", "triangle": "polygon"}[kind]
        else:
            fits = element.text in (word, kind)
        if not fits:
            return False
    return True


@solves("ascending-numbers")
def _ascending(player: Player) -> None:
    for each in sorted(player.seen, key=lambda each: int(each.text)):  # they are hidden after the first click
        x, y = each.place
        player.do("click_at", x=x, y=y)


@solves("button-delay")
def _button_delay(player: Player) -> None:
    player.click("ONE")
    for _ in range(2):
        player.pass_time()
    player.click("TWO")


@solves("buy-ticket")
def _buy_ticket(player: Player) -> None:
    def minutes(text: str) -> int:
        return sum(int(number) * {"d": 1440, "h": 60, "m": 1}[unit] for number, unit in re.findall(r"(\d+)(\w)", text))

    buttons = player.all("^button")
    costs = [int(each.text.partition("$")[2]) for each in buttons]
    durations = [minutes(each.text) for each in player.all('^div "\\d+\\w')]
    values = costs if "cost" in player.wish or "cheap" in player.wish or "expensive" in player.wish else durations
    most = "most" in player.wish or "longest" in player.wish
    player.click(buttons[values.index(max(values) if most else min(values))])


@solves("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
def _choose_date(player: Player) -> None:
    month, day, year = map(int, player.asked(r"(\d+)/(\d+)/(\d+)").groups())
    player.click(player.one("^input"))
    _pick_day(player, month, day, year)
    player.submit()


def _pick_day(player: Player, month: int, day: int, year: int) -> None:
    while True:
        shown = MONTHS.index(next(each.text for each in player.seen if each.text in MONTHS)) + 1
        at = int(next(each.text for each in player.seen if re.fullmatch(r"20\d\d", each.text)))
        if (at, shown) == (year, month):
            break
        player.click(player.one('"Prev"' if (at, shown) > (year, month) else '"Next"'))
    player.click(player.named(str(day), "a"))


@solves("choose-list")
def _choose_list(player: Player) -> None:
    (wanted,) = player.asked("Select (.*) from the list").groups()
    player.do("choose", element=player.one("^select").number, options=[wanted])
    player.submit()


@solves("click-scroll-list")
def _scroll_list(player: Player) -> None:
    (wanted,) = player.asked("Select (.*) from the scroll list").groups()
    player.do("choose", element=player.one("^select").number, options=wanted.split(", "))
    player.submit()


@solves("circle-center")
def _circle_center(player: Player) -> None:
    player.click(player.one("^circle"))
    player.submit()


@solves("click-button-sequence")
def _sequence(player: Player) -> None:
    player.click("ONE")
    player.click("TWO")


@solves("click-test-2", "click-test-transfer")
def _click_one(player: Player) -> None:
    player.click(player.asked(r"button (\w+)\.")[1])


@solves("click-test")
def _click_test(player: Player) -> None:
    player.click("Click Me!")


@solves("click-button", "unicode-test")
def _click_button(player: Player) -> None:
    player.click(player.named(player.asked('"(.*)"')[1], "button"))


@solves("click-link")
def _click_link(player: Player) -> None:
    player.click(player.named(player.asked('"(.*)"')[1], "span"))


@solves("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option")
def _click_checkboxes(player: Player) -> None:
    (wanted,) = player.asked("Select (.*) and click Submit").groups()
    for each in wanted.split(", "):
        if each != "nothing":
            player.click(player.named(each, "label"))
    player.submit()


@solves("click-collapsible", "click-collapsible-nodelay")
def _collapsible(player: Player) -> None:
    player.click(player.one("^h3"))
    player.submit()


@solves(
    "click-collapsible-2", "click-collapsible-2-nodelay", "click-tab-2", "click-tab-2-easy", "click-tab-2-medium",
    "click-tab-2-hard",
)  # fmt: skip
def _behind_headings(player: Player) -> None:
    (wanted,) = player.asked('"(.*)"').groups()
    for nth in range(len(player.all("^(h3|a) "))):
        if any(each.text == wanted and each.tag == "span" for each in player.seen):
            break
        player.click(player.one("^(h3|a) ", nth))
    player.click(player.named(wanted, "span"))


@solves("click-tab")
def _click_tab(player: Player) -> None:
    player.click(player.asked(r"(Tab #\d)")[1])


@solves("click-color")
def _click_color(player: Player) -> None:
    wanted = COLORS[player.asked(r"the (\w+) colored")[1]]
    player.click(next(each for each in player.seen if each.color == wanted))


@solves("click-dialog")
def _click_dialog(player: Player) -> None:
    player.click(player.named("Close", "button"))


@solves("click-dialog-2")
def _click_dialog_2(player: Player) -> None:
    wanted = player.asked('"(.*)"')[1]
    player.click(player.named("Close" if wanted == "x" else wanted, "button"))


@solves("click-menu")
def _click_menu(player: Player) -> None:
    *parents, wanted = player.asked("Select (.*)")[1].split(">")
    for each in parents:
        player.do("hover", element=player.named(each, "div").number)
        player.pass_time()
    player.click(player.named(wanted, "div"))


@solves("click-menu-2")
def _click_menu_2(player: Player) -> None:
    player.click("Menu")
    labeled = re.search('labeled "(.*)"', player.wish)
    if labeled:
        if not player.shows(labeled[1]):
            player.do("hover", element=player.named("Playback").number)
            player.pass_time()
        player.click(labeled[1])
        return
    items = player.all(r"^(div|li).*ui-menu|^span class ui-icon")
    player.click(items[player.attempt])


@solves("click-pie", "click-pie-nodelay")
def _click_pie(player: Player) -> None:
    player.click("+")
    player.pass_time()
    player.click(player.asked('"(.*)"')[1])


@solves("click-shades")
def _click_shades(player: Player) -> None:
    channel = {"red": 0, "green": 1, "blue": 2}[player.asked(r"shades of (\w+)")[1]]
    for each in player.all("^span background"):
        if max(range(3), key=each.color.__getitem__) == channel:
            player.click(each)
    player.submit()


@solves("click-shape")
def _click_shape(player: Player) -> None:
    words = player.asked(r"Click on an? (.*)")[1].split()
    player.click(next(each for each in player.seen if is_shape(each, words)))


@solves("count-shape")
def _count_shape(player: Player) -> None:
    words = player.asked(r"How many (.*) are there")[1].split()
    number = sum(is_shape(each, words) for each in player.seen if each.tag != "button")
    player.click(player.named(str(number), "button"))


@solves("identify-shape")
def _identify_shape(player: Player) -> None:
    (figure, *_) = player.seen
    name = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}.get(figure.tag)
    player.click(name or ("Number" if figure.text.isdigit() else "Letter"))


@solves("click-widget")
def _click_widget(player: Player) -> None:
    pattern = {
        "button": "^button", "text": "^input text", "textarea": "^textarea", "radio": "^input radio",
        "checkbox": "^input checkbox",
    }[player.asked('"(.*)"')[1]]  # fmt: skip
    player.click(player.one(pattern))


@solves("copy-paste")
def _copy_paste(player: Player) -> None:
    text = player.one("^textarea").value
    player.write(player.one("^input"), text)
    player.submit()


@solves("copy-paste-2")
def _copy_paste_2(player: Player) -> None:
    text = player.one("^textarea", int(player.asked(r"the (\d)\w\w text area")[1]) - 1).value
    player.write(player.one("^input"), text)
    player.submit()


@solves("count-sides")
def _count_sides(player: Player) -> None:
    player.click(player.one("^button", player.attempt))


@solves("drag-box")
def _drag_box(player: Player) -> None:
    player.drag(player.named("s").place, player.named("L").place)
    player.submit()


@solves("drag-circle", "drag-single-shape")
def _drag_circle(player: Player) -> None:
    x, y = player.one("^(circle|rect|polygon|text)").place
    across, down = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[
        player.asked("(up|down|left|right)")[1]
    ]
    for step in (30, 15):
        player.drag((x, y), (x + across * step, y + down * step))
        x, y = player.one("^(circle|rect|polygon|text)").place
    player.submit()


@solves("drag-items")
def _drag_items(player: Player) -> None:
    name, where = player.asked("Drag (.*) (up by one|down by one|to the .*)").groups()
    rows = player.all("^div ")
    at = [each.text for each in rows].index(name)
    ordinal = re.search(r"(\d)\w\w", where)
    to = int(ordinal[1]) - 1 if ordinal else at + (1 if "down" in where else -1)
    if "top" in where or "bottom" in where:
        to = 0 if "top" in where else len(rows) - 1
    _move_row(player, at, to)
    if player.all('"Submit"'):
        player.submit()


def _move_row(player: Player, at: int, to: int) -> None:
    rows = player.all("^div ")
    x, y = rows[to].place
    player.drag(rows[at].place, (x, y + (8 if to > at else -8)))


@solves("drag-sort-numbers")
def _sort_numbers(player: Player) -> None:
    for to in range(len(player.all("^div "))):
        numbers = [int(each.text) for each in player.all("^div ")]
        at = numbers.index(min(numbers[to:]))
        if at != to:
            _move_row(player, at, to)
    player.submit()


@solves("drag-items-grid")
def _items_grid(player: Player) -> None:
    name, where = player.asked("Drag (.*) to the (.*)\\.").groups()
    cells = player.all("^div ")
    row = 0 if "top" in where else 2 if "bottom" in where else 1
    column = 0 if "left" in where else 2 if "right" in where else 1
    player.drag(player.named(name).place, cells[3 * row + column].place)


@solves("drag-shapes", "drag-shapes-2")
def _drag_shapes(player: Player) -> None:
    if player.wish.startswith("Drag all") and "left box" in player.wish:
        words = player.asked("Drag all (.*) into the left box")[1].split()
        left, right = (each.place for each in player.all("^rect fill none"))
    else:
        words = player.asked("Drag all (.*) into")[1].split()
        left, right = player.one("^rect fill none").place, None
    for each in player.all("^(rect|circle|polygon|text)"):
        if "fill none" in each.words or each.size[0] > 30:
            continue
        end = left if is_shape(each, [word for word in words if word != "shapes"]) else right
        if end is not None:
            player.drag(each.place, end)
    player.submit()


@solves("draw-line")
def _draw_line(player: Player) -> None:
    x, y = player.one("^circle").place
    across = "horizontal" in player.wish
    start, end = ((x - 20, y), (x + 20, y)) if across else ((x, y - 20), (x, y + 20))
    player.drag(start, end)
    player.submit()


@solves("enter-date")
def _enter_date(player: Player) -> None:
    month, day, year = player.asked(r"(\d+)/(\d+)/(\d+)").groups()
    player.fill(f"{year}-{month}-{day}")


@solves("enter-time")
def _enter_time(player: Player) -> None:
    hour, minute, half = player.asked(r"(\d+):(\d+) (AM|PM)").groups()
    player.fill(f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}")


@solves("enter-password")
def _enter_password(player: Player) -> None:
    player.fill(*[player.asked('"(.*)"')[1]] * 2)


@solves("enter-text", "enter-text-dynamic")
def _enter_text(player: Player) -> None:
    player.fill(player.asked('"(.*)"')[1])


@solves("enter-text-2")
def _enter_text_2(player: Player) -> None:
    text = player.asked('"(.*)"')[1]
    player.fill(text.lower() if "lower" in player.wish else text.upper())


@solves("find-word")
def _find_word(player: Player) -> None:
    words = " ".join(each.text for each in player.all("^p ")).split()
    player.fill(words[int(player.asked(r"the (\d+)")[1]) - 1].strip(".,"))


@solves("focus-text")
def _focus_text(player: Player) -> None:
    player.click(player.one("^input"))


@solves("focus-text-2")
def _focus_text_2(player: Player) -> None:
    player.click(player.one("^input", int(player.asked(r"the (\d)")[1]) - 1))


@solves("form-sequence-2")
def _form_sequence_2(player: Player) -> None:
    kind, nth = "radio" if "radio" in player.wish else "checkbox", int(player.asked(r"the (\d)")[1]) - 1
    number = player.asked('"(.*)"')[1]
    (where,) = player.asked(r"into the (\d)").groups()
    player.click(player.one(f"^input {kind}", nth))
    player.write(player.one("^input text", int(where) - 1), number)
    player.submit()


@solves("form-sequence")
def _form_sequence(player: Player) -> None:
    _slide(player, 0, int(player.asked(r"Select (-?\d+)")[1]))
    player.click(player.one("^input checkbox", int(player.asked(r"the (\d)")[1]) - 1))
    player.submit()


def _slide(player: Player, nth: int, wanted: int) -> None:
    """Move a slider by keys to a number, which stands beside it."""

    def shown() -> int:
        return int(player.all(r'^div "-?\d+"')[nth].text)

    player.click(player.one("ui-slider-handle", nth))
    while shown() != wanted:
        before = shown()
        player.do("press", key="ArrowRight" if before < wanted else "ArrowLeft")
        assert shown() != before


@solves("use-slider")
def _use_slider(player: Player) -> None:
    wanted = int(player.asked(r"Select (-?\d+)")[1])
    x, y = player.one("ui-slider-handle").place
    for _ in range(12):  # the scale is not shown: halve the way that is left
        at = int(player.one(r'^div "-?\d+"').text)
        if abs(at - wanted) < 12:
            break
        previous = (x, at)
        x = max(8, min(152, x + (10 if at < wanted else -10)))
        player.drag(player.one("ui-slider-handle").place, (x, y))
        now = int(player.one(r'^div "-?\d+"').text)
        if now != previous[1]:
            x = x + round((wanted - now) * (x - previous[0]) / (now - previous[1]))
            player.drag(player.one("ui-slider-handle").place, (max(8, min(152, x)), y))
            x = player.one("ui-slider-handle").place[0]
    _slide(player, 0, wanted)
    player.submit()


@solves("use-slider-2")
def _use_slider_2(player: Player) -> None:
    for nth, wanted in enumerate(map(int, player.asked(r"\[(.*)\]")[1].split(","))):
        _slide(player, nth, wanted)
    player.submit()


@solves("use-spinner")
def _use_spinner(player: Player) -> None:
    wanted = int(player.asked(r"Select (-?\d+)")[1])
    for _ in range(abs(wanted)):
        player.click(player.one("ui-spinner-up" if wanted > 0 else "ui-spinner-down"))
    player.submit()


@solves("grid-coordinate")
def _grid_coordinate(player: Player) -> None:
    x, y = map(int, player.asked(r"\((-?\d+),(-?\d+)\)").groups())
    player.do("click_at", x=79 + 30 * x, y=129 - 30 * y)


@solves("guess-number")
def _guess_number(player: Player) -> None:
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        player.fill(str(guess))
        said = " ".join(each.text for each in player.all("^(div|span|p)"))
        low, high = (guess + 1, high) if "higher" in said else (low, guess - 1)


@solves("highlight-text")
def _highlight(player: Player) -> None:
    _mark(player, player.one("^(div|p) "))
    player.submit()


@solves("highlight-text-2")
def _highlight_2(player: Player) -> None:
    _mark(player, player.one("^p ", int(player.asked(r"the (\d)")[1]) - 1))
    player.submit()


def _mark(player: Player, paragraph: Element) -> None:
    (x, y), (width, height) = paragraph.place, paragraph.size
    player.drag((x - width / 2 + 1, y - height / 2 + 3), (x + width / 2 - 1, y + height / 2 - 2))


@solves("login-user", "login-user-popup")
def _login(player: Player) -> None:
    name, password = player.asked('username "(.*)" and the password "(.*)"').groups()
    for kind, text in (("text", name), ("password", password)):
        player.write(player.one(f"^input {kind}"), text)
        if not player.all(f"^input {kind}") or player.one(f"^input {kind}").value != text:  # a box came before it
            player.click(player.one('"(Cancel|Exit|No|Close|x)"'))
            player.write(player.one(f"^input {kind}"), text)
    player.submit()


@solves("multi-layouts", "multi-orderings")
def _movies(player: Player) -> None:
    genre, director, year = player.asked(r"Search for (.*) movies directed by (.*) from year (\d+)").groups()
    labels = [each.text for each in player.all('^(div|th|td|label|p|span|h3).*"')]
    wanted = [
        director if "Director" in each else year if "Year" in each or "Date" in each else genre
        for each in labels
        if re.search("Director|Genre|Year|Date", each)
    ]
    for nth, text in enumerate(wanted):
        player.write(player.one("^input text", nth), text)
    player.click(player.one('^(button|div|input|a).*"(Submit|Go!|Search)"'))


@solves("navigate-tree")
def _navigate_tree(player: Player) -> None:
    wanted = player.asked('named "(.*)"')[1]
    opened: set[str] = set()
    while not player.shows(wanted):
        folder = next(
            (each, name)
            for each, name in itertools.pairwise(player.seen)
            if "expandable-hitarea" in each.words and name.text not in opened
        )
        opened.add(folder[1].text)
        player.click(folder[0])
    player.click(player.named(wanted, "span"))


@solves("odd-or-even")
def _odd_or_even(player: Player) -> None:
    for nth, number in enumerate([int(each.text) for each in player.all(r'^div "-?\d+"')]):
        player.click(player.one('"Odd"' if number % 2 else '"Even"', nth))
    player.submit()


@solves("phone-book")
def _phone_book(player: Player) -> None:
    name, what = player.asked(r"Find (.*) in the contact book and click on their (.*)\.").groups()
    while player.one("^h2").text != name:
        player.click(">")
    player.click(player.one("^a ", ("phone number", "email", "address").index(what)))


@solves("read-table")
def _read_table(player: Player) -> None:
    cells = [each.text for each in player.all("^td")]
    player.fill(cells[cells.index(player.asked("value of (.*) into")[1]) + 1])


@solves("read-table-2")
def _read_table_2(player: Player) -> None:
    cells = [each.text for each in player.all("^td")]
    player.fill(*[cells[cells.index(each.text.rstrip(":")) + 1] for each in player.all("^label")])


@solves("find-midpoint")
def _midpoint(player: Player) -> None:
    (ax, ay), (bx, by) = (each.place for each in player.all("^circle"))
    player.do("click_at", x=(ax + bx) / 2, y=(ay + by) / 2)
    player.submit()


@solves("right-angle")
def _right_angle(player: Player) -> None:
    (bx, by), (ax, ay) = player.one("^circle fill blue").place, player.one("^circle fill black").place
    across, down = ax - bx, ay - by
    length = (across**2 + down**2) ** 0.5
    sign = -1 if 60 < by - across / length * 40 < 170 else 1
    step = 30 * sign / length
    player.do("click_at", x=bx - down * step * (1 if across else -1), y=by + across * step)
    player.submit()


@solves("scroll-text")
def _scroll_text(player: Player) -> None:
    player.write(player.one("^input"), player.one("^textarea").value.split()[-1].rstrip("."))
    player.submit()


@solves("scroll-text-2")
def _scroll_text_2(player: Player) -> None:
    player.click(player.one("^textarea"))
    player.do("press", key="Control+End" if "bottom" in player.wish else "Control+Home")
    player.submit()


@solves("search-engine")
def _search_engine(player: Player) -> None:
    text, nth = player.asked(r'enter "(.*)" and press "Search", then find and click the (\d+)').groups()
    player.write(player.one("^input"), text)
    player.submit()
    page, row = divmod(int(nth) - 1, 3)
    if page:
        player.click(player.named(str(page + 1), "a"))
    player.click([each for each in player.all("^a ") if not re.fullmatch(r"\d+|[<>]", each.text)][row])


@solves("sign-agreement")
def _sign_agreement(player: Player) -> None:
    if "cancel" in player.wish:
        player.click("Cancel")
        return
    name, last = re.search('"(.*?)"', player.wish), re.search('press "(Cancel|Agree)"', player.wish)
    player.click(player.one("^textarea"))
    player.do("press", key="Control+End")
    if name:
        player.write(player.one("^input"), name[1])
    player.click(last[1] if last else "Agree")


@solves("simple-arithmetic")
def _arithmetic(player: Player) -> None:
    found = re.match(r"(-?\d+) ([-+x*]) (-?\d+)", player.one("^div").text)
    assert found is not None
    player.fill(str(_compute(int(found[1]), found[2], int(found[3]))))


def _compute(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


@solves("simple-algebra")
def _algebra(player: Player) -> None:
    found = re.match(r"(-?\d+|x) ([-+]) (-?\d+|x) = (-?\d+)", player.one("^div").text)
    assert found is not None
    for x in range(-400, 400):
        a, b = (x if each == "x" else int(each) for each in (found[1], found[3]))
        if _compute(a, found[2], b) == int(found[4]):
            player.fill(str(x))


@solves("social-media")
def _social_media(player: Player) -> None:
    name, what = player.asked('For the user (@.*), click on the "(.*)" button').groups()
    (post,) = _posts(player, name)[:1]
    simple = {"Reply": "reply", "Retweet": "retweet", "Like": "like"}
    if what in simple:
        player.click(player.one(f"class {simple[what]} ", post))
        return
    player.click(player.one("class more ", post))
    player.click(player.one(f'^li "{what}'))


def _posts(player: Player, name: str) -> list[int]:
    return [nth for nth, each in enumerate(player.all('^span "@')) if each.text == name]


@solves("social-media-all", "social-media-some")
def _like_posts(player: Player) -> None:
    what, many, name = player.asked('Click the "(.*)" button on (all|\\d+) posts? by (@.*) and').groups()
    wanted = _posts(player, name)
    for post in wanted if many == "all" else wanted[: int(many)]:
        player.click(player.one(f"class {what.lower()}( |-)", post))
    player.submit()


@solves("stock-market")
def _stock_market(player: Player) -> None:
    limit = float(player.asked(r"less than \$([\d.]+)\.")[1])
    for _ in range(60):
        if float(player.one(r'"\$[\d.]+"').text[1:]) < limit:
            break
        player.pass_time()
    player.click(player.one("^button"))


@solves("terminal")
def _terminal(player: Player) -> None:
    ending = re.search(r"extension (\.\w+)", player.wish)
    player.click("terminal")
    _keys(player, "ls")
    files = next(after for before, after in itertools.pairwise(player.seen) if before.text == "ls").text.split()
    _keys(player, "rm " + next(each for each in files if (each.endswith(ending[1]) if ending else "." not in each)))


def _keys(player: Player, command: str) -> None:
    for key in command:
        player.do("press", key="Space" if key == " " else key)
    player.do("press", key="Enter")


@solves("text-transform")
def _text_transform(player: Player) -> None:
    player.fill("".join(each.text for each in player.all("^span")))


@solves("tic-tac-toe")
def _tic_tac_toe(player: Player) -> None:
    order = list(itertools.permutations(range(9), 4))
    for cell in order[player.attempt * 37 % len(order)]:
        if player.seen[cell].words.startswith("span") and "mark" not in player.seen[cell].words:
            player.click(player.seen[cell])
    for cell in range(9):
        if "mark" not in player.seen[cell].words:
            player.click(player.seen[cell])


@solves("use-autocomplete", "use-autocomplete-nodelay")
def _autocomplete(player: Player) -> None:
    start, *end = re.findall('"(.*?)"', player.wish)
    player.write(player.one("^input"), start)
    player.pass_time()
    options = player.all('^(div|a|li).*ui-menu|^div "')
    wanted = [each for each in options if each.text.startswith(start) and (not end or each.text.endswith(end[0]))]
    player.click(wanted[0])
    player.submit()


@solves("visual-addition")
def _visual_addition(player: Player) -> None:
    player.fill(str(len(player.all("addition-block"))))


@solves("find-greatest")
def _find_greatest(player: Player) -> None:
    numbers = []
    for nth in range(len(player.all("card hidden"))):
        player.click(player.seen[nth])
        numbers.append(int(player.seen[nth].text))
    player.click(player.seen[numbers.index(max(numbers))])
    player.submit()


@solves("email-inbox-delete")
def _email_delete(player: Player) -> None:
    _icon(player, "trash", player.asked("email by (.*) and click")[1])


@solves("email-inbox-important")
def _email_star(player: Player) -> None:
    _icon(player, "star", player.asked("email by (.*) and click")[1])


def _icon(player: Player, kind: str, name: str) -> None:
    after = player.named(name).number
    player.click(next(each for each in player.all(f"class {kind}") if each.number > after))


@solves(
    "email-inbox", "email-inbox-reply", "email-inbox-noscroll", "email-inbox-star-reply", "email-inbox-forward",
    "email-inbox-forward-nl", "email-inbox-forward-nl-turk", "email-inbox-nl-turk",
)  # fmt: skip
def _email(player: Player) -> None:
    fields = player.fields or _found_fields(player)
    task = fields.get("task") or ("forward" if "to" in fields else "reply")
    if task in ("delete", "star", "important"):
        _icon(player, "trash" if task == "delete" else "star", fields["by"])
        return
    player.click(fields["by"])
    player.click(player.named(task.capitalize()))
    if task == "forward":
        player.write(player.one("^input"), fields["to"])
    else:
        player.write(player.one("^textarea"), fields["message"])
    player.click(player.one("id send-"))


def _found_fields(player: Player) -> dict[str, str]:
    by = player.asked("email by (.*?) and ")[1]
    for pattern, task, key in (
        (' with the text "(.*)"', "reply", "message"),
        (r"forward that email to (.*)\.", "forward", "to"),
    ):
        found = re.search(pattern, player.wish)
        if found:
            return {"by": by, "task": task, key: found[1]}
    return {"by": by, "task": "delete" if "delete" in player.wish else "star"}
