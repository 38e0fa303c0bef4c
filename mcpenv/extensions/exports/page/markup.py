"""Elements, and the frame of a page that contains them.

Pages consist of elements, never of text with tags: recorded data is always text or an attribute's value, which the
serializer escapes. Names of tags and attributes come from this package only.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable
from typing import Any
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def el(tag: str, *children: Child, **attributes: str | None) -> Element:
    """Return an element.

    Args:
        children: texts and elements; None is skipped.
        attributes: by name, with ``_`` for ``-``; ``class_`` is ``class``. None omits an attribute.
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name.rstrip("_").replace("_", "-"), _text(value))
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child is not None:
            _append_text(element, _text(child))
    return element


def pre(text: str, label: str) -> Element:
    """Return a text unchanged, in a block that can also be scrolled by the keyboard."""
    # A parser drops the first line feed of the element.
    return el("pre", "\n" + text, tabindex="0", role="region", aria_label=label)


def table(label: str, headings: Iterable[str], rows: Iterable[Iterable[Child]], numbers: Iterable[int] = ()) -> Element:
    """Return a table, of which the first column names the rows. It scrolls sideways, also by the keyboard.

    Args:
        label: its name for screen readers.
        numbers: the columns of numbers, from 0.
    """
    right = set(numbers)

    def cell(tag: str, at: int, child: Child, scope: str | None) -> Element:
        return el(tag, child, scope=scope, class_="number" if at in right else None)

    head = el("tr", *(cell("th", at, name, "col") for at, name in enumerate(headings)))
    body = [
        el("tr", *(cell("td" if at else "th", at, child, None if at else "row") for at, child in enumerate(row)))
        for row in rows
    ]
    whole = el("table", el("thead", head), el("tbody", *body))
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)


def facts(pairs: Iterable[tuple[str, Child]]) -> Element:
    """Return names with their values; None and empty values are omitted."""
    found = [(name, value) for name, value in pairs if value is not None and not (isinstance(value, str) and not value)]
    return el("dl", *(each for name, value in found for each in (el("dt", name), el("dd", value))), class_="facts")


def plain_of(element: Element) -> list[Any]:
    """Return an element as JSON data for the console: its tag, its attributes, then its texts and elements."""
    inside = [part for child in element for part in (plain_of(child), child.tail) if part]
    return [element.tag, dict(element.attrib), *([element.text] if element.text else []), *inside]


def html_of(element: Element) -> str:
    """Return an element as HTML."""
    return tostring(element, encoding="unicode", method="html")


def head_of(title: str) -> str:
    """Return the beginning of a page, up to its content."""
    meta = (
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", http_equiv="Content-Security-Policy", content=policy()),
    )
    head = html_of(el("head", *meta, el("title", title), el("style", _style())))
    return f'<!doctype html>\n<html lang="en">{head}<body><main>\n'


def page_of(title: str, content: Iterable[Element]) -> str:
    """Return a whole page."""
    return head_of(title) + "".join(html_of(element) + "\n" for element in content) + FOOT


FOOT = "</main></body></html>\n"
"""The end of a page, after its content."""


@functools.cache
def policy() -> str:
    """Return the Content-Security-Policy of a page: it allows the page's own style and embedded media only."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; media-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


@functools.cache
def _style() -> str:
    return (importlib.resources.files(__package__) / "style.css").read_text(encoding="utf-8")


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _text(text: str) -> str:
    """Return a text that can be encoded: with lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
