"""Test the numbers of docs/reference/limits.md that extensions have, and that no row is left out."""

from __future__ import annotations

import pytest
from limits_page import Numbers, assert_has, begins, rows
from test_limits import NUMBERS as OF_THE_KERNEL

from mcpenv.extensions.branching import worlds
from mcpenv.extensions.durable import unwritten
from mcpenv.extensions.evaluation import program_agent
from mcpenv.extensions.evaluation.model_agent import ModelAgent
from mcpenv.extensions.files_world import world as files_world
from mcpenv.extensions.harbor import artifacts, box, container, engine, episode
from mcpenv.extensions.mcp_proxy import loop
from mcpenv.extensions.model_proxy import relay
from mcpenv.extensions.models import chat_completions
from mcpenv.extensions.records import record_index
from mcpenv.extensions.sandbox import bubblewrap
from mcpenv.extensions.sqlite_world import world as sqlite_world
from mcpenv.extensions.workers import hub, supervisor

MIB = 1 << 20

NUMBERS: Numbers = {
    "a worker whose event loop does not answer": [("{} s", hub.SILENT_S)],
    "the same": [("{} s;", hub.KILLED_S)],
    "the same, without sessions": [("{} s", hub.SILENT_S)],
    "forking a worker": [("{} s", supervisor.STARTED_S)],
    f"the pause before a worker that lived less than {supervisor.SOON_S:g} s": [
        ("{} s,", supervisor.PAUSE_S),
        ("up to {} s", supervisor.LONGEST_PAUSE_S),
    ],
    "a cancelled call of a proxied server": [("{} s", loop.CANCELLED_WITHIN_S)],
    "a connection while no worker serves": [("{} s", hub.STRANDED_S)],
    "bytes that `SQLiteWorld` captures": [("{} MiB", sqlite_world.MAX_BYTES / MIB), ("{} for each", sqlite_world.EACH)],
    f"bytes of the files that `FilesWorld` captures or saves; of their texts, and {files_world.EACH}": [
        ("{} GiB", files_world.MAX_BYTES / MIB / 1024),
        ("{} MiB", files_world.MAX_TREE / MIB),
    ],
    "a request to the model proxy": [("{} MiB", relay.MAX_BODY_BYTES / MIB), ("; {} MiB", relay.MAX_BYTES / MIB)],
    "an answer of a model's endpoint": [
        ("{} MiB", chat_completions.MAX_ANSWER_BYTES / MIB),
        ("{} s in all", chat_completions.ChatEndpoint.timeout_s),
        ("{} s for a model agent", ModelAgent.request_timeout_s),
    ],
    "writes of a durable session": [("{}", unwritten.MAX_WRITES), ("{} MiB", unwritten.MAX_BYTES / MIB)],
    "what the console reads of it": [
        ("{} MiB", record_index.MAX_LINE_BYTES / MIB),
        ("{} objects", record_index.MAX_LINE_PARTS),
        ("{} lines", record_index.MAX_WITHOUT_ROW),
    ],
    "a look at the world of a recorded episode": [("{} s", worlds.LOOK_S)],
    "an artifact of a Harbor task": [("{} MiB", artifacts.MAX_ARTIFACT / MIB)],
    "an output of a command of the agent": [("{} bytes", box.MAX_OUTPUT)],
    "the work of an agent that is carried over": [
        ("{} GiB in all", container.MAX_WORK / MIB / 1024),
        ("{} s for each", engine.COMMAND_TIMEOUT_S),
    ],
    "`setup.sh` of a step of a Harbor task": [("{} s", episode.SETUP_TIMEOUT_S)],
    "output of an agent's program": [("{} MiB", program_agent.MAX_OUTPUT / MIB)],
    "an empty folder in a sandbox": [("{} GiB each", bubblewrap.DEFAULT_TMPFS_MB / 1024)],
}

WITHOUT_A_NUMBER = ("the text of a tool's result", "listings and calls of one agent", "sessions of agents")
"""Rows whose default is no limit, or a share."""


@pytest.mark.parametrize("beginning", NUMBERS)
def test_the_page_has_the_numbers_of_the_code(beginning: str) -> None:
    assert_has(beginning, NUMBERS[beginning])


def test_each_row_is_checked_once() -> None:
    beginnings = [*OF_THE_KERNEL, *NUMBERS, *WITHOUT_A_NUMBER]
    unchecked = [row for row, _ in rows() if not any(begins(row, each) for each in beginnings)]
    unused = [each for each in beginnings if not any(begins(row, each) for row, _ in rows())]
    assert (unchecked, unused) == ([], [])
