"""The replies of the agent to the user: an answer, a refusal, a question."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv.extensions.generated_worlds import Part, Replies

from ..desk import Desk
from ..policy import RULES, TITLE
from .arguments import Long


class ReplyTools(Replies):
    """Tools by which the agent replies. A later reply to the same request replaces the one before."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, TITLE, RULES)
        self.tools = (self.answer, self.decline, self.ask)

    def ask(
        self,
        about: Annotated[
            Literal["person", "item", "amount", "date"],
            Field(description="What the request leaves open: which person, which item, how much or when"),
        ],
        question: Long,
        part: Part = None,
    ) -> str:
        """Ask the user what a request leaves open, instead of guessing. Change nothing then."""
        self.put("questions", part, about, question)
        return "The question is noted. Go on with the other requests."
