"""Judge access of tools to the outside of their world, and the promises of their annotations."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.extensions.contract.arguments import arguments_for
from mcpenv.extensions.validation.tasks.play import failure_of
from mcpenv.worlds import capture
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import to_plain

from .candidate import Candidate
from .judged import Judged
from .parameters import Kind, of_kind

_ADVICE = {
    Kind.PATH: "Resolve the path and refuse what is not below the workspace: "
    "path.resolve().is_relative_to(folder.resolve())",
    Kind.COMMAND: "Run commands in a sandbox or a container that has the workspace only",
    Kind.CODE: "Run code in a sandbox or a container that has the workspace only",
    Kind.URL: "Accept http and https only, and refuse addresses of this machine",
}


def judge_security(candidate: Candidate, into: Judged) -> None:
    """Judge paths, commands and addresses that lead outside, and annotations that tools violate."""
    if not candidate.stands(into):
        return
    candidate.on_check("reach")
    _judge_reach(candidate, into)
    candidate.on_check("annotations")
    _judge_annotations(candidate, into)


# -- access from tools


@dataclass(frozen=True, slots=True)
class _Attack:
    """A value of a parameter that leads to the canary.

    Attributes:
        shown: the value as displayed to a reader.
        value: the value.
    """

    shown: str
    value: str


class _Canary:
    """A folder outside of every workspace; no tool may reveal or change the name and content of its file."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mcpenv-canary-"))
        self.name = f"{secrets.token_hex(6)}.txt"
        self.secret = secrets.token_hex(12)
        self.restore()

    def restore(self) -> None:
        """Restore the folder to its initial state."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / self.name).write_text(self.secret, encoding="utf-8")

    def attacks(self, kind: Kind) -> Iterator[_Attack]:
        """Yield values that lead to the folder, to its file, and to a file that does not exist."""
        file, new = self.folder / self.name, self.folder / "written.txt"
        up = "../" * 16
        if kind is Kind.PATH:
            for path, shown in ((file, "FILE"), (self.folder, "FOLDER"), (new, "NEW_FILE")):
                yield _Attack(f"/tmp/.../{shown}", str(path))
                yield _Attack(f"../../.../{shown}", up + str(path).lstrip("/"))
        elif kind is Kind.COMMAND:
            yield _Attack("cat /tmp/.../FILE", f"cat {file}")
        elif kind is Kind.CODE:
            yield _Attack("open('/tmp/.../FILE').read()", f"print(open({str(file)!r}).read())")
            yield _Attack("open('/tmp/.../FILE').read()", f"open({str(file)!r}).read()")
        elif kind is Kind.URL:
            yield _Attack("file:///tmp/.../FILE", file.as_uri())

    def touched(self, shown: str, value: str) -> str | None:
        """Return the effect of a call on the folder; None if there is none.

        Args:
            shown: everything that the call returned.
            value: the value that was passed, which may be repeated in an error.
        """
        if self.secret in shown:
            return "read a file"
        if self.name in shown and self.name not in value:
            return "listed a folder"
        there = {path.name: path for path in self.folder.iterdir()} if self.folder.is_dir() else {}
        if self.name not in there:
            return "deleted a file"
        if (
            not there[self.name].is_file()
            or there[self.name].read_text(encoding="utf-8", errors="replace") != self.secret
        ):
            return "changed a file"
        return "wrote a file" if len(there) > 1 else None


def _judge_reach(candidate: Candidate, into: Judged) -> None:
    """Try parameters for paths, commands, code and addresses with values that lead outside."""
    leading = [(tool, kind, name) for tool in candidate.tools for kind in _ADVICE for name in of_kind(tool, kind)]
    into.summary = "no parameter is a path, a command, code or an address"
    if not leading:
        into.not_applicable("reach", "no tool takes a path, a command, code or an address")
        return
    canary, untried = _Canary(), list[str]()
    try:
        with candidate.episode() as env:
            for tool, kind, name in leading:
                base = arguments_for(tool.input_schema) or next(iter(candidate.examples(tool, 1)), None)
                if base is None:
                    untried.append(tool.name)
                    continue
                found = _reached(candidate, env, tool, base, kind, name, canary)
                if found is not None:
                    into.failed("reach", found, _ADVICE[kind], tool.name)
    finally:
        shutil.rmtree(canary.folder, ignore_errors=True)
    into.summary = f"{len(leading) - len(untried)} parameters tried that may lead outside"
    into.not_tried("reach", untried, "no arguments could be made")
    into.ok_unless_found("reach")


def _reached(
    candidate: Candidate,
    env: MCPEnvironment,
    tool: Tool,
    base: dict[str, Any],
    kind: Kind,
    name: str,
    canary: _Canary,
) -> str | None:
    """Return the part of the outside that a parameter reached; None if there is none.

    Args:
        base: arguments of the tool, of which one is replaced.
    """
    for attack in canary.attacks(kind):
        observation = env.call_tool(tool.name, {**base, name: attack.value})
        done = canary.touched(json.dumps(to_plain(observation, tool.name), default=str), attack.value)
        if observation.done:
            candidate.reset(env)
        if done is not None:
            canary.restore()
            return f"{name}={attack.shown!r} {done} outside of the workspace"
    return None


# -- promises of annotations


def _judge_annotations(candidate: Candidate, into: Judged) -> None:
    """Call tools annotated as read-only or idempotent, and compare the state."""
    promising = [tool for tool in candidate.tools if _says(tool, "readOnlyHint") or _says(tool, "idempotentHint")]
    if not promising:
        into.not_applicable("annotations", "no tool says that it is read-only or idempotent")
        return
    untried = []
    for tool in promising:
        succeeded = False
        for arguments in candidate.examples(tool):
            with candidate.episode() as env:
                states = [_state(env)]
                for _ in range(2):
                    observation = env.call_tool(tool.name, arguments)
                    succeeded |= failure_of(observation) is None
                    if observation.done:
                        break
                    states.append(_state(env))
            if _says(tool, "readOnlyHint") and any(state != states[0] for state in states[1:]):
                into.failed(
                    "annotations",
                    "readOnlyHint is True, and a call changes the state; hosts run such tools without asking",
                    "Set readOnlyHint=False, or change nothing",
                    tool.name,
                )
                break
            if _says(tool, "idempotentHint") and len(states) == 3 and states[1] != states[2]:
                into.failed(
                    "annotations",
                    "idempotentHint is True, and a second equal call changes the state again; hosts repeat such calls",
                    "Set idempotentHint=False, or let the second call change nothing",
                    tool.name,
                )
                break
        if not succeeded:
            untried.append(tool.name)
    into.not_tried("annotations", untried, "no call of it succeeded")
    into.ok_unless_found("annotations")


def _says(tool: Tool, hint: str) -> bool:
    return bool((tool.annotations or {}).get(hint))


def _state(env: MCPEnvironment) -> Any:
    """Return the state of the world and the environment's reports of it, without the framework's counts."""
    told = to_plain(env.state, "state")
    told.pop("step_count", None)
    told.pop("episode_id", None)
    return told if env.world is None else (capture(env.world), told)
