"""The tree of an episode's family, as the console draws it."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.console.family import MAX_DEPTH, MAX_MEMBERS, Families
from mcpenv.extensions.exports.page.markup import plain_of
from mcpenv_client.types.values import to_plain


def row(id: str, steps: int, score: float | None, parent: str | None = None, at: int | None = None) -> dict[str, Any]:
    return {
        "id": id, "place": f"at-{id}", "n_steps": steps, "return": score, "status": None, "parent": parent,
        "parent_step": at, "started_at": 0.0,
    }  # fmt: skip


def links(tree: Element) -> list[str]:
    return [str(each.get("href")) for each in tree.iter("a") if each.get("aria-hidden") is None]


def test_branches_of_branches_are_drawn_from_the_step_at_which_they_leave() -> None:
    rows = [
        row("root", 8, 0.0),
        row("early", 6, 1.0, "root", 2),
        row("late", 9, 0.5, "root", 7),
        row("inner", 7, None, "early", 5),
        row("other", 3, 1.0),
    ]
    families = Families(rows)
    assert families.tree("other", "records") is None
    for present in ("root", "inner"):
        tree = families.tree(present, "records")
        assert tree is not None
        (here,) = [each for each in tree.iter("div") if each.get("aria-current")]
        assert "".join(here.itertext()).lstrip("↳ ").startswith(present)
        assert links(tree) == [
            "#/records/at-root",
            "#/records/at-late", "#/records/at-root?step=7",
            "#/records/at-early", "#/records/at-root?step=2",
            "#/records/at-inner", "#/records/at-early?step=5",
        ]  # fmt: skip
        assert [len(each.findall("li")) for each in tree.iter("ul")] == [1, 2, 1]
        lines = [str(each.get("d")) for each in tree.iter("path") if each.get("class") != "dot"]
        assert lines == ["M0 14H8", "M7 -14V14", "M7 14H9", "M2 -42V14", "M2 14H6", "M5 -14V14", "M5 14H7"]
        colours = [str(each.get("stroke")) for each in tree.iter("path") if each.get("class") == "bar"]
        shares = [re.findall(r"\d+(?=%)", each) or each for each in colours]
        assert shares == [["0"], ["50"], ["100"], "var(--muted)"]


def test_a_parent_that_is_not_in_the_record_and_a_circle_are_drawn_and_a_large_family_in_part() -> None:
    orphans = Families([row("a", 5, 1.0, "gone", 3), row("b", 4, 1.0, "gone", 3)]).tree("a", "records")
    assert orphans is not None and links(orphans) == ["#/records/at-b", "#/records/at-a"]
    assert Families([row("a", 5, 1.0, "b", 3), row("b", 4, 1.0, "a", 3)]).tree("a", "records") is not None
    many = [row("root", 5, 1.0), *(row(f"{n}", 5, 1.0, "root", 1) for n in range(2 * MAX_MEMBERS))]
    chain = [row("0", 1, None), *(row(f"{n + 1}", 1, None, f"{n}", 1) for n in range(3 * MAX_DEPTH))]
    for rows, present, drawn in (
        (many, "root", MAX_MEMBERS), (many, f"{2 * MAX_MEMBERS - 1}", MAX_MEMBERS), (chain, "0", MAX_DEPTH + 1)
    ):  # fmt: skip
        tree = Families(rows).tree(present, "evaluations/x/records")
        assert tree is not None and len(list(tree.iter("li"))) == drawn
        assert [each for each in tree.iter("div") if each.get("aria-current")]
        assert f"{drawn} of {len(rows)} episodes are drawn." in "".join(tree.itertext())
        to_plain(plain_of(tree), "tree")  # an answer may not be nested more deeply


def test_lines_lead_to_the_rows_that_are_drawn() -> None:
    hidden = [row(f"deep-{n}", 1, None, f"deep-{n - 1}" if n else "root", 1) for n in range(2 * MAX_DEPTH)]
    tree = Families([row("root", 9, 1.0), *hidden, row("last", 9, 1.0, "root", 0)]).tree("root", "records")
    assert tree is not None
    lines = [str(each.get("d")) for each in tree.iter("path")]
    assert f"M0 {14 - 28 * (MAX_DEPTH + 1)}V14" in lines
