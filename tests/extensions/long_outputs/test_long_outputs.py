"""Long outputs: cut for the agent, kept whole for the episode, searched and paged, whatever tool they came from."""

from __future__ import annotations

import asyncio
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import ImageContent, TextContent

from mcpenv import ConfigurationError, InvalidTool, MCPEnvironment, ToolError
from mcpenv.extensions.long_outputs import LongOutputs
from mcpenv.extensions.long_outputs.pages import NoSuchLine, Words, search, view
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.tools.outputs import KeptOutputs, Output
from mcpenv_client import CallToolObservation, Observation, ToolErrorType
from mcpenv_client.types.tools import OUTPUT_META

LINES = "\n".join(f"line {number:05} of the log" for number in range(20_000))
ONE_LINE = "x" * 500_000 + "needle" + "y" * 500_000
SMALL = LongOutputs(max_characters=1000)


class Logs(MCPEnvironment):
    """Read logs."""

    long_outputs = SMALL

    def __init__(self) -> None:
        self.seen: list[Any] = []

        @self.tool
        def read(what: str) -> str:
            """Read a log."""
            return {"lines": LINES, "one": ONE_LINE, "short": "short"}[what]

        @self.tool
        def rows() -> dict[str, list[int]]:
            """Read rows."""
            return {"rows": list(range(5000))}

        @self.tool
        def fail() -> str:
            """Fail at length."""
            raise ToolError("no " * 2000)

        @self.tool
        def picture() -> Any:
            """See a picture with a long text."""
            image = ImageContent(type="image", data="aGk=", mime_type="image/png")
            return FastMCPResult(content=[TextContent(type="text", text="a" * 900), image, TextContent(text="b" * 900)])

    def score(self, call: Any, outcome: Any) -> float:
        self.seen.append(outcome.value)
        return 0.0


def called(env: MCPEnvironment, name: str, **arguments: Any) -> CallToolObservation:
    observation: Observation = env.call_tool(name, arguments)
    assert isinstance(observation, CallToolObservation)
    return observation


# -- the answer


def test_a_long_text_is_cut_in_the_middle_and_says_where_the_whole_is() -> None:
    with Logs() as env:
        observation = called(env, "read", what="lines")
        assert observation.result is not None and observation.result.meta is not None
        text = observation.text
        assert text.startswith(LINES[:750]) and text.endswith(LINES[-250:])
        assert len(text) < 1300
        assert f"{len(LINES) - 1000} of {len(LINES)} characters are left out" in text and '"output-1"' in text
        assert observation.result.structured_content == {"result": text}
        about = observation.result.meta[OUTPUT_META]
        assert about["id"] == "output-1" and about["characters"] == len(LINES) and about["lines"] == 20_000
        assert env.seen == [LINES], "scoring sees the whole output"


def test_a_short_text_passes_unchanged() -> None:
    with Logs() as env:
        observation = called(env, "read", what="short")
        assert observation.text == "short" and observation.result is not None
        assert OUTPUT_META not in (observation.result.meta or {})


def test_the_record_has_what_the_agent_saw() -> None:
    with Logs() as env:
        observation = called(env, "read", what="lines")
        assert env.trajectory is not None
        (step,) = env.trajectory.steps
        assert step.outcome.result == observation.result and step.outcome.value is None


def test_an_object_is_cut_as_text_and_its_tool_lists_no_output_schema() -> None:
    with Logs() as env:
        observation = called(env, "rows")
        assert observation.result is not None
        assert observation.result.structured_content is None and observation.result.data is None
        assert '"output-1"' in observation.text
        schemas = {tool.name: tool.output_schema for tool in env.list_tools()}
        assert schemas["rows"] is None and schemas["read"] is not None


def test_a_long_error_is_cut_and_kept_too() -> None:
    with Logs() as env:
        observation = called(env, "fail")
        assert observation.error is not None and observation.error.error_type is ToolErrorType.EXECUTION_ERROR
        assert len(observation.error.message) < 1300
        assert "[output-1: characters 5900 to" in called(env, "view_tool_output", id="output-1", character=5900).text


def test_images_stay_where_they_are() -> None:
    with Logs() as env:
        observation = called(env, "picture")
        assert observation.result is not None
        assert [block["type"] for block in observation.result.content] == ["text", "image"]
        assert "801 of 1801 characters" in observation.text


# -- search and view


def test_one_line_of_a_megabyte_is_searched_and_paged() -> None:
    with Logs() as env:
        called(env, "read", what="one")
        found = called(env, "search_tool_output", id="output-1", pattern="needle", around=10)
        assert found.text.splitlines()[1] == "[line 1, character 500000] " + "x" * 10 + "needle" + "y" * 10
        page = called(env, "view_tool_output", id="output-1", character=499_990)
        first, _, rest = page.text.partition("\n")
        assert rest == ONE_LINE[499_990:500_990] and "go on with character=500990" in first
        assert called(env, "view_tool_output", id="output-1", line=1, lines=1).text.endswith("\n" + "x" * 1000)


def test_the_pages_of_a_search_have_every_match_once() -> None:
    with Logs() as env:
        called(env, "read", what="lines")
        numbers, start = [], 0
        while True:
            page = called(
                env, "search_tool_output", id="output-1", pattern="777 of", start=start, around=6, max_matches=7
            ).text
            assert len(page) < 1200
            numbers += re.findall(r"\[line (\d+),", page)
            more = re.search(r"start=(\d+)", page)
            if more is None:
                break
            start = int(more[1])
        assert [int(number) - 1 for number in numbers] == [number for number in range(20_000) if number % 1000 == 777]


def test_the_pages_of_a_view_join_to_the_whole_text() -> None:
    with Logs() as env:
        called(env, "read", what="lines")
        read, at = "", 0
        while at < 30_000:
            first, _, page = called(env, "view_tool_output", id="output-1", character=at).text.partition("\n")
            read += page
            at = int(re.findall(r"character=(\d+)", first)[0])
        assert read == LINES[:at]


def test_lines_are_counted_from_one_and_characters_from_the_end() -> None:
    text = "a\nb\nc\n"
    assert (
        view("o", text, 0, 2, 1, 100) == "[o: characters 2 to 4 of 6, lines 2 to 2 of 4; go on with character=4]\nb\n"
    )
    assert view("o", text, -2, None, None, 100).endswith("; this is the end]\nc\n")
    with pytest.raises(NoSuchLine, match="there is no line 9: the output has 4 lines"):
        view("o", text, 0, 9, None, 100)
    assert view("o", text, 100, None, None, 100).endswith("; this is the end]\n")


def test_a_search_without_a_match_says_so() -> None:
    assert search("o", "abc", Words("z"), 0, 10, 10, 1000).splitlines() == [
        "[o: No match, from character 0 of 3]",
        "There are no more matches.",
    ]


@pytest.mark.parametrize("id", ["output-9", "../../etc/passwd", ""])
def test_an_unknown_id_names_those_that_exist_and_is_never_a_path(id: str) -> None:
    with Logs() as env:
        called(env, "read", what="lines")
        observation = called(env, "view_tool_output", id=id)
        assert observation.error is not None and "There are: output-1." in observation.error.message


# -- regular expressions


def test_a_regular_expression_finds_lines() -> None:
    pytest.importorskip("re2", reason="needs the extra context")
    with Logs() as env:
        called(env, "read", what="lines")
        page = called(
            env, "search_tool_output", id="output-1", pattern=r"^line 1(2|3)345\b", regex=True, around=0
        ).text.splitlines()
        assert page[1:3] == ["[line 12346, character 271590] line 12345", "[line 13346, character 293590] line 13345"]


def test_a_hostile_regular_expression_ends_and_holds_no_other_call() -> None:
    expressions = pytest.importorskip("mcpenv.extensions.long_outputs.expressions", reason="needs the extra context")
    text = "ab" * 500_000
    began = time.monotonic()
    page = search("o", text, expressions.Expression("(?:(?:a|b|ab|ba|aab){1,30}){1,30}c"), 0, 10, 10, 1000)
    assert time.monotonic() - began < 30
    assert "go on with start=" in page
    assert "No match" in search("o", "a" * 1_000_000, expressions.Expression("(a+)+$b"), 0, 10, 10, 1000)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        ("a(?=b)", "lookaround"),
        ("a" * 1001, "at most 1000"),
        ("((a{1000}){1000}){1000}", "repetition"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_an_error_for_the_model(pattern: str, reason: str) -> None:
    pytest.importorskip("re2", reason="needs the extra context")
    with Logs() as env:
        called(env, "read", what="lines")
        observation = called(env, "search_tool_output", id="output-1", pattern=pattern, regex=True)
        assert observation.error is not None and reason in observation.error.message


def test_anchors_hold_at_the_ends_of_lines_only_and_long_lines_are_searched_in_parts() -> None:
    expressions = pytest.importorskip("mcpenv.extensions.long_outputs.expressions", reason="needs the extra context")

    def found(pattern: str, text: str, start: int = 0) -> list[tuple[int, int]]:
        return list(expressions.Expression(pattern).matches(text, start, time.monotonic() + 60))

    long = "-" * 3998 + "needle" + "-" * 3990 + "needle" + "-" * 10_000
    assert found("needle", long) == [(3998, 4004), (7994, 8000)]
    assert found("^-", long + "\n" + long) == [(0, 1), (len(long) + 1, len(long) + 2)]
    assert found("needle", long, 3999) == [(7994, 8000)]
    assert found("a$", "a\nba\n") == [(0, 1), (3, 4)]
    assert found("^$", "a\n\nb") == [(2, 2)]
    assert found("é", "éaé\né") == [(0, 1), (2, 3), (4, 5)]


def test_without_the_library_no_expressions_are_offered_and_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.delitem(sys.modules, "mcpenv.extensions.long_outputs.expressions", raising=False)
    with Logs() as env:
        called(env, "read", what="lines")
        (tool,) = [tool for tool in env.list_tools() if tool.name == "search_tool_output"]
        assert "regex" not in tool.input_schema["properties"]
        assert "1 match" in called(env, "search_tool_output", id="output-1", pattern="00777 of").text


def test_a_line_after_the_last_one_and_two_places_to_begin_are_refused() -> None:
    with Logs() as env:
        called(env, "read", what="lines")
        observation = called(env, "view_tool_output", id="output-1", line=10_000_000)
        assert (
            observation.error is not None and "there is no line 10000000: the output has" in observation.error.message
        )
        observation = called(env, "view_tool_output", id="output-1", line=2, character=5)
        assert observation.error is not None and "either character or line" in observation.error.message


# -- the episode


def test_a_reset_forgets_and_a_fork_remembers() -> None:
    with Logs() as env:
        env.reset()
        called(env, "read", what="lines")
        snapshot = env.snapshot()
        assert snapshot.bytes > len(LINES)
        with env.fork(pickle.loads(pickle.dumps(snapshot))) as fork:
            called(fork, "read", what="one")
            assert called(fork, "view_tool_output", id="output-1").error is None
            assert called(fork, "view_tool_output", id="output-2").error is None
        assert called(env, "view_tool_output", id="output-2").error is not None
        env.reset()
        assert "No output was kept" in str(called(env, "view_tool_output", id="output-1").error)


def test_outputs_above_the_limit_of_bytes_drop_the_oldest() -> None:
    class Few(Logs):
        """Keep few."""

        long_outputs = LongOutputs(1000, len(LINES) + 10)

    with Few() as env:
        called(env, "read", what="lines")
        called(env, "read", what="lines")
        assert "is not kept any more" in str(called(env, "view_tool_output", id="output-1").error)
        assert called(env, "view_tool_output", id="output-2").error is None
        too_large = called(env, "read", what="one")
        assert "The rest is lost" in too_large.text
        assert called(env, "view_tool_output", id="output-2").error is None


def test_an_output_is_read_only_by_the_caller_that_got_it() -> None:
    outputs = KeptOutputs()
    outputs.add(Output("output-1", "secret", 6, "ann"), 100)
    assert outputs.get("output-1", "ann") is not None
    assert outputs.get("output-1", "bob") is None and outputs.get("output-1", None) is None
    assert outputs.ids("bob") == []


# -- every kind of tool


def test_an_mcp_client_gets_cut_results_that_fit_the_listed_tools() -> None:
    async def play() -> tuple[str, str]:
        with Logs() as env:
            async with Client(env.mcp) as client:
                rows = await client.call_tool("rows", {})
                text = await client.call_tool("read", {"what": "lines"})
                seen = await client.call_tool("view_tool_output", {"id": "output-2", "line": 20_000})
                assert "output-1" in rows.content[0].text and rows.structured_content is None
                return text.data, seen.content[0].text

    text, seen = asyncio.run(play())
    assert '"output-2"' in text
    assert seen.endswith("\nline 19999 of the log")


def test_tools_of_a_mounted_server_are_cut_too() -> None:
    server = FastMCP("logs")

    @server.tool
    def tail() -> str:
        """Read the log."""
        return LINES

    class Mounted(MCPEnvironment):
        """Read logs of a server."""

        long_outputs = SMALL

        def __init__(self) -> None:
            super().__init__(server)

    with Mounted() as env:
        assert {"tail", "search_tool_output", "view_tool_output"} == {tool.name for tool in env.list_tools()}
        assert '"output-1"' in called(env, "tail").text
        assert "1 match" in called(env, "search_tool_output", id="output-1", pattern="line 12345").text


SERVER = '''
from fastmcp import FastMCP

server = FastMCP("logs")


@server.tool
def tail() -> list[str]:
    """Read the log."""
    return [f"line {number}" for number in range(20_000)]


server.run(show_banner=False)
'''


@pytest.mark.process
def test_tools_of_a_proxied_server_are_cut_by_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    config = {"mcpServers": {"logs": {"command": sys.executable, "args": [str(file)]}}}
    made = ProxyEnvironment.from_config(config, {"max_output_characters": "1000"})
    with made() as env:
        env.reset()
        assert '"output-1"' in called(env, "tail").text
        assert '"line 12345"' in called(env, "search_tool_output", id="output-1", pattern="line 12345").text
        assert {tool.name: tool.output_schema for tool in env.list_tools()}["tail"] is None


# -- settings


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_characters is 10; it must be 500 or more"):
        LongOutputs(10)
    with pytest.raises(ConfigurationError, match="kept_bytes is 0"):
        LongOutputs(1000, 0)
    with pytest.raises(TypeError, match="long_outputs is a int"):
        type("Wrong", (MCPEnvironment,), {"long_outputs": 1000})
    with pytest.raises(ConfigurationError, match="only with max_output_characters"):
        ProxyEnvironment.from_config({"mcpServers": {"a": {"command": "true"}}, "mcpenv": {"kept_output_bytes": 5}})


def test_an_own_tool_of_that_name_is_refused() -> None:
    class Clash(MCPEnvironment):
        """Clash."""

        long_outputs = SMALL

        def __init__(self) -> None:
            @self.tool
            def view_tool_output() -> str:
                """View."""
                return ""

    with pytest.raises(InvalidTool, match="view_tool_output"):
        Clash()
