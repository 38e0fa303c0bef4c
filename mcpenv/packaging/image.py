"""The image of an environment: the texts of its Dockerfile and ``.dockerignore``.

`mcpenv init` and `mcpenv build` write the same texts. The last line of each has the checksum of the lines above it, so
that a file that its author has changed is known, and kept.
"""

from __future__ import annotations

import enum
import hashlib
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from mcpenv.errors import TargetError

from .constraints import CONSTRAINTS
from .manifest import MANIFEST, Manifest
from .manifest_file import manifest_in

DOCKERFILE, DOCKERIGNORE = "Dockerfile", ".dockerignore"
BASE = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
"""The base image: that of this Python, whose packages are pinned. Any with python3, its venv and useradd will do."""

PORT = 8000
SPACE_PORT = 7860
"""The port that a Space of Hugging Face has by default."""

ENVIRONMENT_FILE = "environment.py"
REQUIREMENTS = "requirements.txt"
SOURCE = "/src"
"""The folder of the environment while the image is built."""

WHEELS = "wheels"
"""The folder of wheels that no package index has."""

_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
_MARK = re.compile(r"# Checksum of mcpenv build: ([0-9a-f]{16})\n?\Z")

_IGNORED = """\
**/__pycache__
**/*.egg-info
**/.*_cache
**/.env
**/.env.*
.git
.venv
build
dist
records
runs
tests
"""


@dataclass(frozen=True)
class ImagePlan:
    """The facts that decide about an image.

    Attributes:
        folder: the folder of the environment, which is the build's context.
        name: the environment's name, for tags.
        served: the TARGET that the image serves: ``/app``, ``/app:Class`` or ``/app/file.py:Class``.
        copied: files and folders that the image has; empty: everything that is not ignored.
        distribution: the name of the distribution that pyproject.toml describes; None if there is none.
        has_requirements: True if there is a requirements.txt.
        secrets: the environment variables that must be set when it runs.
        needs: the distributions that the environment depends on, with their extras.
    """

    folder: Path
    name: str
    served: str = "/app"
    copied: tuple[str, ...] = ()
    distribution: str | None = None
    has_requirements: bool = False
    secrets: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("mcpenv",)


class Written(enum.Enum):
    """The result of writing a file of an image."""

    NEW = "written"
    SAME = "unchanged"
    UPDATED = "updated"
    KEPT = "kept"


def plan_image(target: str) -> ImagePlan:
    """Return the plan for a TARGET: a folder with mcpenv.yaml or environment.py, a .py file, or either with :Class.

    Raises:
        TargetError: it is no such folder or file.
    """
    location, colon, attribute = target.rpartition(":")
    if not (colon and location and attribute.isidentifier()):
        location, attribute = target, ""
    path = Path(location).expanduser().absolute()
    folder = path if path.is_dir() else path.parent
    manifest = manifest_in(folder) if path.is_dir() else None
    suffix = f":{attribute}" if attribute else ""
    if manifest is not None:
        return _plan(folder, manifest.name, manifest, f"/app{suffix}")
    file = path / ENVIRONMENT_FILE if path.is_dir() else path
    if file.suffix != ".py" or not file.is_file():
        raise TargetError(
            target,
            f"an image is made of a folder with {MANIFEST} or {ENVIRONMENT_FILE}, or of a .py file; "
            "mcpenv init makes a folder",
        )
    if (folder / "__init__.py").is_file():
        raise TargetError(
            target,
            f"the folder is a package, and what it imports may be beside it; add a {MANIFEST} to the folder above it",
        )
    name = folder.name if file.name == ENVIRONMENT_FILE else file.stem
    below = "" if path.is_dir() else f"/{file.name}"
    return _plan(folder, name, None, f"/app{below}{suffix}")


def dockerfile(plan: ImagePlan, *, base: str = BASE, port: int = PORT, options: tuple[str, ...] = ()) -> str:
    """Return the text of the Dockerfile.

    Args:
        plan: the plan.
        base: the base image that it has by default.
        port: the port that the server listens on.
        options: further options of ``mcpenv run``.
    """
    tag = tag_of(plan.name)
    variables = "".join(f" -e {name}" for name in ("MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS", *plan.secrets))
    command = ["/venv/bin/mcpenv", "run", plan.served, "--host", "0.0.0.0"]
    command += [] if port == PORT else ["--port", str(port)]
    entrypoint = ", ".join(f'"{word}"' for word in (*command, *options))
    health = f"from urllib.request import urlopen; urlopen('http://127.0.0.1:{port}/health')"
    return checked(f"""\
# Build:  mcpenv build .
# Run:    docker run -p 127.0.0.1:{port}:{port}{variables} {tag}
#
# {CONSTRAINTS} pins every version. Wheels in {WHEELS}/ are preferred to those of the package index.
ARG BASE={base}

FROM ${{BASE}} AS build
COPY . {SOURCE}
{_install(plan)}

FROM ${{BASE}}
RUN useradd --create-home --uid 1000 mcpenv
COPY --from=build /venv /venv
WORKDIR /app
{_copies(plan)}
USER 1000
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
EXPOSE {port}
HEALTHCHECK CMD ["/venv/bin/python", "-c", "{health}"]
# A server that other machines reach needs both tokens (MCPENV_CONTROL_TOKEN, MCPENV_AGENT_TOKENS), or --insecure.
ENTRYPOINT [{entrypoint}]
""")


def base_of(text: str) -> str:
    """Return the base image of a Dockerfile that `dockerfile` made; for other texts that of this Python."""
    found = _BASE.search(text)
    return BASE if found is None else found[1]


def dockerignore() -> str:
    """Return the text of ``.dockerignore``."""
    return checked(_IGNORED)


def tag_of(name: str) -> str:
    """Return a name as the repository part of an image's reference."""
    tag = re.sub(r"[^a-z0-9]+", lambda found: "_" if "_" in found[0] else "-", name.lower())
    return tag.strip("-_") or "environment"


def checked(text: str) -> str:
    """Return a text with the checksum of its lines as the last one."""
    return f"{text}# Checksum of mcpenv build: {_checksum(text)}\n"


def is_changed(text: str) -> bool:
    """Return True if a text is not as `checked` made it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _checksum(text[: mark.start()])


def write_text(file: Path, text: str, *, force: bool) -> Written:
    """Write a file of an image, unless its author has changed it.

    Args:
        file: the file.
        text: its text, with a checksum.
        force: True to overwrite it whatever it says.
    """
    if not file.exists():
        result = Written.NEW
    else:
        there = file.read_text(encoding="utf-8")
        if there == text:
            return Written.SAME
        if is_changed(there) and not force:
            return Written.KEPT
        result = Written.UPDATED
    file.write_text(text, encoding="utf-8")
    return result


def _plan(folder: Path, name: str, manifest: Manifest | None, served: str) -> ImagePlan:
    project = _project(folder)
    copied: list[str] = []
    top = None if manifest is None else manifest.entry_file.replace("\\", "/").partition("/")[0]
    if manifest is not None and top is not None and (folder / top).is_dir():
        copied = [MANIFEST, *(["README.md"] if (folder / "README.md").is_file() else []), top]
        tasks = None if manifest.tasks is None else manifest.tasks.replace("\\", "/").partition("/")[0]
        copied += [tasks] if tasks not in (None, top) else []
    return ImagePlan(
        folder=folder,
        name=name,
        served=served,
        copied=tuple(copied),
        distribution=project.get("name"),
        has_requirements=(folder / REQUIREMENTS).is_file(),
        secrets=() if manifest is None else tuple(manifest.secrets),
        needs=_needs(folder, project),
    )


def _project(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TargetError(str(file), f"cannot be read: {error}") from error
    return project if isinstance(project, dict) and isinstance(project.get("name"), str) else {}


def _needs(folder: Path, project: dict[str, Any]) -> tuple[str, ...]:
    lines = list(project.get("dependencies", []))
    if (folder / REQUIREMENTS).is_file():
        lines += (folder / REQUIREMENTS).read_text(encoding="utf-8").splitlines()
    names = ["mcpenv"]
    for line in lines:
        try:
            needed = Requirement(str(line).partition("#")[0].strip())
        except InvalidRequirement:
            continue  # an option or a URL, which pins itself
        extras = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
        names.append(f"{needed.name}{extras}")
    return tuple(dict.fromkeys(names))


def _install(plan: ImagePlan) -> str:
    pip = "/venv/bin/pip install --no-cache-dir"
    pip += f" --find-links {SOURCE}/{WHEELS} --constraint {SOURCE}/{CONSTRAINTS}"
    if plan.distribution is not None:
        return f"""\
# The environment itself is removed again: it is served from its folder.
RUN python3 -m venv /venv \\
    && {pip} {SOURCE} \\
    && /venv/bin/pip uninstall --yes {plan.distribution} pip{_emptied(plan)}"""
    requirements = f" --requirement {SOURCE}/{REQUIREMENTS}" if plan.has_requirements else ""
    return f"""\
RUN python3 -m venv /venv \\
    && {pip} mcpenv{requirements} \\
    && /venv/bin/pip uninstall --yes pip{_emptied(plan)}"""


def _emptied(plan: ImagePlan) -> str:
    return "" if plan.copied else f" \\\n    && rm -rf {SOURCE}/{WHEELS}"


def _copies(plan: ImagePlan) -> str:
    if not plan.copied:
        return f"COPY --from=build {SOURCE} ./"
    files = [path for path in plan.copied if not (plan.folder / path).is_dir()]
    folders = [path for path in plan.copied if path not in files]
    return "\n".join([f"COPY {' '.join(files)} ./", *(f"COPY {path} ./{path}" for path in folders)])


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


__all__ = [
    "BASE",
    "DOCKERFILE",
    "DOCKERIGNORE",
    "PORT",
    "SOURCE",
    "SPACE_PORT",
    "WHEELS",
    "base_of",
    "ImagePlan",
    "Written",
    "checked",
    "dockerfile",
    "dockerignore",
    "is_changed",
    "plan_image",
    "tag_of",
    "write_text",
]
