"""Import paths of before: each finds the same module, once, with a warning at the importing line."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from mcpenv.moved import MOVED, NAMES, OFFERED, new_name


@pytest.mark.parametrize("old", [pytest.param(old, marks=[pytest.mark.world] * ("gymnasium" in old)) for old in MOVED])
def test_an_old_import_path_finds_the_module_where_it_is_now(old: str) -> None:
    now = importlib.import_module(MOVED[old])
    own = now.__spec__
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now") as warned:
        assert importlib.import_module(old) is now
    assert now.__spec__ is own and now.__name__ == MOVED[old]
    assert warned[0].filename.endswith("importlib/__init__.py")  # not a frame of the redirection


@pytest.mark.process
def test_a_module_of_a_moved_package_is_loaded_once() -> None:
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from mcpenv.evaluation.results import EpisodeResult as old\n"
        "from mcpenv.extensions.evaluation.results import EpisodeResult as now\n"
        "import mcpenv.packaging.target, mcpenv.targets.target\n"
        "assert old is now and mcpenv.packaging.target is mcpenv.targets.target"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_path_that_never_was_is_an_error() -> None:
    assert new_name("mcpenv.evaluations") is None
    with pytest.raises(ModuleNotFoundError, match=r"mcpenv\.evaluations"):
        importlib.import_module("mcpenv.evaluations")


@pytest.mark.parametrize("old", NAMES)
def test_a_moved_name_is_found_where_it_was(old: str) -> None:
    package, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} is {NAMES[old]}.{name} now"):
        assert getattr(importlib.import_module(package), name) is getattr(importlib.import_module(NAMES[old]), name)


@pytest.mark.parametrize("offered", [*OFFERED, *(path.replace(".api.", ".") for path in OFFERED if ".api." in path)])
def test_a_name_of_an_extension_is_offered_without_a_warning(offered: str) -> None:
    package, _, name = offered.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = getattr(importlib.import_module(package), name)
    assert found.__name__ == name and found.__module__.startswith("mcpenv.extensions.")
    assert name in importlib.import_module(package).__all__
