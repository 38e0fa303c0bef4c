"""Changes of a world: what is found, and what is expected of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mcpenv.rewards.verifiers import ANY, REMOVED, Change, Changes

BEFORE = {
    "accounts": {"1": {"balance": 100, "owner": "ann"}, "2": {"balance": 0, "owner": "bob"}},
    "transfers": {"6": {"amount": 5}},
}


def after(**tables: Any) -> dict[str, Any]:
    """The world with some rows changed: ``accounts={"1": {...}}``; None takes a row away."""
    world: dict[str, Any] = copy.deepcopy(BEFORE)
    for table, rows in tables.items():
        for row, columns in rows.items():
            if columns is None:
                del world[table][row]
            else:
                world[table].setdefault(row, {}).update(columns)
    return world


PAID = after(accounts={"1": {"balance": 90}, "2": {"balance": 10}}, transfers={"7": {"amount": 10}})


def test_a_column_is_a_change_and_a_row_that_came_or_went_is_one() -> None:
    world = after(accounts={"1": {"balance": 60}, "2": None}, transfers={"7": {"amount": 40}})
    assert [(change.path, change.kind, change.before, change.after) for change in Changes(BEFORE, world)] == [
        (("accounts", "1", "balance"), "changed", 100, 60),
        (("accounts", "2"), "removed", {"balance": 0, "owner": "bob"}, None),
        (("transfers", "7"), "added", None, {"amount": 40}),
    ]
    assert [change.to_plain() for change in Changes({"a": 1}, {"b": None})] == [
        {"path": ["a"], "kind": "removed", "before": 1},
        {"path": ["b"], "kind": "added", "after": None},
    ]


def test_problems_are_sentences() -> None:
    changes = Changes(BEFORE, after(accounts={"1": {"balance": 60}}, transfers={"7": {"amount": 40}, "6": None}))
    verdict = changes.expect_exactly({"accounts/1/balance": 90, "accounts/2/balance": 10})
    assert not verdict and verdict.problems == [
        "accounts/1/balance changed from 100 to 60: expected 90",
        "transfers/6 was removed, but no change is expected there",
        "transfers/7 was added, but no change is expected there",
        "accounts/2/balance: expected 10, and there is no such change",
    ]
    several = [("transfers/*", {"amount": 41}), ("transfers/*", {"amount": 42}), ("transfers/*", {"amount": 43})]
    assert changes.expect_exactly([*several, ("accounts/1/balance", 60)]).problems == [
        'transfers/6 was removed: expected {"amount": 41} or {"amount": 42} or {"amount": 43}',
        'transfers/7 was added as {"amount": 40}: expected {"amount": 41} or {"amount": 42} or {"amount": 43}',
        'transfers/*: expected {"amount": 43}, and there is no such change',
    ]
    assert changes.expect_only({"transfers/*": {"amount": 41}, "**": 60}).problems == [
        'transfers/6 was removed: expected {"amount": 41} or 60',
        'transfers/7 was added as {"amount": 40}: expected {"amount": 41} or 60',
    ]


def test_what_may_change_need_not_unless_it_is_required() -> None:
    allowed = {"accounts/1/balance": 90, "transfers/*": ANY}
    unchanged, paid = Changes(BEFORE, BEFORE), Changes(BEFORE, PAID)
    assert unchanged.expect_only(allowed) and unchanged.expect_only({})
    assert not unchanged.expect_only(allowed, {"accounts/2/balance": 10})
    assert paid.expect_only(allowed, {"accounts/2/balance": 10})
    assert paid.expect_only(allowed).problems == [
        "accounts/2/balance changed from 0 to 10, but no change is expected there"
    ]


def test_any_value_is_not_that_there_is_none() -> None:
    gone = Changes(BEFORE, after(transfers={"6": None}))
    assert not gone.expect_only({"transfers/6": ANY}) and not gone.expect_only({"transfers/6": None})
    assert gone.expect_only({"transfers/6": REMOVED}) and gone.expect_exactly({"transfers/*": REMOVED})
    assert not Changes(BEFORE, PAID).expect_only({"**": REMOVED})
    assert Changes(BEFORE, PAID).expect_only({"**": ANY})
    assert pickle.loads(pickle.dumps(ANY)) is ANY


def test_a_value_may_be_open_in_parts() -> None:
    changes = Changes({"t": {}}, {"t": {"9": {"id": 9, "amount": 10, "tags": ["a", 17]}}})
    assert changes.expect_exactly({"t/*": {"id": ANY, "amount": 10, "tags": ["a", ANY]}})
    assert not changes.expect_exactly({"t/*": {"id": ANY, "amount": 11, "tags": ["a", ANY]}})
    assert not changes.expect_exactly({"t/*": {"amount": 10, "tags": ["a", ANY]}})


def test_each_expected_change_is_made_once() -> None:
    twice = after(transfers={"7": {"amount": 10}, "8": {"amount": 10}})
    assert Changes(BEFORE, twice).expect_exactly({"transfers/*": {"amount": 10}}).problems == [
        "transfers/8 was added: transfers/* is expected once, and another change is that one"
    ]
    pair = ("transfers/*", {"amount": 10})
    assert Changes(BEFORE, twice).expect_exactly([pair, pair])
    assert not Changes(BEFORE, twice).expect_exactly([pair, pair, pair])


def test_an_open_pattern_gives_way_to_a_change_that_has_no_other() -> None:
    world = after(transfers={"7": {"amount": 1}, "8": {"amount": 1}, "9": {"amount": 1}})
    expected = [("transfers/*", ANY), ("transfers/7", ANY), ("transfers/8", {"amount": 1})]
    for turned in (expected, expected[::-1], [expected[1], expected[0], expected[2]]):
        assert Changes(BEFORE, world).expect_exactly(turned)


def test_places_that_do_not_count_are_left_out_also_inside_of_rows() -> None:
    world = after(accounts={"1": {"seen": 5}}, transfers={"7": {"amount": 10, "seen": 5}, "6": {"seen": 1}})
    assert Changes(BEFORE, world, ["*/*/seen"]).expect_exactly({"transfers/7": {"amount": 10}})
    assert Changes(BEFORE, world).ignoring("accounts/**").ignoring("transfers/6").expect_only({"transfers/7": ANY})
    assert len(Changes(BEFORE, world, "**")) == 0
    assert len(Changes(BEFORE, world)) == 3


def test_files_are_named_by_their_path() -> None:
    files = {"out/a.txt": {"text": "a"}, "b.txt": {"text": "b"}}
    then = {"out/a.txt": {"text": "A"}, "b.txt": {"text": "b"}, "out/new/c.txt": {"text": "c"}}
    expected = {"out/a.txt/text": "A", "out/new/c.txt": {"text": "c"}}
    assert Changes(files, then).expect_exactly(expected)
    assert Changes(files, then).expect_only({"out/**": ANY}) and not Changes(files, then).expect_only({"out/*": ANY})
    several = Changes({"files": files, "db": BEFORE}, {"files": then, "db": BEFORE}, named=True)
    assert several.expect_exactly({f"files/{path}": value for path, value in expected.items()})


def test_a_row_that_is_named_like_a_column_is_none() -> None:
    world = after(accounts={"1/balance": {"balance": 1}})
    assert not Changes(BEFORE, world).expect_only({"accounts/1/balance": ANY, "accounts/*/balance": ANY})
    assert Changes(BEFORE, world).expect_only({"accounts/1~1balance": ANY})
    alone = after(accounts={"7/balance": {"balance": 1}})
    for pattern in ("accounts/*/balance", "accounts/7/balance", "accounts/*/*"):
        assert not Changes(BEFORE, alone).expect_only({pattern: ANY})
    assert Changes(BEFORE, alone).expect_only({"accounts/*": ANY})
    assert not Changes({"db": BEFORE}, {"db": world}, named=True).expect_only({"db/accounts/1/balance": ANY})
    table = {**BEFORE, "accounts/1/balance": {}}
    assert not Changes(BEFORE, table).expect_only({"accounts/1/balance": ANY})


@pytest.mark.parametrize("pattern", ["", "/accounts", "accounts//1", "accounts/", "out/*.txt", "***", 7])
def test_a_pattern_that_is_none_is_refused(pattern: Any) -> None:
    for use in ("ignore", "only", "exactly"):
        with pytest.raises(ValueError, match=r"path|star"):
            if use == "ignore":
                Changes({}, {}, [pattern])
            elif use == "only":
                Changes({}, {}).expect_only({pattern: 1})
            else:
                Changes({}, {}).expect_exactly({pattern: 1})


def test_true_is_not_one_and_one_is_one_point_nothing() -> None:
    assert len(Changes({"a": True}, {"a": 1})) == 1 and len(Changes({"a": [0]}, {"a": [False]})) == 1
    assert len(Changes({"a": 1}, {"a": 1.0})) == 0
    assert not Changes({}, {"a": 1}).expect_only({"a": True}) and Changes({}, {"a": 1.0}).expect_only({"a": 1})


def test_a_world_that_is_no_object_changes_as_a_whole() -> None:
    changes = Changes([1], [1, 2])
    assert [str(change) for change in changes] == ["the world changed from [1] to [1, 2]"]
    assert changes.expect_only({"**": [1, 2]}) and not changes.expect_only({"*": [1, 2]})


def test_a_world_that_is_nested_too_deeply_is_an_error_and_no_verdict() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"in": deep}
    with pytest.raises(ValueError, match="nested too deeply"):
        Changes(deep, copy_of_deep(deep))
    assert "nested too deeply" in Changes({}, {"a": deep}).expect_only({"a": 1}).problems[0]


def copy_of_deep(tree: dict[str, Any]) -> dict[str, Any]:
    depth = 0
    while tree:
        tree, depth = tree["in"], depth + 1
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"in": made}
    return made


def test_of_many_problems_some_are_told_and_the_rest_is_counted() -> None:
    verdict = Changes({}, {str(n): n for n in range(1000)}).expect_only({})
    assert len(verdict.problems) == 21 and verdict.problems[-1] == "and 980 more"


KEYS = st.text(st.sampled_from("ab/~*1"), min_size=1, max_size=3)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
WORLDS = st.dictionaries(KEYS, TREES, max_size=4)


def applied(before: Any, changes: list[Change]) -> Any:
    """The tree with the changes made to it."""
    tree = copy.deepcopy(before)
    for change in changes:
        if not change.path:
            return change.after
        here = tree
        for key in change.path[:-1]:
            here = here[key]
        if change.kind == "removed":
            del here[change.path[-1]]
        else:
            here[change.path[-1]] = change.after
    return tree


@given(TREES, TREES)
def test_the_changes_applied_to_the_world_before_give_the_one_after(before: Any, then: Any) -> None:
    changes = Changes(before, then)
    assert len(Changes(applied(before, list(changes)), then)) == 0
    assert applied(before, list(changes)) == then
    assert len(Changes(before, copy.deepcopy(before))) == 0


def entries_of(changes: Changes) -> dict[str, Any]:
    return {change.where: REMOVED if change.kind == "removed" else change.after for change in changes}


# Small worlds are often alike, so that the first ones may all be passed over.
@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(WORLDS, WORLDS, st.data())
def test_the_very_changes_pass_and_none_may_be_dropped_or_altered(
    before: dict[str, Any], then: dict[str, Any], data: st.DataObject
) -> None:
    changes = Changes(before, then)
    assume(len(changes) > 0 and not any("*" in change.where for change in changes))
    assume(all(all(change.parts) for change in changes))
    expected = entries_of(changes)
    assert len(expected) == len(changes)  # no two places are written alike
    assert changes.expect_exactly(expected).passed and changes.expect_only(expected).passed
    where = data.draw(st.sampled_from(sorted(expected)))
    dropped = {key: value for key, value in expected.items() if key != where}
    assert not changes.expect_exactly(dropped) and not changes.expect_only(dropped)
    altered = {**expected, where: 3 if expected[where] is REMOVED else [expected[where]]}
    assert not changes.expect_exactly(altered) and not changes.expect_only(altered)
    one_more = {**expected, "and/one/more": 1}
    assert not changes.expect_exactly(one_more) and changes.expect_only(one_more)
