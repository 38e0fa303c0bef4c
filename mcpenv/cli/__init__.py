"""The command line. Its commands are in `mcpenv.cli.commands`.

Exit status 0: success. 1: the environment's code failed (a tool, a reset). 2: the command was refused before it ran
(usage, TARGET, configuration, connection). 130: Ctrl-C, SIGTERM or SIGHUP. A failure prints one line on stderr, and
with ``--json`` one JSON object on stdout; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import difflib
import functools
import gc
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError

from mcpenv import __version__
from mcpenv.errors import InvalidTasks, StartupError, place_in_target
from mcpenv.server.signals import end_as_by_ctrl_c
from mcpenv_client.errors import ConnectionFailed, ListingFailed, McpenvError

from .commands import add_commands, names_of, new_name_of, not_loaded
from .failure import USAGE, Failures, asks_for_json
from .output import settle_streams, short_warnings

FAILED = 1
REFUSED = 2
INTERRUPTED = 130

_OWN_OPTIONS = ["--help", "--version"]
"""The options that stand where a command may stand."""

_REFUSALS = (StartupError, InvalidTasks, ConnectionFailed, ListingFailed)


@functools.cache
def command_line() -> App:
    """Return the app of ``mcpenv``. ``mcpenv --help`` loads neither the server nor a command."""
    app = App(
        name="mcpenv",
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(show_default=lambda value: None if value is None or value is False else str(value)),
        help="Tool environments, written once: served to MCP clients, stepped by orchestrators.",
        help_epilogue=(
            "TARGET is a folder with mcpenv.yaml or environment.py, a .py file, folder:Class, module:Class, "
            "module:factory, a folder with openenv.yaml, the name of an installed environment (echo_mcp), or "
            "harbor:PATH, tau2:DOMAIN, openapi:URL, gymnasium:ID, fleet:KEY; for MCP servers a JSON file with "
            "mcpServers, mcp:COMMAND, mcp:URL, or cassette:DIR, their recorded episodes played without them; for run "
            "also hub:OWNER/NAME@REVISION and image:REF."
        ),
    )
    add_commands(app)
    return app


def main() -> None:
    """Run the command line of this process and exit with its status."""
    end_as_by_ctrl_c()
    status = execute(sys.argv[1:])
    gc.freeze()  # at exit the interpreter would garbage-collect all imports, for some 0.3 s
    sys.exit(status)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    settle_streams()
    try:
        return _run(arguments, Failures(asks_for_json(arguments)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. The interpreter's flush at exit would fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(arguments: Sequence[str], failures: Failures) -> int:
    old = next(iter(arguments), "")
    if (new := new_name_of(old)) is not None and not asks_for_json(arguments):
        print(f"hint: mcpenv {old} is now mcpenv {new}; the old name works until the next version", file=sys.stderr)
    app = command_line()
    try:
        command, bound, _ = app.parse_args(list(arguments), print_error=False, exit_on_error=False)
        if command == app.help_print:
            shown = app.parse_commands(bound.args[0])[1][-1]
            if shown.default_command is not None:
                shown.help = None  # its docstring, in place of its line in a list
    except CycloptsError as error:
        return failures.print(f"{_refused(error, arguments)} (see --help)", USAGE, REFUSED)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - cyclopts imports the command, perhaps of another distribution
        if "--debug" in arguments:
            traceback.print_exception(error)
        cause = error if error.__cause__ is None else error.__cause__
        kind = cause if isinstance(cause, Exception) else type(cause).__name__
        return failures.print(not_loaded(arguments, cause), kind, REFUSED)
    debug = bool(bound.arguments.get("debug"))
    try:
        with short_warnings():
            status = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except McpenvError as error:
        if debug:
            traceback.print_exception(error)
        return failures.print(str(error), error, REFUSED if isinstance(error, _REFUSALS) else FAILED)
    except Exception as error:  # noqa: BLE001 - the command line's boundary: user code, or a bug in the command
        if debug:
            traceback.print_exception(error)
        owner = getattr(command, "__module__", None) or __name__
        where = place_in_target(error) or f"a bug in {owner.partition('.')[0]}"
        text = f"{type(error).__name__}: {error} ({where}; --debug shows the traceback)"
        return failures.print(text, error, FAILED)
    return int(status or 0)


def _refused(error: CycloptsError, arguments: Sequence[str]) -> str:
    """Return the text about a command line that cannot be parsed.

    cyclopts' own text about an unknown command imports every command, and does not know that ``eval``, which is a
    command and a group, was given a mistyped command for its TARGET.
    """
    group = list(error.command_chain or ())
    known = names_of(error.app or (), group)
    given = next(iter(arguments[len(group) :]), "")
    if not isinstance(error, UnknownCommandError):
        text = str(error)
        if isinstance(error, UnusedCliTokensError):
            text = f'Unexpected argument "{(error.unused_tokens or [""])[0]}"'
        near = [] if given in known else difflib.get_close_matches(given.lower().lstrip("-"), known, 1, 0.8)
        command = " ".join(["mcpenv", *group])
        return f'"{given}" is no command of {command}. Did you mean {command} {near[0]}? {text}' if near else text
    if given.startswith("-"):
        near = difflib.get_close_matches(given.lower(), [*_OWN_OPTIONS, "--json", "--debug"], 1) or [given]
        if near[0] in _OWN_OPTIONS:
            return f"Unknown option: {given}. Did you mean {near[0]}?"
        return f"Unknown option: {given}. Options follow the command: {' '.join(['mcpenv', *group, 'COMMAND', *near])}"
    words = [*known, *_OWN_OPTIONS]  # of short ones, few letters are equal: pul, push
    like = difflib.get_close_matches(given.lower(), words) or difflib.get_close_matches(given.lower(), words, 1, 0.55)
    near = [f'"{name}"' for name in like]
    near = near or [f"{' '.join(['mcpenv', *group, name])} {given}" for name in known if len(known) == 1]
    text = f'Unknown command "{given}". ' + (
        f"Did you mean {' or '.join(near)}?" if near else f"Commands: {', '.join(known)}"
    )
    if near or not group or "list" not in known:
        return text
    return f"{text}. To list those of {given}: mcpenv {' '.join(group)} list {given}"


__all__ = ["command_line", "execute", "main"]
