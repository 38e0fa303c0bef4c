"""The pages on versions state the versions that are in force."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from mcpenv import __version__
from mcpenv.targets.manifest import SCHEMA_VERSION
from mcpenv.trajectories.episode import FORMAT
from mcpenv_client import PROTOCOL_VERSION

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
POLICY = (REFERENCE / "upgrade-policy.md").read_text(encoding="utf-8")


def test_the_policy_has_the_versions_in_force() -> None:
    for stated in (
        f"| {__version__} |",
        f"| protocol {PROTOCOL_VERSION} |",
        f"| format {FORMAT} |",
        f"| schema version {SCHEMA_VERSION} |",
    ):
        assert stated in POLICY


def test_the_table_of_releases_has_this_one() -> None:
    page = (REFERENCE / "versions.md").read_text(encoding="utf-8")
    minor = ".".join(__version__.split(".")[:2])
    assert f"| {minor} | {PROTOCOL_VERSION} | format {FORMAT} | schema version {SCHEMA_VERSION} |" in page


@pytest.mark.parametrize(
    "name", re.findall(r"`([\w.]+)`", POLICY.partition("the names in the `__all__` of ")[2].partition(", and those")[0])
)
def test_a_module_that_the_policy_calls_stable_says_which_names_it_has(name: str) -> None:
    assert importlib.import_module(name).__all__
