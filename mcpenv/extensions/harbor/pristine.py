"""Say which files of a box are the system's: the tests of a task find these as the task's image has them.

An agent is root in its box. It could make the tests' own programs run its files: by ``/etc/ld.so.preload``, another
``/bin/bash``, a file of a folder in ``PATH``, ``.bashrc`` or Python's ``usercustomize.py`` in a home, ``/pytest.ini``.
The folders of programs and settings, dot files in homes, and files directly in ``/`` are therefore pristine when tests
run. Everything else, the working folder above all, is as the agent left it, and so are the settings of `SERVERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

SYSTEM = (
    "bin", "boot", "dev", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "logs", "nix", "opt", "proc", "run", "sbin",
    "snap", "solution", "sys", "tests", "usr",
)  # fmt: skip
"""The folders in ``/`` of which nothing is carried over."""

LOGS = (PurePosixPath("/logs/agent"), PurePosixPath("/logs/artifacts"))
"""The folders in ``/logs`` that are carried over."""

_SEARCHED = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE",
    "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "BASH_ENV", "ENV", "ZDOTDIR", "INPUTRC",
    "PERL5LIB", "PERLLIB", "RUBYLIB", "GEM_HOME", "GEM_PATH", "NODE_PATH", "NVM_DIR", "CARGO_HOME", "RUSTUP_HOME",
    "GOROOT", "JAVA_HOME", "CLASSPATH", "PHPRC", "PHP_INI_SCAN_DIR", "R_HOME", "R_LIBS", "R_LIBS_USER",
    "R_PROFILE_USER", "R_ENVIRON_USER", "LUA_INIT", "CURL_HOME", "WGETRC", "PIP_CONFIG_FILE", "GIT_CONFIG",
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GCONV_PATH", "OPENSSL_CONF",
    "OPENSSL_MODULES", "OPENSSL_ENGINES", "MAKEFILES", "NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG",
    "NPM_CONFIG_PREFIX", "XDG_CONFIG_HOME",
)  # fmt: skip
"""The variables that name folders and files of programs."""

_SEPARATOR = re.compile("[:; ]")
"""Between the words of a variable; the dynamic linker's also have blanks and semicolons."""

_PACKAGES = tuple(
    PurePosixPath("/var", name)
    for name in (
        "cache/apk", "cache/apt", "cache/debconf", "cache/dnf", "cache/yum", "lib/apk", "lib/apt", "lib/dnf",
        "lib/dpkg", "lib/gems", "lib/pacman", "lib/rpm", "lib/yum",
    )
)  # fmt: skip
"""The folders of package managers, whose scripts run as soon as tests install a package."""

_OF_HOME = (
    ".R", ".Renviron", ".Rprofile", ".bash_aliases", ".bash_login", ".bash_logout", ".bash_profile", ".bashrc",
    ".bundle", ".cargo", ".condarc", ".config", ".curlrc", ".gdbinit", ".gem", ".gitconfig", ".gradle", ".inputrc",
    ".irbrc", ".julia", ".lldbinit", ".local", ".m2", ".mambarc", ".mavenrc", ".netrc", ".node_libraries",
    ".node_modules", ".npmrc", ".nvm", ".octaverc", ".pdbrc", ".pip", ".profile", ".psqlrc", ".pydistutils.cfg",
    ".pyenv", ".pypirc", ".rbenv", ".rustup", ".sqliterc", ".wgetrc", ".yarnrc", ".zlogin", ".zprofile", ".zshenv",
    ".zshrc",
)  # fmt: skip
"""The dot files by which programs are configured, for a home in which tasks work; its other dot files are work."""

_OF_PREFIX = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg", "sbin", "share")
"""The folders and files of installed programs, such as of a virtual environment of Python."""

SERVERS = (
    "apache2", "bind", "caddy", "cron.d", "dovecot", "haproxy", "httpd", "logrotate.d", "nginx", "postfix", "samba",
    "supervisor", "systemd", "vsftpd",
)  # fmt: skip
"""The folders in ``/etc`` that are carried over: settings of servers, which only a server reads that tests start."""

_TOLD = ("bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "usr")
_MOST_TOLD = 5
_LONGEST_TOLD = 60

_OF_PYTEST = ("pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py")
"""Files in ``/`` by which pytest, called with tests in ``/tests``, would be configured."""

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT, _USR, _HOMES, _HOME = map(PurePosixPath, ("/", "/usr", "/home", "/root"))


@dataclass(frozen=True)
class Carried:
    """The paths that are carried over from the agent's box to the box of the tests.

    Attributes:
        folders: paths in system folders that are carried over all the same, the working folder for one.
        programs: paths that are pristine although they are in folders that are carried over.
        in_root: True if files directly in ``/`` are carried over, because it is the working folder.
        env: the variables by which programs of the image run no file of the agent, while `programs` are the agent's.
    """

    folders: tuple[PurePosixPath, ...]
    programs: tuple[PurePosixPath, ...]
    in_root: bool
    env: Mapping[str, str]

    @classmethod
    def of(
        cls,
        env: Mapping[str, str],
        workdir: str,
        keep: Sequence[str] = (),
        tests_env: Sequence[Mapping[str, str]] = (),
        homes: Iterable[str] = (),
    ) -> Carried:
        """Return what is carried over in an image.

        Args:
            env: the variables of the image and the task.
            workdir: the working folder.
            keep: further paths that the task names.
            tests_env: the variables of the tests of each step.
            homes: the homes of the image's users.
        """
        kept = [PurePosixPath(path) for path in (workdir, *keep) if path.startswith("/")]
        named = {PurePosixPath(path) for path in keep}
        servers = (PurePosixPath("/etc", name) for name in SERVERS)
        folders = dict.fromkeys((*LOGS, *servers, *(path for path in kept if path != _ROOT)))
        work = PurePosixPath("/", workdir)
        values = (each[name] for each in (env, *tests_env) for name in _SEARCHED if name in each)
        words = (work / word.lstrip("@") for value in values for word in _SEPARATOR.split(value))
        programs = dict.fromkeys(path for word in words for path in _programs(word, kept))
        managed = _PACKAGES if _USR not in named else ()
        homes = (*homes, *(each["HOME"] for each in (env, *tests_env) if "HOME" in each))
        further = (*managed, *_settings(map(PurePosixPath, homes), work))
        programs |= dict.fromkeys(path for path in further if not named & {path, *path.parents})
        highest = (path for path in programs if programs.keys().isdisjoint(path.parents))
        carried = cls(tuple(folders), tuple(highest), _ROOT in kept, {name: "" for name in _SEARCHED if name in env})
        searched = (each for each in env.get("PATH", "").split(":") if each.startswith("/") and ".." not in each)
        system = (each for each in searched if carried.is_system(PurePosixPath(each)))
        return replace(carried, env={**carried.env, "PATH": ":".join((_PATH, *system))})

    def is_system(self, path: PurePosixPath) -> bool:
        """Return True if a path is one of the system's, whose change is not carried over."""
        if any(path == folder or folder in path.parents for folder in self.folders):
            return False
        parts = path.parts[1:]
        if not parts or parts[0] in SYSTEM:
            return True
        if parts[0].startswith(".") or (len(parts) == 1 and parts[0] in _OF_PYTEST):
            return True
        home = 2 if parts[0] == "home" else 1 if parts[0] == "root" else None
        return home is not None and len(parts) > home and parts[home].startswith(".")

    def dropped(self, changed: Iterable[PurePosixPath]) -> str | None:
        """Return a sentence that names the changed paths that are not carried over; None if there are none."""
        programs = set(self.programs)
        lost = {path for path in changed if self._is_lost(path, programs)}
        above = {parent for path in lost for parent in path.parents}
        leaves = sorted(lost - above, key=lambda path: (len(path.parts), path))
        if not leaves:
            return None
        more = len(leaves) - _MOST_TOLD
        names = ", ".join(_printable(path) for path in leaves[:_MOST_TOLD])
        return (
            f"the tests find the image's own files in place of {names}{f' and {more} more' if more > 0 else ''}; "
            "name what they judge by keep in [metadata.mcpenv] of task.toml, or use --set fresh=false"
        )

    def _is_lost(self, path: PurePosixPath, programs: set[PurePosixPath]) -> bool:
        parts = path.parts[1:]
        if not parts or "__pycache__" in parts or (parts[0] in SYSTEM and (parts[0] not in _TOLD or len(parts) == 1)):
            return False
        if not set(_PACKAGES).isdisjoint(path.parents):  # what a package installed is named
            return False
        return self.is_system(path) or not programs.isdisjoint((path, *path.parents))


def _printable(path: PurePosixPath) -> str:
    return "".join(each if each.isprintable() else "?" for each in str(path)[:_LONGEST_TOLD])


def _settings(homes: Iterable[PurePosixPath], work: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the files of `_OF_HOME` in homes where `Carried.is_system` does not tell them from work.

    Args:
        homes: the homes of users who may run tests, beside root's and one with the working folder.
        work: the working folder.
    """
    for each in dict.fromkeys((*homes, _HOME, *(path for path in (work, *work.parents) if path.parent == _HOMES))):
        is_told = (each == _HOME or each.parent == _HOMES) and work != each and work not in each.parents
        if each.is_absolute() and each != _ROOT and not is_told:
            yield from (each / name for name in _OF_HOME)


def _programs(path: PurePosixPath, kept: Sequence[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Yield the folders of programs that an entry of a variable belongs to, unless the work of a task is done there."""
    if len(path.parts) < 2 or ".." in path.parts:
        return
    if path.parts[1] in SYSTEM and not any(own in path.parents for own in kept if own != _ROOT):
        return  # nothing is carried over there
    is_part = path.name in ("bin", "sbin", "lib")
    for folder in (path.parent, path) if is_part else (path,):
        if any(own == folder or folder in own.parents for own in kept):
            continue
        if len(folder.parts) > 2:
            yield folder
            return
        if is_part:  # not the whole of a folder in the root folder, where work may be
            yield from (folder / name for name in _OF_PREFIX)
            return
