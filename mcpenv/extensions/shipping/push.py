"""The command ``mcpenv share push``: send an environment to an image registry, or to a Space of Hugging Face."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from mcpenv.cli.output import Page, print_json
from mcpenv.errors import ConfigurationError
from mcpenv.targets.manifest_file import manifest_in

from .build import build_image, engine_of, write_files
from .download import hub
from .hub.space import HUB, SpaceName, secrets_of, stage_space
from .image.engine import find_engine
from .image.files import files_of
from .image.local_wheels import wheels_of
from .image.plan import ImagePlan, plan_image

_TOKENS = {
    "MCPENV_CONTROL_TOKEN": "export MCPENV_CONTROL_TOKEN=$(openssl rand -hex 32)",
    "MCPENV_AGENT_TOKENS": "export MCPENV_AGENT_TOKENS=my-agent=$(openssl rand -hex 32)",
}
"""The commands that make tokens; agents have names."""


def push(
    target: str,
    destination: str,
    /,
    *,
    public: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    engine: Literal["docker", "podman", "buildah"] | None = None,
    base: str | None = None,
    wheels: Annotated[list[Path] | None, Parameter(name="--wheel", negative=())] = None,
    build_options: Annotated[
        list[str] | None, Parameter(name="--build-option", negative=(), allow_leading_hyphen=True)
    ] = None,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Send an environment to a registry, as an image that is built first, or to a Space of Hugging Face.

    A Space gets MCPENV_CONTROL_TOKEN, MCPENV_AGENT_TOKENS and the manifest's secrets, each from the environment
    variable of that name. Their values are not printed.

    Args:
        target: Folder with mcpenv.yaml or environment.py, or a .py file.
        destination: Reference of an image, such as registry.example/team/weather:1, or hub:OWNER/NAME for a Space.
        public: Make a new Space public: anyone can see its code and connect to it. By default only its owner can.
        engine: Program that builds and pushes. Default: the first of docker, podman and buildah that works here.
        base: Base image, instead of the Dockerfile's.
        wheels: Wheel to install from instead of the package index; may be given several times.
        build_options: Further option of the engine's build; may be given several times.
        dry_run: Show the data to be sent, and send nothing.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    plan = plan_image(target)
    if destination.startswith(HUB):
        for option, given in (("--engine", engine), ("--base", base), ("--build-option", build_options)):
            if given:
                raise ConfigurationError(f"{option} is for images that are built here; a Space builds its own")
        return _push_space(plan, SpaceName.parse(destination), public, wheels or [], dry_run, as_json)
    if public:
        raise ConfigurationError("--public is for Spaces; who may pull an image is a setting of its registry")
    if "/" not in destination:
        raise ConfigurationError(
            f"{destination!r} names no registry; write HOST/NAME:TAG for an image, or hub:OWNER/NAME for a Space"
        )
    program = find_engine(engine) if dry_run else engine_of(engine)
    if not dry_run:
        write_files(plan)
    files = files_of(plan)
    files.refuse()
    if program is not None and not dry_run:
        build_image(plan, files, program, destination, wheels or [], build_options or [], base, show=not as_json)
        program.push(destination, show=not as_json)
    sent, names = [file.path for file in files.image], secrets_of(plan)
    if as_json:
        print_json(
            {
                "image": destination,
                "engine": None if program is None else program.name,
                "pushed": not dry_run,
                "files": sent,
                "secrets": list(names),
            }
        )
        return 0
    page = Page(sys.stdout)
    by = "docker, podman or buildah, of which none works here" if program is None else program.name
    page.line((destination, "bold"), f" {'would be built and pushed' if dry_run else 'is pushed'} by {by}")
    if dry_run:
        page.line(f"{'files':10}", (", ".join(sent), "dim"), indent=2)
        page.line(f"{'secrets':10}", "none are sent: a container gets them where it runs, by -e NAME", indent=2)
        _show_commands(page, plan, names)
    return 0


def _show_commands(page: Page, plan: ImagePlan, names: Sequence[str]) -> None:
    """Show a command that sets each secret; the manifest says what its own are."""
    manifest = manifest_in(plan.folder)
    for name in names:
        said = _TOKENS.get(name) or f"export {name}=...  # {manifest.secrets[name] if manifest else ''}"
        page.line((said, "cyan"), indent=12)


def _push_space(
    plan: ImagePlan, space: SpaceName, public: bool, wheels: list[Path], dry_run: bool, as_json: bool
) -> int:
    if space.revision is not None:
        raise ConfigurationError(f"the revision {space.revision} cannot be pushed to; leave it out")
    names = secrets_of(plan)
    missing = [name for name in names if not os.environ.get(name)]
    if missing and not dry_run:
        raise ConfigurationError(
            f"the Space needs secrets; set the environment variables {', '.join(missing)}; --dry-run shows how"
        )
    if not dry_run:
        write_files(plan)
    files = files_of(plan)
    files.refuse()
    with tempfile.TemporaryDirectory(prefix="mcpenv-push-") as name, wheels_of(plan, wheels) as needed:
        place = Path(name)
        port = stage_space(plan, files, needed, space, place)
        sent = sorted(file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file())
        done = None
        if not dry_run:
            secrets = {name: os.environ[name] for name in names}
            done = hub().upload(space, place, secrets, private=not public)
    if as_json:
        print_json(
            {
                "space": space.repository,
                "url": None if done is None else done.url,
                "commit": None if done is None else done.commit,
                "serves": f"https://{space.host}",
                "port": port,
                "public": public,
                "files": sent,
                "secrets": list(names),
                "missing": missing,
                "pushed": done is not None,
            }
        )
        return 0
    page = Page(sys.stdout)
    page.line((space.repository, "bold"), " would be pushed:" if done is None else f" is pushed: {done.url}")
    page.line(f"{'files':10}", (", ".join(sent), "dim"), indent=2)
    page.line(f"{'secrets':10}", ", ".join(names), indent=2)
    if missing:
        page.line(f"{'not set':10}", (", ".join(missing), "yellow"), "; to set them:", indent=2)
        _show_commands(page, plan, missing)
    page.line(f"{'serves':10}", (f"https://{space.host}", "cyan"), indent=2)
    if public:
        page.line("Everybody sees its code, and can connect; both tokens are asked for.")
    else:
        page.line("A new Space is private: only its owner sees its code and connects. One that exists stays as it is.")
    return 0
