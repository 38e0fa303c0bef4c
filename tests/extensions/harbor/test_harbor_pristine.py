"""The paths that are carried over to the box of the tests, by the variables and the working folder of an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import pytest

from mcpenv.extensions.harbor.pristine import Carried


def is_carried(carried: Carried, path: str) -> bool:
    found = PurePosixPath(path)
    return not carried.is_system(found) and not {found, *found.parents} & set(carried.programs)


@pytest.mark.parametrize(
    ("env", "workdir", "keep", "pristine", "work"),
    [
        ({}, "/app", [], ["/nix/store/a", "/var/lib/dpkg/status", "/root/.bashrc"], ["/var/lib/mine/a", "/srv/a"]),
        ({}, "/app", ["/usr"], ["/root/.bashrc"], ["/usr/bin/a", "/var/lib/dpkg/status"]),
        ({}, "/root", [], ["/root/.bashrc", "/root/.local/bin/a"], ["/root/.env", "/root/.git/config", "/root/a"]),
        ({}, "/root", ["/root/.bashrc"], ["/root/.profile"], ["/root/.bashrc"]),
        ({}, "/home/ada/work", [], ["/home/ada/.bashrc"], ["/home/ada/work/.bashrc", "/home/ada/a"]),
        ({}, "/home/ada", [], ["/home/ada/.curlrc"], ["/home/ada/.env"]),
        ({"HOME": "/srv/me"}, "/app", [], ["/srv/me/.gitconfig", "/root/.bashrc"], ["/srv/me/a", "/app/.gitconfig"]),
        ({"HOME": "/app"}, "/app", [], ["/app/.npmrc"], ["/app/.env", "/app/a"]),
        ({"PATH": "/venv/bin:/bin"}, "/app", [], ["/venv/bin/a", "/venv/lib/a", "/venv/pyvenv.cfg"], ["/venv/data"]),
        ({"PATH": "/app/.venv/bin:/bin"}, "/app", [], ["/app/.venv/lib/a"], ["/app/bin/a"]),
        ({"PATH": "./node_modules/.bin:/bin"}, "/app", [], ["/app/node_modules/.bin/a"], ["/app/node_modules/a"]),
        ({"PATH": "/app:/app/../x:/bin", "PYTHONPATH": ""}, "/app", [], [], ["/app/a", "/x/a"]),
        ({"PYTHONUSERBASE": "/srv/u", "VIRTUAL_ENV": "/srv/v"}, "/app", [], ["/srv/u/a", "/srv/v/a"], ["/srv/w"]),
    ],
)  # fmt: skip
def test_files_that_run_in_programs_are_pristine_and_work_is_carried_over(
    env: dict[str, str], workdir: str, keep: Sequence[str], pristine: Sequence[str], work: Sequence[str]
) -> None:
    carried = Carried.of(env, workdir, keep)
    assert [path for path in pristine if is_carried(carried, path)] == []
    assert [path for path in work if not is_carried(carried, path)] == []
