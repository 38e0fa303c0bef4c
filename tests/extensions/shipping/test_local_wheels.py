"""Wheels of what is installed here from somewhere else than a package index."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from mcpenv import ConfigurationError
from mcpenv.extensions.shipping.image.local_wheels import (
    LocalDistribution,
    build_wheels,
    local_distributions,
    name_of,
    wheels_of,
)
from mcpenv.extensions.shipping.image.plan import ImagePlan

NAME = "mcpenv-test-far"
FAR = "mcpenv_test_far"
WHEEL = f"{FAR}-1.0-py3-none-any.whl"


@pytest.fixture
def plan(tmp_path: Path) -> ImagePlan:
    return ImagePlan(tmp_path, "shop", needs=(NAME,))


def install(place: Path, monkeypatch: pytest.MonkeyPatch, record: object) -> None:
    """Install a distribution as pip does, with where it came from (PEP 610)."""
    info = place / "site" / f"{FAR}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n", encoding="utf-8")
    if record is not None:
        (info / "direct_url.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(info.parent)])


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ({"url": "file:///home/a%20b/far", "dir_info": {"editable": True}}, "/home/a b/far"),
        ({"url": "file:///wheels/far.whl", "archive_info": {}}, "/wheels/far.whl"),
        ({"url": "https://example.org/far.whl", "archive_info": {}}, "https://example.org/far.whl"),
        (
            {
                "url": "https://example.org/far",
                "vcs_info": {"vcs": "git", "commit_id": "c0ffee"},
                "subdirectory": "python",
            },
            "git+https://example.org/far@c0ffee#subdirectory=python",
        ),
    ],
)
def test_what_came_from_elsewhere_is_built_from_there(
    record: object, source: str, plan: ImagePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, record)
    assert local_distributions(plan, []) == [LocalDistribution(NAME, source)]


def test_what_an_index_has_is_not_built(plan: ImagePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, None)
    assert local_distributions(plan, []) == []


def test_a_wheel_that_is_given_or_in_the_folder_is_not_built(
    plan: ImagePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"url": "file:///gone", "dir_info": {}})
    assert local_distributions(plan, [Path(WHEEL)]) == []
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).touch()
    with wheels_of(plan, []) as wheels:
        assert wheels == []


def test_the_wheel_of_a_file_is_that_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as wheel:
        info = f"{FAR}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (built,) = build_wheels([LocalDistribution(NAME, str(tmp_path / WHEEL))], tmp_path / "made")
    assert built.name == WHEEL and built.is_file()


def test_a_wheel_that_cannot_be_built_says_from_where_and_what_to_do(tmp_path: Path) -> None:
    gone = LocalDistribution(NAME, str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"is installed from .*gone, and no wheel .*; give its wheel"):
        build_wheels([gone], tmp_path / "made")


def test_a_file_that_is_not_named_as_wheels_are_is_refused() -> None:
    assert name_of(Path(WHEEL)) == NAME
    with pytest.raises(ConfigurationError, match=r"--wheel far\.whl: that is not the name of a wheel"):
        name_of(Path("far.whl"))
