"""The commands: the kernel's own, and commands that extensions add by the entry-point group ``mcpenv.commands``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from mcpenv.entry_points import entries_of, load_entry, reason_of, unusable
from mcpenv.errors import ConfigurationError

ENTRY_POINTS = "mcpenv.commands"
"""The entry-point group under which distributions register commands, each by an object of `Command`."""

FORMAT: Literal["markdown"] = "markdown"
"""The format of docstrings. The help of ``mcpenv`` itself is plain: rich takes 0.1 s to load its reader of Markdown."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, or a group of commands.

    ``mcpenv --help`` loads this object, but not the function: keep its module, and the ``__init__`` of its package,
    free of slow imports. An entry point named ``deploy.k8s`` is the command ``mcpenv deploy k8s``.

    Attributes:
        help: the line in ``mcpenv --help``.
        run: the import path of the command, ``module:function``. The function returns the exit status. None for a
            group: its commands are the entry points ``GROUP.NAME``.
        order: the place in the help. Commands of the same order are sorted by name.
        takes_target: explain TARGET at the end of the command's help.
        is_app: ``run`` names an `App` of cyclopts with sub-commands of its own, which has its own texts.
        moved: the new name of a command that is kept under its old one for one version: ``trajectories replay``. The
            old name is not in the help, and prints a hint.
    """

    help: str
    run: str | None = None
    order: int = 100
    takes_target: bool = False
    is_app: bool = False
    moved: str | None = None


KERNEL = {
    "run": Command(
        help="Serve an environment over HTTP or stdio.", run="mcpenv.cli.run:run", order=1, takes_target=True
    ),
    "call": Command(help="Call one tool.", run="mcpenv.cli.call:call", order=3, takes_target=True),
}
"""The commands of the kernel. No entry point replaces one of them."""


def new_name_of(name: str) -> str | None:
    """Return the new name of a command that is kept under its old one; None for any other word."""
    entry = entries_of(ENTRY_POINTS).get(name)
    command = KERNEL.get(name) or (None if entry is None else _loaded(entry))
    return command.moved if isinstance(command, Command) else None


def names_of(app: Iterable[str], group: Sequence[str]) -> list[str]:
    """Return the names of an app's commands without options and without old names. No command's code is loaded.

    Args:
        group: the words before them: ``["trajectories"]``.
    """
    return [name for name in app if name[:1] != "-" and new_name_of(".".join([*group, name])) is None]


def not_loaded(arguments: Sequence[str], error: BaseException) -> str:
    """Return the text about a command whose function cannot be imported, with the distribution that it is of."""
    entries = entries_of(ENTRY_POINTS)
    for count in (2, 1):
        entry = entries.get(".".join(arguments[:count]))
        if entry is not None:
            return str(unusable(entry, "the command", reason_of(error)))
    return f"{type(error).__name__}: {error}"


def add_commands(app: App) -> None:
    """Add all commands to the app of ``mcpenv``. No command's code is loaded."""
    registered = {name: _loaded(entry) for name, entry in entries_of(ENTRY_POINTS).items()}
    commands = {**registered, **KERNEL}
    groups = dict(_groups(commands))
    for name in groups.keys() - commands:
        app.command(groups[name])
    for name, command in sorted(commands.items(), key=lambda item: getattr(item[1], "order", Command.order)):
        parent, _, last = name.rpartition(".")
        if name in groups:
            app.command(groups[name])
        elif parent and parent not in groups:
            _add(app, name, ConfigurationError(f"{name}: {parent} is a command and no group of commands"))
        else:
            _add(groups[parent] if parent else app, last, command)


def _groups(commands: Mapping[str, Command | ConfigurationError]) -> Iterator[tuple[str, App]]:
    """Yield the groups. A group without an entry, or with one that cannot be loaded, has no line of help."""
    for name in dict.fromkeys(name.partition(".")[0] for name in commands if "." in name):
        group = commands.get(name)
        if not isinstance(group, Command):
            group = Command(help="")
        if group.run is None:
            shown = group.moved is None
            yield name, App(name=name, help=group.help, sort_key=group.order, show=shown, **_texts(group))


def _add(app: App, name: str, command: Command | ConfigurationError) -> None:
    if isinstance(command, ConfigurationError):
        app.command(_refusing(command), name=name, help="(cannot be loaded)", help_epilogue="")
    elif command.run is not None:
        texts = {} if command.is_app else _texts(command)
        shown = command.moved is None
        app.command(command.run, name=name, help=command.help, sort_key=command.order, show=shown, **texts)


def _texts(command: Command) -> dict[str, Any]:
    """Return the options of a command's help. It ends with the text about TARGET, which it inherits, or with none."""
    return {"help_format": FORMAT} if command.takes_target else {"help_format": FORMAT, "help_epilogue": ""}


def _loaded(entry: EntryPoint) -> Command | ConfigurationError:
    """Return a command, or the error to raise when it is used.

    A command that cannot be loaded leaves the others usable.
    """
    try:
        command = load_entry(entry, "the command")
    except ConfigurationError as error:
        return error
    if not isinstance(command, Command):
        return unusable(entry, "the command", f"is a {type(command).__name__}, not a mcpenv.cli.commands.Command")
    return command


def _refusing(error: ConfigurationError) -> Callable[..., int]:
    """Return a command that takes any arguments and raises."""

    def refuse(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
        raise error

    return refuse
