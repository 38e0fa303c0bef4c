"""The command ``mcpenv card``: measure an environment, and write its card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mcpenv.cli.output import author_output, note, quiet_logs
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.evaluation.command import AgentOptions
from mcpenv.targets.external import external_target
from mcpenv.targets.place import find_place
from mcpenv.targets.target import load_target

from .fingerprint import stale, write_into_readme
from .measure import QUICK, Extent, measure
from .pages import as_json as json_of
from .pages import html, markdown
from .plays import Stage

UNSOUND = 1
STALE = 1

Format = Literal["markdown", "html", "json"]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

_SUFFIXES: dict[str, Format] = {".md": "markdown", ".html": "html", ".json": "json"}


def card(
    target: str,
    /,
    *,
    out: Path | None = None,
    readme: Flag = False,
    form: Annotated[Format | None, Parameter(name="--format")] = None,
    check: Flag = False,
    quick: Flag = False,
    number: Annotated[int | None, Parameter(name=["--number", "-n"])] = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Flag = False,
) -> int:
    """Write the card of an environment: one page of measured figures, in some minutes.

    It has the tasks, their licence and source; all parts of mcpenv validate; the shares of tasks that agents of known
    strength solve (idle, random, scripted with mistakes, a model); what a tiny policy learns; canaries, variants and
    an agent that plays by heart; determinism; the cost of an episode; a hash over it all.

    Exit status 0: the card is written, and the environment is sound. 1: the card is written, and the environment is
    not known to be sound; or, with --check, the card is older than the environment's files. 2: there is no card.

    Args:
        target: An environment as for run.
        out: File to write instead of stdout. Its suffix .md, .html or .json chooses the format; another one needs
            --format.
        readme: Write the card into README.md of the environment's folder, in the place of the card that is there, or at
            its end.
        form: Format of the card: markdown, html or json. Default: by the suffix of --out, or markdown.
        check: Measure nothing, and load no code. Compare the environment's files with the fingerprint of the card in
            its README, or in the file of --out. Markdown, pictures and mcpenv itself do not count.
        quick: Play fewer tasks: 10 by each agent instead of 50, 5 in the validation instead of 20.
        number: Number of tasks that each agent plays, as evenly from all levels as possible.
        model: Name of a model to evaluate too, at an endpoint with OpenAI's chat completions API.
        base_url: URL of that endpoint, as for eval.
        api_key_env: Environment variable with the endpoint's key, as for eval.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    if check:
        reason = stale(_folder_of(target), out)
        if reason is not None:
            note(f"{reason}. mcpenv card {target} {'--readme' if out is None else f'--out {out}'} makes it anew")
        return 0 if reason is None else STALE
    if number is not None and number < 1:
        raise ConfigurationError(f"-n is {number}; it must be 1 or more")
    chosen = form or ("markdown" if out is None else _SUFFIXES.get(out.suffix.lower()))
    if chosen is None:
        suffixes = " or ".join(_SUFFIXES)
        raise ConfigurationError(f"--out {out}: its suffix names no format; write {suffixes}, or give --format")
    extent = QUICK if quick else Extent()
    if number is not None:
        extent = replace(extent, tasks=number)
    agent = AgentOptions(model=model, base_url=base_url, api_key_env=api_key_env).make() if model is not None else None
    with author_output():
        loaded = load_target(target, settings or ())
    if readme and loaded.folder is None:
        raise ConfigurationError(f"{target} has no folder with a README; give --out")
    with _stages() as stage:
        made = measure(loaded, target, extent, agent, stage, settings or ())
    text = {"markdown": markdown, "html": html, "json": json_of}[chosen](made)
    if readme:
        assert loaded.folder is not None
        note(f"wrote {write_into_readme(loaded.folder, markdown(made, 1))}")
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--out {out}: {error.strerror}; name a file in a folder that exists") from error
        note(f"wrote {out}")
    if as_json:
        sys.stdout.write(json_of(made))
    elif out is None and not readme:
        sys.stdout.write(text)
    return 0 if made["soundness"]["sound"] and not made["findings"] else UNSOUND


def _folder_of(target: str) -> Path:
    """Return the folder of an environment, without loading it.

    Raises:
        ConfigurationError: it has none.
    """
    external = external_target(target)
    if external is not None:
        path = external.path
        folder = path if path is None or path.is_dir() else path.parent
    else:
        place = find_place(target)
        folder = place.folder or (None if place.file is None else place.file.parent)
    if folder is None:
        raise ConfigurationError(f"{target} has no folder whose files could be compared; name a folder")
    return folder


@contextmanager
def _stages() -> Iterator[Stage]:
    """Show on stderr which stage runs: as a bar if stderr is a terminal, else as a line."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())

    @contextmanager
    def stage(name: str, steps: int) -> Iterator[Callable[[], None]]:
        if not console.is_terminal:
            note(name)
            yield lambda: None
            return
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(name, total=steps)
            yield lambda: progress.advance(bar)

    yield stage
