"""Judge the folder of an environment: manifest, headings, dependencies, layout, size, and secrets in its files."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mcpenv.errors import TargetError
from mcpenv.extensions.shipping.folder_files import shipped_files
from mcpenv.extensions.shipping.secret_files import secrets_in, unread_in
from mcpenv.extensions.validation.parts.judged import Judged, some_of
from mcpenv.targets.external import external_target
from mcpenv.targets.manifest import MANIFEST
from mcpenv.targets.manifest_file import manifest_in
from mcpenv.targets.place import MODULE_FILE
from mcpenv.targets.target import Target

from .dependencies import declared_in, open_ended, undeclared_in
from .elsewhere import fault_elsewhere

MAX_BYTES = 50 * 1024 * 1024
"""Size of a folder above which an author is warned."""
HEADINGS = ("Tool", "Reward")
"""The headings that README.md or the docstring of the class must have."""

_NO_FOLDER = "the code of the target is not in a folder of its own"
_OTHER_FORMAT = "the target is of another format, which has its own packaging"


def judge_secrets(target: Target, into: Judged) -> None:
    """Look for secrets in the files of the folder and in the manifest."""
    if target.folder is None or is_one_file(target):
        into.not_applicable("secrets", _NO_FOLDER)
        return
    variables = target.manifest.secrets if target.manifest is not None else ()
    for place, why in secrets_in(target.folder, variables):
        into.failed(
            "secrets",
            f"{why}; it would be shipped with the environment",
            f"Replace it at its issuer, remove it from the folder, and name the variable in secrets of {MANIFEST}",
            place,
        )
    long = unread_in(target.folder)
    if long:
        into.not_applicable("secrets in long files", f"not searched, with more than 1 MiB: {some_of(long)}")
    into.ok_unless_found("secrets")


def judge_packaging(target: Target, doc: str, on_check: Callable[[str], None], into: Judged) -> None:
    """Judge manifest, headings, dependencies, layout and size.

    Args:
        target: the environment.
        doc: the docstring of its class.
        on_check: called with the name of each check that takes long.
        into: the findings are added to it.
    """
    folder = target.folder
    if folder is None or is_one_file(target):
        into.not_applicable(into.part, _NO_FOLDER)
        return
    _judge_size(folder, into)
    if external_target(target.spec) is not None:
        into.not_applicable("layout", _OTHER_FORMAT)
        return
    _judge_manifest(folder, into)
    _judge_readme(target, doc, into)
    _judge_dependencies(folder, into)
    on_check("layout: loading a copy elsewhere")
    fault = fault_elsewhere(target)
    if fault is not None:
        layout, error = fault
        into.failed(
            "layout",
            f"{layout} does not load from another place: {error}",
            "Read files relative to __file__, keep them inside the package, and use no path of this machine",
        )
    into.ok_unless_found("layout")


def is_one_file(target: Target) -> bool:
    """Return True if the target is a single file in a folder with other, possibly unrelated files."""
    path = Path(target.spec.partition(".py:")[0] + ".py" if ".py:" in target.spec else target.spec)
    return path.suffix == ".py" and path.name != MODULE_FILE


def _judge_manifest(folder: Path, into: Judged) -> None:
    try:
        manifest = manifest_in(folder)
    except TargetError as error:  # a manifest that was edited since the target was loaded
        into.failed("manifest", str(error), f"Correct {MANIFEST}")
        return
    if manifest is None:
        into.not_applicable("manifest", f"there is no {MANIFEST}, so that defaults are in force")
        return
    missing = [name for name in ("version", "description") if getattr(manifest, name) is None]
    if missing:
        into.warning("manifest", f"no {' and no '.join(missing)}", f"Add it to {MANIFEST}", MANIFEST)
    into.ok_unless_found("manifest")


def _judge_readme(target: Target, doc: str, into: Judged) -> None:
    if not (target.readme or "").strip():
        into.warning("readme", "there is no README.md", "Write what the environment is, its tools, and its reward")
    said = f"{target.readme or ''}\n{doc}"
    missing = [f"{name}s" for name in HEADINGS if not re.search(rf"(?im)^[\s#|*]*{name}s?\b", said)]
    if missing:
        into.warning(
            "readme",
            f"neither README.md nor the class's docstring has the heading {' and '.join(missing)}",
            "Add it, so that a user knows what agents can do and what is paid",
        )
    into.ok_unless_found("readme")


def _judge_dependencies(folder: Path, into: Judged) -> None:
    try:
        declared = declared_in(folder)
    except ValueError as error:
        into.failed("dependencies", str(error), "Correct it, so that the environment can be installed")
        return
    if declared is None:
        undeclared = list(undeclared_in(folder, {}))
        for place, module in undeclared:
            into.warning(
                "dependencies",
                f"imports {module}, and no file of the folder declares it",
                "Write a requirements.txt or a pyproject.toml with the dependencies",
                place,
            )
        if not undeclared:
            into.not_applicable("dependencies", "it imports nothing beside mcpenv and what comes with it")
        return
    for place, module in undeclared_in(folder, declared):
        into.failed(
            "dependencies",
            f"imports {module}, which is not declared, so that an installation elsewhere fails",
            "Add the distribution that has it to the project's dependencies",
            place,
        )
    loose = open_ended(folder, declared)
    if loose:
        into.warning(
            "dependencies",
            f"no version: {some_of(loose)}",
            'Give bounds ("name>=1.2,<2"), or pin all versions in constraints.txt',
        )
    into.ok_unless_found("dependencies")


def _judge_size(folder: Path, into: Judged) -> None:
    sizes = {}
    for file in shipped_files(folder):
        with suppress(FileNotFoundError):  # something works in the folder, such as a server with its journal
            sizes[file] = file.lstat().st_size
    total = sum(sizes.values())
    into.facts["bytes"], into.facts["files"] = total, len(sizes)
    into.summary = f"{len(sizes)} files, {total / 1024:.0f} KiB"
    if total > MAX_BYTES:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        into.warning(
            "size",
            f"{total / 2**20:.0f} MiB, most of it in {some_of(str(file.relative_to(folder)) for file in largest)}",
            "Download large data at start, or keep it in a dataset",
        )
    into.ok_unless_found("size")
