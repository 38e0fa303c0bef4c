"""The command ``mcpenv build``: make the container image of an environment."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from mcpenv.cli.output import Page, note, number_of, print_json, print_table
from mcpenv.errors import ConfigurationError

from .image.constraints import CONSTRAINTS, constraints
from .image.dockerfile import BASE, DOCKERFILE, WHEELS, base_of, dockerfile, tag_of
from .image.dockerignore import DOCKERIGNORE, dockerignore
from .image.engine import ImageEngine, find_engine
from .image.files import ImageFiles, files_of, stage
from .image.generated import Written, is_changed, write_text
from .image.local_wheels import local_distributions, wheels_of
from .image.plan import ImagePlan, plan_image

MEBIBYTE = 2**20


def build(
    target: str = ".",
    /,
    *,
    tag: str | None = None,
    engine: Literal["docker", "podman", "buildah"] | None = None,
    base: str | None = None,
    wheels: Annotated[list[Path] | None, Parameter(name="--wheel", negative=())] = None,
    build_options: Annotated[
        list[str] | None, Parameter(name="--build-option", negative=(), allow_leading_hyphen=True)
    ] = None,
    check: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    write_only: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    force: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Write the Dockerfile of an environment, and build its image by docker, podman or buildah.

    Files that you have changed are kept. An image that would get a key or an .env file is not built.

    Args:
        target: Folder with mcpenv.yaml or environment.py, or a .py file.
        tag: Reference of the image, such as registry.example/team/weather:1. Default: the environment's name.
        engine: Program that builds. Default: the first of docker, podman and buildah that works here.
        base: Base image, instead of the Dockerfile's. A digest (NAME@sha256:...) pins it exactly.
        wheels: Wheel to install from instead of the package index; may be given several times.
        build_options: Further option of the engine's build; may be given several times.
        check: Show the content of the image, and write and build nothing. Status 2 if a file is refused.
        write_only: Write the files, and build nothing.
        force: Overwrite a Dockerfile, .dockerignore or constraints.txt that you have changed.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    plan = plan_image(target)
    if check:
        return _check(plan, wheels or (), as_json)
    written = write_files(plan, force=force)
    files = files_of(plan)
    files.refuse()
    for name, result in written.items():
        if result is Written.KEPT:
            note(f"{name} is your own, and is kept; --force overwrites it.")
    tag = tag or tag_of(plan.name)
    found = None if write_only else engine_of(engine)
    size = None
    if found is not None:
        size = build_image(plan, files, found, tag, wheels or (), build_options or (), base, show=not as_json)
    if as_json:
        print_json(
            {
                "name": plan.name,
                "folder": str(plan.folder),
                "files": {name: result.value for name, result in written.items()},
                "image": None if found is None else tag,
                "engine": None if found is None else found.name,
                "bytes": size,
            }
        )
        return 0
    page = Page(sys.stdout)
    for name, result in written.items():
        page.line(f"{name:16}", (result.value, "dim"), indent=2)
    if found is not None:
        shown = "" if size is None else f", {size / MEBIBYTE:.0f} MiB"
        page.line((tag, "bold"), f" is built by {found.name}{shown}")
        page.line("Use it: ", (f"EnvClient.from_docker_image({tag!r})", "cyan"))
    return 0


def write_files(plan: ImagePlan, *, force: bool = False) -> dict[str, Written]:
    """Write the files of an image, except files that the author has changed; return the result for each."""
    pins, own = plan.folder / CONSTRAINTS, plan.folder / DOCKERFILE
    # The pins are specific to the Python that resolved them, so its base image is kept as well.
    base = base_of(own.read_text(encoding="utf-8")) if own.is_file() and not force else BASE
    # The Dockerfile copies the folder, and Git drops empty ones.
    (plan.folder / WHEELS).mkdir(exist_ok=True)
    if not any((plan.folder / WHEELS).iterdir()):
        (plan.folder / WHEELS / ".gitkeep").touch()
    written = {
        DOCKERFILE: write_text(own, dockerfile(plan, base=base), force=force),
        DOCKERIGNORE: write_text(plan.folder / DOCKERIGNORE, dockerignore(), force=force),
    }
    # Pins change only on request, so that an image can be built again.
    if force or not pins.exists():
        written[CONSTRAINTS] = Written.UPDATED if pins.exists() else Written.NEW
        pins.write_text(constraints(*plan.needs), encoding="utf-8")
    else:
        written[CONSTRAINTS] = Written.SAME
    return written


def build_image(
    plan: ImagePlan,
    files: ImageFiles,
    engine: ImageEngine,
    tag: str,
    wheels: Sequence[Path],
    options: Sequence[str],
    base: str | None,
    *,
    show: bool,
) -> int | None:
    """Build an image of exactly these files, and return its bytes; None if the engine does not report them.

    Raises:
        ConfigurationError: the build failed.
    """
    with tempfile.TemporaryDirectory(prefix="mcpenv-build-") as place, wheels_of(plan, wheels) as needed:
        stage(plan, files, needed, Path(place))
        engine.build(Path(place), tag, options, base, revision_of(plan.folder), show=show)
    return engine.size(tag)


def revision_of(folder: Path) -> str | None:
    """Return the commit of a folder in a repository of Git, with ``-dirty`` for changed files; None elsewhere."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def engine_of(name: str | None) -> ImageEngine:
    """Return the engine of that name, or the first that works here.

    Raises:
        ConfigurationError: the engine is not installed or does not work.
    """
    found = find_engine(name)
    if found is None:
        raise ConfigurationError(
            "no engine works here: install docker, podman or buildah, or write the files only, with --write-only"
        )
    return found


def _check(plan: ImagePlan, wheels: Sequence[Path], as_json: bool) -> int:
    own = (plan.folder / DOCKERFILE).is_file() and is_changed((plan.folder / DOCKERFILE).read_text(encoding="utf-8"))
    files = files_of(plan)
    local = local_distributions(plan, wheels)
    status = 2 if files.refused else 0
    if as_json:
        print_json(
            {
                "name": plan.name,
                "folder": str(plan.folder),
                "own_dockerfile": own,
                "bytes": files.size,
                "files": {file.path: file.size for file in files.image},
                "build_only": {file.path: file.size for file in files.build},
                "local": {each.name: each.source for each in local},
                "ignored": files.ignored,
                "refused": files.refused,
            }
        )
        return status
    page = Page(sys.stdout)
    print_table(page, ("bytes", "file"), [(str(file.size), file.path) for file in files.image], right=("bytes",))
    page.line()
    page.line(f"{number_of(len(files.image), 'file')}, {files.size} bytes, beside the Python packages.")
    if own:
        page.line("The Dockerfile is your own; what it copies may differ.")
    for what, paths in (("build only", [file.path for file in files.build]), ("ignored", files.ignored)):
        if paths:
            page.line(f"{what:12}", (", ".join(paths), "dim"))
    for each in local:
        page.line(f"{'wheel of':12}", (f"{each.name}, which is installed from {each.source}", "dim"))
    for path, reason in files.refused.items():
        page.line((f"{'refused':12}", "bold red"), f"{path}: {reason}; add it to {DOCKERIGNORE}")
    return status
