"""The rule by which all groups of entry points are read, on distributions of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpenv.cli.commands import KERNEL, Command
from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.targets.place import find_place

GROUP = "mcpenv.some_group"


def install(folder: Path, name: str, *entries: str, group: str = GROUP) -> str:
    """Write the metadata of a distribution, and return the folder to have on ``sys.path``."""
    info = folder / name / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))
    return str(folder / name)


def test_mcpenvs_own_entry_is_used_and_else_the_first_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = install(tmp_path, "first", "twice = first:x", "own = first:x")
    second = install(tmp_path, "second", "twice = second:x", "own = mcpenv.cli.commands:KERNEL")
    for folder in (second, first):
        monkeypatch.syspath_prepend(folder)
    entries = entries_of(GROUP)
    assert {name: entry.value for name, entry in entries.items()} == {
        "twice": "first:x",
        "own": "mcpenv.cli.commands:KERNEL",
    }
    assert load_entry(entries["own"], "the thing") is KERNEL
    assert isinstance(KERNEL["run"], Command)


def test_an_entry_that_cannot_be_loaded_is_named_with_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "broken", "some.thing = not_there:x"))
    with pytest.raises(ConfigurationError) as refused:
        load_entry(entries_of(GROUP)["some.thing"], "the thing")
    assert str(refused.value) == (
        "the thing some thing of broken: not_there:x cannot be loaded: ModuleNotFoundError: No module named 'not_there'"
    )


def test_a_target_with_an_unknown_prefix_is_refused_with_the_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "dice", "dice = dice:make", group="mcpenv.targets"))
    with pytest.raises(TargetError, match=r"begins with none of .*dice: .*harbor: .*Did you mean 'dice:6'\?$"):
        find_place("dise:6")
