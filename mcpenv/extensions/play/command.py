"""The command ``mcpenv play``: play an episode by hand in the terminal."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.call import block_text, reward_text
from mcpenv.cli.instance import instance
from mcpenv.cli.output import Page, author_output, number_of, print_json, printable, quiet_logs
from mcpenv.cli.tokens import ControlToken
from mcpenv.cli.tool_arguments import find_tool, given_arguments, tool_arguments
from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, meant
from mcpenv.targets.place import is_url
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient, SyncEnvClient
from mcpenv_client.errors import EpisodeDone, InvalidMessage, McpenvError
from mcpenv_client.types.tools import Mode

readline: Any = None
"""The module with which `input` edits lines; None on Windows, whose terminal does it."""
with suppress(ImportError):
    import readline

HELP = """\
list                     the tools
TOOL key=value ...       call a tool; values are JSON for parameters that are not text
TOOL {"key": "value"}    the same, with all arguments as one JSON object
state                    the environment's state
end                      end the episode, and score what it left
help                     this text"""

COMMANDS = ("list", "state", "end", "help")

Playable = MCPEnvironment | SyncEnvClient[Any, Any]


def play(
    target: str,
    /,
    *,
    task: str | None = None,
    split: str | None = None,
    index: int | None = None,
    seed: int | None = None,
    tasks: Path | None = None,
    columns: str | None = None,
    control: ControlToken = ControlToken(),  # noqa: B008 - frozen
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Play one episode by hand: list and call tools, see rewards, end it, and get the calls as a task's oracle.

    Commands are read from the terminal, or from stdin line by line. The end of the input ends the episode.

    Args:
        target: An environment as for run, or the URL of a running server.
        task: Id of the task to play.
        split: Split of the task to play, with --index.
        index: Index of the task in its split.
        seed: Seed of the episode.
        tasks: Tasks to use instead of the environment's own.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document at the end: the calls with their rewards, the return, and the oracle.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    wanted = {"task": task, "split": split, "index": index, "seed": seed}
    options = {name: value for name, value in wanted.items() if value is not None}
    page = Page(sys.stderr if as_json else sys.stdout)  # before the author's output is redirected
    with _opened(target, settings, tasks, columns, control) as env:
        game = _Game(env, page)
        game.begin(options)
        for line in _lines(game.words):
            if game.take(line):
                break
        game.end()
    if as_json:
        print_json(game.document())
    else:
        game.show_oracle()
    return 0


@contextmanager
def _opened(
    target: str, settings: list[str] | None, tasks: Path | None, columns: str | None, control: ControlToken
) -> Iterator[Playable]:
    if is_url(target):
        token = control.read(target)
        if settings or tasks is not None:
            raise ConfigurationError("--set and --tasks are for an environment's code; a running server has its own")
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        try:
            client = EnvClient(target, headers=headers).sync()
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        with client:
            yield client
        return
    if control.control_token is not None or control.control_token_file is not None:
        raise ConfigurationError("--control-token is for a server at a URL; an environment's code requires none")
    with author_output():
        loaded = load_target(target, settings or (), tasks, columns)
        with instance(loaded, Mode.SIMULATION) as env:
            yield env


def _lines(words: Callable[[], list[str]]) -> Iterator[str]:
    """Yield the user's commands until the end of the input. On a terminal they are edited, completed and remembered.

    Args:
        words: returns the words that can begin a command.
    """
    if not sys.stdin.isatty():
        yield from (line for line in map(str.strip, sys.stdin) if line and not line.startswith("#"))
        return
    if readline is not None:
        readline.set_completer(functools.partial(_completed, words))
        readline.parse_and_bind("tab: complete")
    while True:
        try:
            # Only for Python's own stdout does `input` edit lines.
            with redirect_stdout(sys.__stdout__):
                line = input("> ").strip()
        except EOFError:
            return
        if line:
            yield line


def _completed(words: Callable[[], list[str]], begun: str, number: int) -> str | None:
    """Return the completion of that number of the word that is being written; None if there are no more."""
    found = [f"{word} " for word in words() if word.startswith(begun)]
    # Only the first word of a line is a command.
    return found[number] if readline.get_begidx() == 0 and number < len(found) else None


class _Game:
    """The episode that is played."""

    def __init__(self, env: Playable, page: Page) -> None:
        self._env = env
        self._page = page
        self._tools = env.list_tools()
        self._calls: list[dict[str, Any]] = []
        self._reason: str | None = None
        self._return: float | None = None
        self._problems: list[str] = []

    def words(self) -> list[str]:
        """Return the words that can begin a command."""
        return [*COMMANDS, *(tool.name for tool in self._tools)]

    def begin(self, options: dict[str, Any]) -> None:
        """Reset, and show the task and the tools."""
        begun = self._env.reset(**options)
        if begun.prompt:
            self._page.prose(begun.prompt)
            self._page.line()
        self._list()
        self._page.line(("help shows the commands", "dim"))

    def take(self, line: str) -> bool:
        """Carry out one command. Return True if the episode is over or is to end."""
        word, _, rest = line.partition(" ")
        known = {tool.name for tool in self._tools}
        if word in known:
            return self._call(word, rest.strip())
        if word in ("end", "quit", "exit"):
            return True
        if word == "list":
            self._tools = self._env.list_tools()
            self._list()
        elif word == "help":
            self._page.block(HELP)
        elif word == "state":
            state = self._env.state if isinstance(self._env, MCPEnvironment) else self._env.state()
            self._page.line(json.dumps(state.model_dump(mode="json")))
        else:
            self._page.line(
                (f"there is no command and no tool {word!r}; help shows the commands{meant(word, known)}", "yellow")
            )
        return False

    def end(self) -> None:
        """End the episode, unless a call has ended it, and show its result."""
        ended = self._env.end()
        self._reason, self._return = ended.info.get("reason"), ended.info.get("return")
        self._problems = ended.info.get("problems", [])
        worth = "nothing was scored" if self._return is None else f"return {self._return:g}"
        why = f" ({self._reason})" if self._reason else ""
        self._page.line((f"The episode is over after {number_of(len(self._calls), 'call')}{why}: {worth}.", "bold"))
        for problem in self._problems:
            self._page.line((printable(problem), "yellow"), indent=2)

    def show_oracle(self) -> None:
        """Show the successful calls as the oracle of a task."""
        self._page.line('As a line for a tasks file: "oracle": ' + json.dumps(self._oracle))

    def document(self) -> dict[str, Any]:
        """Return the calls and the result as plain JSON data."""
        return {
            "calls": self._calls,
            "return": self._return,
            "reason": self._reason,
            "problems": self._problems,
            "oracle": self._oracle,
        }

    @property
    def _oracle(self) -> list[dict[str, Any]]:
        return [
            {"tool_name": call["tool_name"], "arguments": call["arguments"]}
            for call in self._calls
            if call["error"] is None
        ]

    def _list(self) -> None:
        for tool in self._tools:
            parameters = ", ".join(tool.input_schema.get("properties", {}))
            summary = tool.description.strip().partition("\n")[0]
            self._page.line((tool.name, "bold"), f"({parameters})  ", (summary, "dim"), indent=2)

    def _call(self, name: str, rest: str) -> bool:
        try:
            arguments = _arguments(rest)
            parsed = tool_arguments(arguments, find_tool(self._tools, name, "here"))
            done = self._env.call_tool(name, parsed)
        except (ConfigurationError, InvalidMessage) as error:
            self._page.line((str(error), "yellow"))
            return False
        except EpisodeDone:
            return True
        except McpenvError as error:
            self._page.line((str(error), "red"))
            return False
        message = None if done.error is None else done.error.message
        result = getattr(done, "result", None)
        if result is not None and result.is_error:
            message = result.text
        self._calls.append({"tool_name": name, "arguments": parsed, "reward": done.reward, "error": message})
        if message is not None:
            self._page.line((message, "red"))
        elif result is not None:
            for block in result.content:
                self._page.block(block_text(block))
        self._page.line((reward_text(done), "dim"))
        return bool(done.done)


def _arguments(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    if text.startswith("{"):
        return given_arguments((), text, option="what follows the tool's name")
    try:
        return given_arguments(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(f"{text}: {error}") from error
