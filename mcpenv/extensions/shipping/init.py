"""The command ``mcpenv init``: make the folder of a new environment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page, print_json
from mcpenv.errors import ConfigurationError
from mcpenv.targets.manifest import manifest_schema as schema_of_manifests

from .scaffold import (
    TEMPLATES,
    Scaffold,
    check_description,
    check_folder,
    check_name,
    check_unused,
    make_scaffold,
)

DEFAULT_TEMPLATE = "minimal"


def init(
    name: str | None = None,
    /,
    *,
    template: str | None = None,
    description: str | None = None,
    into: Path | None = None,
    list_templates: Annotated[bool, Parameter(name="--list", negative=(), show_default=False)] = False,
    manifest_schema: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Make the folder of a new environment: code, tests, manifest, README, Dockerfile. It runs at once.

    On a terminal it asks for a missing template and description.

    Args:
        name: Name of the environment and of its Python package, such as my_env.
        template: minimal, tasks, database, mcp-server or http-api; --list describes them. Default: minimal.
        description: One line about the purpose of the environment.
        into: Folder to make. It must be missing or empty. Default: the name, in the working directory.
        list_templates: List the templates.
        manifest_schema: Print the JSON Schema of mcpenv.yaml, for editors.
        as_json: Print one JSON document, and ask nothing.
        debug: Show the traceback when something fails.
    """
    if manifest_schema:
        return print_manifest_schema()
    if list_templates:
        return _list(as_json)
    if name is None:
        raise ConfigurationError("the name is missing; write mcpenv init NAME")
    check_name(name)
    folder = Path(name) if into is None else into.expanduser()
    check_folder(folder)
    check_unused(name)
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        template = _asked_template() if template is None else template
        description = _asked_description() if description is None else description
    made = make_scaffold(name, template or DEFAULT_TEMPLATE, folder, description)
    if as_json:
        print_json(
            {
                "name": made.name,
                "class": made.class_name,
                "template": made.template,
                "folder": str(made.folder.absolute()),
                "files": list(made.files),
                "next": _next(made),
            }
        )
    else:
        _show(made)
    return 0


def print_manifest_schema() -> int:
    """Print the JSON Schema of mcpenv.yaml, by which editors complete and check it.

    Save it in the manifest's folder as mcpenv.schema.json, and begin the manifest with
    "# yaml-language-server: $schema=mcpenv.schema.json".
    """
    print_json(schema_of_manifests())
    return 0


def _list(as_json: bool) -> int:
    if as_json:
        print_json({"templates": TEMPLATES})
        return 0
    page = Page(sys.stdout)
    for name, what in TEMPLATES.items():
        page.line((f"{name:12}", "cyan"), what)
    return 0


# -- questions


def _asked_template() -> str:
    page = Page(sys.stdout)
    names = list(TEMPLATES)
    for number, (name, what) in enumerate(TEMPLATES.items(), 1):
        page.line(f"{number} ", (f"{name:12}", "cyan"), what)
    while True:
        answer = _answer(f"Template, by number or name [{DEFAULT_TEMPLATE}]: ") or DEFAULT_TEMPLATE
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if answer in TEMPLATES:
            return answer
        page.line(f"There is no template {answer!r}.")


def _asked_description() -> str | None:
    while True:
        answer = _answer("What is it for, in one line [as the template]: ")
        if not answer:
            return None
        try:
            check_description(answer)
        except ConfigurationError as error:
            Page(sys.stdout).line(f"{str(error)[0].upper()}{str(error)[1:]}.")
        else:
            return answer


def _answer(question: str) -> str:
    """Return the user's answer; the end of the input interrupts the command."""
    try:
        return input(question).strip()
    except EOFError:
        raise KeyboardInterrupt from None


# -- output


def _next(made: Scaffold) -> list[str]:
    """Return the commands to continue with."""
    return [
        f"cd {shlex.quote(str(made.folder))}",
        *(f"export {name}=any" for name in made.secrets),
        'pip install -e ".[test]"',
        "python -m pytest -q",
        "mcpenv validate .",
        "mcpenv dev .",
    ]


def _show(made: Scaffold) -> None:
    page = Page(sys.stdout)
    page.line((made.name, "bold"), f" is made in {made.folder}, from the template {made.template}:")
    page.line()
    for what, where in (
        ("environment", f"{made.name}/environment.py"),
        ("tests", f"tests/test_{made.name}.py"),
        ("manifest", "mcpenv.yaml"),
        ("for coding agents", "AGENTS.md"),
    ):
        page.line(f"{what:18}", (where, "cyan"), indent=2)
    page.line()
    page.line("Next:")
    page.line()
    for command in _next(made):
        page.line((command, "cyan"), indent=2)
