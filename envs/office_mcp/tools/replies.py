"""The replies of the agent to the user: an answer, a refusal, a question."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv.extensions.generated_worlds import Part, Replies

from ..desk import Desk
from ..policy import RULES, TITLE
from .arguments import Long


class ReplyTools(Replies):
    """Tools by which the agent replies."""

    TABLES = (*Replies.TABLES, "questions")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, TITLE, RULES)
        self.tools = (self.answer, self.decline, self.ask)

    def compared(self, said: str) -> str:
        """Return an answer; of "name (department)", as people of one name are told apart, the name."""
        known = ((person["name"], person["department"]) for person in self.desk.find("people"))
        return next((name.casefold() for name, at in known if said == f"{name} ({at})".casefold()), said)

    def ask(
        self,
        about: Annotated[
            Literal["person", "item", "amount", "date"],
            Field(description="What the request leaves open: which person, which item, how much or when"),
        ],
        question: Long,
        part: Part = None,
    ) -> str:
        """Ask what a request leaves open, instead of guessing. It replaces an earlier reply; change nothing."""
        self.put("questions", part, about, question)
        return "The question is noted. Go on with the other requests."
