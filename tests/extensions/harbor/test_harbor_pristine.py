"""The paths that are carried over to the box of the tests, by the variables and the working folder of an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import pytest

from mcpenv.extensions.harbor.pristine import Carried

HOME = "/root"
"""The home of an image's user, if no variable names another."""


def is_carried(carried: Carried, path: str) -> bool:
    found = PurePosixPath(path)
    return not carried.is_system(found) and not {found, *found.parents} & set(carried.programs)


@pytest.mark.parametrize(
    ("env", "workdir", "keep", "pristine", "work"),
    [
        ({}, "/app", [], ["/nix/store/a", "/var/lib/dpkg/status", f"{HOME}/.bashrc"], ["/var/lib/mine/a", "/srv/a"]),
        ({}, "/", [], ["/.cargo/config.toml", "/.bashrc"], ["/a"]),
        ({}, "/app", ["/usr"], [f"{HOME}/.bashrc"], ["/usr/bin/a", "/var/lib/dpkg/status"]),
        ({}, HOME, [], [f"{HOME}/.bashrc", f"{HOME}/.local/bin/a"],
            [f"{HOME}/.env", f"{HOME}/.git/config", f"{HOME}/a"]),
        ({}, HOME, [f"{HOME}/.bashrc"], [f"{HOME}/.profile"], [f"{HOME}/.bashrc"]),
        ({}, "/home/ada/shop", [], ["/home/ada/.bashrc"], ["/home/ada/shop/.bashrc", "/home/ada/a"]),
        ({}, "/home/ada", [], ["/home/ada/.curlrc"], ["/home/ada/.env"]),
        ({"HOME": "/srv/me"}, "/app", [], ["/srv/me/.gitconfig", f"{HOME}/.bashrc"], ["/srv/me/a", "/app/.gitconfig"]),
        ({"HOME": "/app"}, "/app", [], ["/app/.npmrc"], ["/app/.env", "/app/a"]),
        ({"PATH": "/venv/bin:/bin"}, "/app", [], ["/venv/bin/a", "/venv/lib/a", "/venv/pyvenv.cfg"], ["/venv/data"]),
        ({"PATH": "/app/.venv/bin:/bin"}, "/app", [], ["/app/.venv/lib/a"], ["/app/bin/a"]),
        ({"PATH": "./node_modules/.bin:/bin"}, "/app", [], ["/app/node_modules/.bin/a"], ["/app/node_modules/a"]),
        ({"PATH": "/app:/app/../x:/bin", "PYTHONPATH": ""}, "/app", [], [], ["/app/a", "/x/a"]),
        ({"LD_PRELOAD": "/srv/p/a.so /srv/q/b.so", "LD_LIBRARY_PATH": "/srv/r;/srv/s", "LD_AUDIT": "/srv/t/c.so"},
            "/app", [], ["/srv/p/a.so", "/srv/q/b.so", "/srv/r/d.so", "/srv/s/d.so", "/srv/t/c.so"],
            ["/srv/p/x", "/srv/a.so"]),
        ({"PYTHONPYCACHEPREFIX": "/srv/c", "LUA_INIT": "@/srv/i.lua", "GIT_TEMPLATE_DIR": "/srv/t"}, "/app", [],
            ["/srv/c/usr/lib/a.pyc", "/srv/i.lua", "/srv/t/hooks/a"], ["/srv/w"]),
        ({"PYTHONUSERBASE": "/srv/u", "VIRTUAL_ENV": "/srv/v"}, "/app", [], ["/srv/u/a", "/srv/v/a"], ["/srv/w"]),
    ],
)  # fmt: skip
def test_files_that_run_in_programs_are_pristine_and_work_is_carried_over(
    env: dict[str, str], workdir: str, keep: Sequence[str], pristine: Sequence[str], work: Sequence[str]
) -> None:
    carried = Carried.of(env, workdir, keep)
    assert [path for path in pristine if is_carried(carried, path)] == []
    assert [path for path in work if not is_carried(carried, path)] == []


def test_homes_of_users_are_pristine_but_for_their_work_and_a_folder_of_programs_is_named_once() -> None:
    homes = ["/root", "/", "/srv/me", "/app", "/srv/team/me", "/nonexistent"]
    carried = Carried.of({"PATH": "/srv/me/.nvm/v1/bin"}, "/app", homes=homes)
    pristine = ["/srv/me/.bash_profile", "/app/.sqliterc", "/srv/team/me/.profile", f"{homes[0]}/.x", "/srv/me/.nvm/a"]
    assert [path for path in pristine if is_carried(carried, path)] == []
    assert [path for path in ("/srv/me/.env", "/app/.env", "/srv/me/a") if not is_carried(carried, path)] == []
    assert [path for path in carried.programs if not set(carried.programs).isdisjoint(path.parents)] == []


def test_variables_of_the_tests_count_like_those_of_the_image() -> None:
    of_tests = [{"LD_PRELOAD": "/app/a.so", "PATH": "/srv/p/bin:/bin", "HOME": "/app/h"}, {"PYTHONPATH": "/srv/q"}]
    carried = Carried.of({"PATH": "/srv/i/bin", "HOME": "/srv/me"}, "/app", [], of_tests)
    pristine = ["/app/a.so", "/srv/p/bin/a", "/app/h/.bashrc", "/srv/q/a.py", "/srv/i/bin/a", "/srv/me/.bashrc"]
    assert [path for path in pristine if is_carried(carried, path)] == []
    assert [path for path in ("/app/b", "/app/h/a", "/srv/p/a") if not is_carried(carried, path)] == ["/srv/p/a"]
