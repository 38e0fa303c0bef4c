"""The language of conditions for episodes: what it means, what it refuses, and what it offers next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import command_lines
from exported import record
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.records.where import (
    FIELDS,
    OPERATORS,
    All,
    Compare,
    Condition,
    Either,
    Has,
    Not,
    OneOf,
    WhereError,
    completed,
    parse,
    parts_of,
    row_of,
    words_of,
)
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv_client.types.records import Trajectory

ROW: dict[str, Any] = {
    "id": "e1", "task_id": "refund-1", "split": "test", "level": 2, "family": "refunds", "environment": "Office",
    "agent": "codex", "model": None, "status": "completed", "ending": "terminated", "fault": None, "return": 0.3,
    "n_steps": 7, "errors": 0, "seed": 2**60, "policy_version": 3, "started_at": 1_764_374_400.0,
    "tools": ["transfer"], "callers": ["model qwen3", "person Ann"], "tags": ["money"], "review_tags": ["loop"],
    "rating": 2.0, "note": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (None, None),
        ({}, None),
        ({"name": "codex", "model": "m"}, "codex"),
        ({"kind": "model", "model": "m"}, "m"),
        ({"kind": "program", "command": "python a.py"}, "python a.py"),
        ({"kind": "idle"}, "idle"),
    ],
)
def test_an_agent_is_named_by_what_is_known_of_it(agent: dict[str, Any] | None, name: str | None) -> None:
    assert row_of(RecordedEpisode(Trajectory("e"), RecordedEnvironment("w"), agent=agent))["agent"] == name


def holds(text: str, row: dict[str, Any] = ROW, searched: Callable[[str], bool | None] = "ada".__contains__) -> Any:
    return parse(text).holds(row, searched)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'return < 0.4 and tool("transfer") and seed > 5 and agent = "codex"',
        "return = 0.30000000000000004 and not return > 0.3 and return >= 0.30000000000000004",
        f"seed = {2**60} and seed != {2**60 + 1}",
        "task = refund-1 and task = 'test/refund-1' and task ~ REFUND and task != other",
        "split in (train, test) and not split in (train)",
        "model = none and agent != none and not (model = x) and model != x",
        "not model ~ x and not (fault = a or fault = b)",
        'started > 2025-11-28 and started < 2025-11-30T00:00Z and started >= "2025-11-29T00:00"',
        "level=2 and family=refunds and policy_version>=3 and steps<=7 and errors=0",
        'tag("money") and not tag("other")',
        'caller("person") and caller("person Ann") and caller("model qwen3") and not (caller("pers") or caller("Ann"))',
        '"ad" and text("da") and not "nowhere"',
        "split = train or level = 2 and errors = 0",
    ],
)
def test_a_condition_holds(text: str) -> None:
    assert holds(text) is True


def test_and_binds_closer_than_or_and_parentheses_closest() -> None:
    assert holds("level = 2 or level = 3 and errors = 1") is True
    assert holds("(level = 2 or level = 3) and errors = 1") is False


def test_a_text_is_asked_for_only_where_the_rest_does_not_decide() -> None:
    def never(text: str) -> bool | None:
        raise AssertionError(text)

    assert holds('errors = 1 and "x"', searched=never) is False
    assert holds('errors = 0 or "x"', searched=never) is True
    for unknown in ('"x" and errors = 0', 'errors = 1 or not "x"'):
        assert holds(unknown, searched=lambda text: None) is None


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("return", 6, ["in", "an operator"]),
        ("return < ", 9, ["a number"]),
        ("return < 'x'", 9, ["a number"]),
        ("return ~ 1", 7, ["in", "an operator"]),
        ("retrun < 1", 0, ["not", "(", "a text in quotes", "a function", "a field"]),
        ("return < 1 tool", 11, ["and", "or"]),
        ("(return < 1", 11, ["and", "or", ")"]),
        ("tool(transfer)", 5, ["a text in quotes"]),
        ("agent = 4o-mini", 8, ["none", "a text in quotes"]),
        ("agent < x", 6, ["in", "an operator"]),
        ('agent = "x', 8, ["none", "a text in quotes"]),
        ("started > yesterday", 10, ["a time such as 2026-11-29 or 2026-11-29T18:00"]),
        ("started > 2026-13-29", 10, ["a time such as 2026-11-29 or 2026-11-29T18:00"]),
        ("split in (test", 14, [",", ")"]),
        ("not " * 60 + "errors = 0", 204, ["at most 50 levels"]),
        ("errors = 0 and " * 600 + "errors = 0", 8000, ["at most 8000 characters"]),
        ("seed > 1e999", 7, ["a number"]),
    ],
)
def test_a_refusal_names_the_position_and_what_was_expected(text: str, position: int, expected: list[str]) -> None:
    with pytest.raises(WhereError) as refused:
        parse(text)
    assert (refused.value.position, refused.value.expected) == (position, expected)
    assert str(refused.value).startswith(f"column {position + 1}: expected ")


TEXTS = st.text(max_size=12)
VALUES = {"number": st.integers() | st.floats(allow_nan=False, allow_infinity=False), "text": TEXTS}


def compared(name: str) -> st.SearchStrategy[Condition]:
    kind = FIELDS[name][0]
    values: st.SearchStrategy[Any] = VALUES.get(kind, st.integers(0, 4_000_000_000).map(float))
    signs = ["=", "!=", "~"] if kind == "text" else [sign for sign in OPERATORS if sign != "~"]
    some = st.sampled_from(signs).flatmap(lambda sign: st.builds(Compare, st.just(name), st.just(sign), values))
    none = st.builds(Compare, st.just(name), st.sampled_from(["=", "!="]), st.none())
    return (
        some | none | st.builds(OneOf, st.just(name), st.lists(values | st.none(), min_size=1, max_size=3).map(tuple))
    )


LEAVES = st.sampled_from(sorted(FIELDS)).flatmap(compared) | st.builds(
    Has, st.sampled_from(["tool", "caller", "tag", "text"]), TEXTS
)


def several(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inner) | st.builds(All, parts) | st.builds(Either, parts)


CONDITIONS: st.SearchStrategy[Condition] = st.recursive(LEAVES, several, max_leaves=8)


@given(CONDITIONS, st.booleans())
def test_a_written_condition_is_read_as_the_same_condition(condition: Condition, known: bool) -> None:
    again = parse(str(condition))
    assert str(parse(str(again))) == str(again)
    assert again.holds(ROW, lambda text: known) == condition.holds(ROW, lambda text: known)


@given(CONDITIONS)
def test_not_is_the_opposite_and_an_unknown_text_decides_nothing_wrongly(condition: Condition) -> None:
    for known in (True, False):
        searched = {True: lambda text: True, False: lambda text: False}[known]
        assert Not(condition).holds(ROW, searched) is not condition.holds(ROW, searched)
    unknown = condition.holds(ROW, lambda text: None)
    if unknown is not None:
        assert unknown == condition.holds(ROW, lambda text: True) == condition.holds(ROW, lambda text: False)


WORDS = ["(", ")", "and", "or", "not", "return", "<", '"x"', "=", "in", ",", "text(", "none", "1e5", "-"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_read_or_refused_at_a_place_in_it_and_can_be_completed(text: str) -> None:
    try:
        parse(text)
    except WhereError as error:
        assert 0 <= error.position <= len(text) and error.expected
    start, _, _ = completed(text)
    assert 0 <= start <= len(text)


@given(CONDITIONS)
def test_the_parts_of_a_condition_are_together_the_condition(condition: Condition) -> None:
    parts = parts_of(parse(str(condition)))
    signs = {"from": ">=", "below": "<"}
    bounds = [
        f"{field} {signs[side]} {parts[name]}"
        for name in parts
        if parts[name] and (field := name.partition("_")[0]) and (side := name.partition("_")[2]) in signs
    ]
    again = parse(" and ".join(part for part in (parts["rest"], *bounds, parts["tasks"]) if part))
    for known in (lambda text: True, lambda text: False):
        assert again.holds(ROW, known) == condition.holds(ROW, known)


def test_values_of_the_record_are_offered_by_how_frequent_they_are() -> None:
    rows = [{"tools": ["roll", "say"]}, {"tools": ["say", "essay"]}]
    offered = [word["text"] for word in words_of('"sa', *completed('tool("sa')[1:], rows)]
    assert offered == ['"say"', '"essay"']
    assert [word["text"] for word in words_of("po", *completed("po")[1:], [])] == ["policy_version"]
    assert [word["text"] for word in words_of("", *completed("agent ")[1:], [])] == ["in", "=", "!=", "~"]


@pytest.mark.parametrize(
    ("text", "start", "words", "subject"),
    [
        ("", 0, ["not", "(", "a text in quotes", "a function", "a field"], None),
        ("ret", 0, ["not", "(", "a text in quotes", "a function", "a field"], None),
        ("return", 0, ["not", "(", "a text in quotes", "a function", "a field"], None),
        ("return ", 7, ["in", "an operator"], "return"),
        ("agent = ", 8, ["none", "a text in quotes"], "agent"),
        ('agent = "co', 8, ["none", "a text in quotes"], "agent"),
        ("return < 1 a", 11, ["and", "or"], None),
        ('(tool("tr', 6, ["a text in quotes"], "tool"),
        ("split in (te", 10, ["none", "a text in quotes"], "split"),
        ("bad bad agent = ", 16, [], None),
    ],
)
def test_a_text_that_is_being_written_has_its_next_words(
    text: str, start: int, words: list[str], subject: str | None
) -> None:
    assert completed(text) == (start, words, subject)


def test_the_command_lists_what_fits_and_points_at_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "record")
    with command_lines(tmp_path, monkeypatch, capfd) as cli:

        def found(where: str) -> set[str]:
            done = cli("trajectories", "list", "record", "--where", where, "--json")
            assert done.status == 0, done.err
            return {json.loads(line)["id"] for line in done.out.splitlines()}

        everything = found("")
        assert everything == found("errors > 0") == {"bare", "model", "played"}
        assert found("not steps = 2") == {"bare"} and found("agent = script") == {"played"}
        assert found('tool("picture") and "not with THESE"') == {"bare"} and not found('tool("picture") and "NOWHERE"')
        assert found('task = "test/low-1" and return = 1') == {"bare"}
        refused = cli("trajectories", "list", "record", "--where", "return < and")
        assert refused.status == 2
        assert "--where: column 10: expected a number, found 'and', in: return < and" in refused.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed = " + "9" * 400, "a number"),
        ("seed = " + "9" * 5000, "a number"),
        ("return > 1e999", "a number"),
        ('started > "9999-12-31T23:59:59-14:00"', "a time"),
        ('started > "0001-01-01T00:00:00+01:00"', "a time"),
        (f"seed in ({', '.join(map(str, range(201)))})", "at most 200 values"),
        (" and ".join(f'"{number}"' for number in range(11)), "at most 10 texts"),
    ],
)
def test_what_is_too_large_is_refused_at_its_place(text: str, expected: str) -> None:
    with pytest.raises(WhereError, match=expected):
        parse(text)
    completed(text)


def test_one_of_several_values_holds_as_each_alone_does() -> None:
    for text in ('task in ("refund-1", x)', 'task in ("test/refund-1")', "level in (1, 2)", "model in (none)"):
        assert holds(text) is True, text
    assert holds("return in (1, 0.30000000000000004)") is True and holds("seed in (1, none)") is False
