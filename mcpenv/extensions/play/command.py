"""The command ``mcpenv play``: play an episode by hand in the terminal."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
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
undo                     undo the last call, where the environment has snapshots
end                      end the episode, and score what it left
help                     this text"""

COMMANDS = ("list", "state", "undo", "end", "help")

UNDO_DEPTH = 10
"""Maximum number of calls that can be undone one after another."""

KEPT_LINES = 1000
"""Maximum number of lines that the next run of the command finds in its history."""

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
    options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    page = Page(sys.stderr if as_json else sys.stdout)  # before the author's output is redirected
    with _opened(target, settings, tasks, columns, control) as env:
        game = play_on(env, env.reset(**options), page)
    if as_json:
        print_json(game.document())
    else:
        game.show_oracle()
    return 0


def play_on(env: Playable, begun: Any, page: Page) -> Game:
    """Play an episode that has begun, by the commands of the user, and end it.

    Args:
        begun: the observation, or the result, with which it begins.
    """
    game = Game(env, page)
    game.begin(begun)
    for line in _lines(game.completions):
        if game.take(line):
            break
    game.end()
    return game


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


def _lines(completions: Callable[[Sequence[str], str], list[str]]) -> Iterator[str]:
    """Yield the user's commands until the end of the input. On a terminal they are edited, completed and remembered.

    Args:
        completions: returns the words that can follow others, and begin with a text.
    """
    if not sys.stdin.isatty():
        yield from (line for line in map(str.strip, sys.stdin) if line and not line.startswith("#"))
        return
    if readline is None:
        yield from _typed()
        return
    history = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mcpenv" / "play_history"
    readline.set_completer(functools.partial(_completed, completions))
    readline.set_completer_delims(" ")  # a key and its value are one word
    readline.parse_and_bind("tab: complete")
    with suppress(OSError):
        readline.read_history_file(history)
    try:
        yield from _typed()
    finally:
        readline.set_history_length(KEPT_LINES)
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)
            history.chmod(0o600)  # arguments may be secret


def _typed() -> Iterator[str]:
    """Yield the lines that are typed."""
    while True:
        try:
            # Only for Python's own stdout does `input` edit lines.
            with redirect_stdout(sys.__stdout__):
                line = input("> ").strip()
        except EOFError:
            return
        if line:
            yield line


def _completed(completions: Callable[[Sequence[str], str], list[str]], begun: str, number: int) -> str | None:
    """Return the completion of that number of the word that is being written; None if there are no more."""
    found = completions(readline.get_line_buffer()[: readline.get_begidx()].split(), begun)
    return found[number] if number < len(found) else None


class Game:
    """The episode that is played."""

    def __init__(self, env: Playable, page: Page) -> None:
        self._env = env
        self._page = page
        self._tools = env.list_tools()
        self._calls: list[dict[str, Any]] = []
        self._reason: str | None = None
        self._return: float | None = None
        self._problems: list[str] = []
        self._snapshots: list[Any] = []
        self._no_undo = "there is no call to undo"

    def completions(self, before: Sequence[str], begun: str) -> list[str]:
        """Return the words that begin with ``begun``: commands, or after a tool its arguments and their values."""
        if not before:
            words = [f"{word} " for word in (*COMMANDS, *(tool.name for tool in self._tools))]
        else:
            tool = next((tool for tool in self._tools if tool.name == before[0]), None)
            properties = {} if tool is None else tool.input_schema.get("properties", {})
            key, equals, _ = begun.partition("=")
            if equals:
                words = [f"{key}={value} " for value in _values(properties.get(key, {}))]
            else:
                given = {word.partition("=")[0] for word in before[1:]}
                words = [f"{name}=" for name in properties if name not in given]
        return [word for word in words if word.startswith(begun)]

    def begin(self, begun: Any) -> None:
        """Show the task and the tools."""
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
        elif word == "undo":
            self._undo()
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

    def _undo(self) -> None:
        if not self._snapshots:
            self._page.line((f"not undone: {self._no_undo}", "yellow"))
            return
        self._env.restore(self._snapshots.pop())
        call = self._calls.pop()
        self._page.line((f"undone: {call['tool_name']} {json.dumps(call['arguments'])}", "dim"))

    def _snapshot(self) -> Any:
        """Return a snapshot for `_undo`; None if there can be none."""
        try:
            return self._env.snapshot()
        except McpenvError as error:
            self._no_undo = str(error)
            return None

    def _remember(self, snapshot: Any) -> None:
        """Keep the snapshot from before a call. Without one, no earlier call can be undone either."""
        if snapshot is None:
            self._snapshots.clear()
            return
        self._snapshots.append(snapshot)
        if len(self._snapshots) > UNDO_DEPTH:
            oldest = self._snapshots.pop(0)
            if not isinstance(self._env, MCPEnvironment):
                self._env.drop_snapshot(oldest)

    def _list(self) -> None:
        for tool in self._tools:
            parameters = ", ".join(tool.input_schema.get("properties", {}))
            summary = tool.description.strip().partition("\n")[0]
            self._page.line((tool.name, "bold"), f"({parameters})  ", (summary, "dim"), indent=2)

    def _call(self, name: str, rest: str) -> bool:
        try:
            arguments = _arguments(rest)
            parsed = tool_arguments(arguments, find_tool(self._tools, name, "here"))
            before = self._snapshot()
            done = self._env.call_tool(name, parsed)
        except (ConfigurationError, InvalidMessage) as error:
            self._page.line((str(error), "yellow"))
            return False
        except EpisodeDone:
            return True
        except McpenvError as error:
            self._page.line((str(error), "red"))
            return False
        self._remember(before)
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


def _values(schema: dict[str, Any]) -> list[str]:
    """Return the values that a schema lists, as they are written on a line."""
    listed = [True, False] if schema.get("type") == "boolean" else schema.get("enum", [])
    return [shlex.quote(value) if isinstance(value, str) else json.dumps(value) for value in listed]


def _arguments(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    if text.startswith("{"):
        return given_arguments((), text, option="what follows the tool's name")
    try:
        return given_arguments(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(f"{text}: {error}") from error
