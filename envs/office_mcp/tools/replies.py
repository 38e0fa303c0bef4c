"""The replies of the agent to the user: an answer, a refusal, a question."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError

from ..desk import Desk
from ..policy import RULES, TITLE
from .arguments import Long, Short

Part = Annotated[int, Field(ge=1, le=20, description="The number of the request, if there are several")]
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class ReplyTools:
    """Tools by which the agent replies. A later reply to the same request replaces the one before."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.answer, self.decline, self.ask)

    def answer(
        self,
        text: Annotated[
            str, Field(min_length=1, max_length=200, description="The fact alone: a name, a number, a day")
        ],
        part: Part = 1,
    ) -> str:
        """Answer a question of the user. Amounts may be rounded to cents."""
        said = " ".join(text.split()).strip(" .").casefold()
        self._put("answers", part, said, number_of(said))
        return "The answer is noted."

    def decline(
        self,
        rule: Annotated[str, Field(min_length=1, max_length=10, description='The rule that forbids it: "R7"')],
        reason: Short,
        part: Part = 1,
    ) -> str:
        """Refuse a request that the company's policy forbids. Change nothing then."""
        name = rule.strip(" .").upper()
        if name not in RULES:
            raise ToolError(f'There is no rule {rule!r}. "{TITLE}" has the rules {RULES[0]} to {RULES[-1]}.')
        self._put("declined", part, name, reason)
        return "The refusal is noted."

    def ask(
        self,
        about: Annotated[
            Literal["person", "item", "amount", "date"],
            Field(description="What the request leaves open: which person, which item, how much or when"),
        ],
        question: Long,
        part: Part = 1,
    ) -> str:
        """Ask the user what a request leaves open, instead of guessing. Change nothing then."""
        self._put("questions", part, about, question)
        return "The question is noted. Go on with the other requests."

    def _put(self, table: str, part: int, *values: object) -> None:
        requests = self.desk.requests
        if requests is not None and part > requests:
            these = "There is one request: 1." if requests == 1 else f"The requests are 1 to {requests}."
            raise ToolError(f"There is no request {part}. {these}")
        row = (part, *values)
        self.desk.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def number_of(text: str) -> float | None:
    """Return the number that a text is, rounded to two digits: "1,234.50 euros" is 1234.5; None if it is none."""
    bare = re.sub(r"\s*(euros?|eur|€|hours?|days?|h)$", "", text.strip()).removeprefix("€").strip()
    bare = re.sub(r"(?<=[0-9]),(?=[0-9]{3}\b)", "", bare)
    return round(float(bare), 2) + 0.0 if len(bare) < 20 and _NUMBER.fullmatch(bare) else None
