"""The tools by which an agent reads the long outputs of its episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from fastmcp.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from mcpenv.tools.definition import DefinitionCache, ToolOptions
from mcpenv.tools.outputs import Keeper, Output
from mcpenv.tools.registry import BoundTool

from .pages import MAX_AROUND, MAX_MATCHES, NoSuchLine, Pattern, Words, search, view

SEARCH, VIEW = "search_tool_output", "view_tool_output"
"""The names of the tools. Their own answers are never cut: they are short."""

_KINDS = DefinitionCache()
_OPTIONS = ToolOptions(fastmcp={"annotations": ToolAnnotations(read_only_hint=True), "output_schema": None})

Id = Annotated[str, Field(description="The id of the output, such as output-3, as the cut answer names it")]
Text = Annotated[str, Field(min_length=1, description="The text to find, exactly as it stands")]
Start = Annotated[int, Field(ge=0, description="The character from which to search")]
MaxMatches = Annotated[int, Field(ge=1, le=MAX_MATCHES)]
Around = Annotated[int, Field(ge=0, le=MAX_AROUND, description="Characters to show around each match")]


def tools_for_outputs(owner: Keeper, max_characters: int) -> Iterator[BoundTool]:
    """Return the tools of one environment instance."""
    tools = OutputTools(owner, max_characters)
    search_with = tools.search_tool_output if find_spec("re2") is not None else tools.search_words
    for name, fn in ((SEARCH, search_with), (VIEW, tools.view_tool_output)):
        yield BoundTool(_KINDS.kind_of(fn, name, _OPTIONS), fn)


@dataclass(frozen=True)  # snapshots accept tools of objects that never change
class OutputTools:
    """The tools that search and page outputs.

    Attributes:
        owner: the instance that has the outputs.
        max_characters: maximum characters of an answer.
    """

    owner: Keeper
    max_characters: int

    def search_tool_output(
        self,
        id: Id,
        pattern: Text,
        regex: Annotated[
            bool, Field(description="The pattern is a regular expression (RE2), which is matched in each line")
        ] = False,
        start: Start = 0,
        max_matches: MaxMatches = 10,
        around: Around = 100,
    ) -> str:
        """Find text in a tool output that was too long and was cut."""
        output = self._output(id)
        found = _expression(pattern) if regex else Words(pattern)
        return search(id, output.text, found, start, max_matches, around, self.max_characters)

    def search_words(
        self,
        id: Id,
        pattern: Text,
        start: Start = 0,
        max_matches: MaxMatches = 10,
        around: Around = 100,
    ) -> str:
        """Find text in a tool output that was too long and was cut."""
        return self.search_tool_output(id, pattern, False, start, max_matches, around)

    def view_tool_output(
        self,
        id: Id,
        character: Annotated[
            int | None, Field(description="The character at which to begin; a negative number counts from the end")
        ] = None,
        line: Annotated[int | None, Field(ge=1, description="The line at which to begin instead, from 1")] = None,
        lines: Annotated[int | None, Field(ge=1, description="How many lines to show at most")] = None,
    ) -> str:
        """Read a part of a tool output that was too long and was cut."""
        if character is not None and line is not None:
            raise ToolError("Give either character or line: both say where to begin.")
        try:
            return view(id, self._output(id).text, character or 0, line, lines, self.max_characters)
        except NoSuchLine as error:
            raise ToolError(f"Not shown: {error}.") from error

    def _output(self, id: str) -> Output:
        outputs, principal = self.owner.kept_outputs()
        output = outputs.get(id, principal)
        if output is not None:
            return output
        ids = outputs.ids(principal)
        known = f"There are: {', '.join(ids[-20:])}" if ids else "No output was kept"
        if outputs.dropped(id):
            raise ToolError(f"The output {id!r} is not kept any more, because later ones needed its place. {known}.")
        raise ToolError(f"There is no output {id[:100]!r}. {known}.")


def _expression(pattern: str) -> Pattern:
    from .expressions import Expression, Refused

    try:
        return Expression(pattern)
    except Refused as error:
        raise ToolError(f"Not searched: {error}.") from error


__all__ = ["SEARCH", "VIEW", "OutputTools", "tools_for_outputs"]
