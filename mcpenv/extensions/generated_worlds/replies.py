"""The replies of an agent to its user: an answer, a refusal; and environments that are one question."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from mcpenv import Evidence, MCPEnvironment, Reward, ToolError

from .rows import RowDesk

Part = Annotated[int | None, Field(ge=1, le=20, description="The number of the request; needed if there are several")]
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Replies:
    """Tools by which the agent replies. A later reply to the same request replaces the one before, of any kind.

    Attributes:
        TABLES: those of the replies. The world has ``answers`` (part, text, number) and ``declined`` (part, rule,
            reason).

    Args:
        desk: the world.
        policy: the title of the text with the rules.
        rules: the names of the rules.
    """

    TABLES: ClassVar[tuple[str, ...]] = ("answers", "declined")

    def __init__(self, desk: RowDesk, policy: str, rules: Sequence[str]) -> None:
        self.desk = desk
        self._policy, self._rules = policy, rules

    def answer(
        self,
        text: Annotated[
            str, Field(min_length=1, max_length=200, description="The fact alone: a name, a number, a day")
        ],
        part: Part = None,
    ) -> str:
        """Answer a question of the user. It replaces an earlier reply. Amounts may be rounded to cents."""
        said = self.compared(" ".join(text.split()).strip(" .").casefold())
        self.put("answers", part, said, number_of(said))
        return "The answer is noted."

    def compared(self, said: str) -> str:
        """Return an answer as it is compared, from its words in lower case."""
        return said

    def decline(
        self,
        rule: Annotated[str, Field(min_length=1, max_length=10, description='The rule that forbids it: "R7"')],
        reason: Annotated[str, Field(min_length=1, max_length=200)],
        part: Part = None,
    ) -> str:
        """Refuse a request that the policy forbids. It replaces an earlier reply. Change nothing then."""
        name = rule.strip(" .").upper()
        if name not in self._rules:
            known = f"{self._rules[0]} to {self._rules[-1]}"
            raise ToolError(f'There is no rule {rule!r}. "{self._policy}" has the rules {known}.')
        self.put("declined", part, name, reason)
        return "The refusal is noted."

    def put(self, table: str, part: int | None, *values: object) -> None:
        """Write the reply to a request.

        Raises:
            ToolError: as by `part_of`.
        """
        row = (part_of(part, self.desk.requests), *values)
        for each in self.TABLES:
            self.desk.db.execute(f"DELETE FROM {each} WHERE part = ?", row[:1])
        self.desk.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def part_of(part: int | None, requests: int | None) -> int:
    """Return the number of the request that a reply is to: 1 if it is not given and there are not several.

    Args:
        part: as the agent gave it.
        requests: the number of requests of the task; None without a task.

    Raises:
        ToolError: there is no such request, or there are several and none is named.
    """
    these = "There is one request: 1." if requests == 1 else f"The requests are 1 to {requests}."
    if part is None and requests is not None and requests > 1:
        raise ToolError(f"Which request is this the reply to? Give its number as part. {these}")
    if part is not None and requests is not None and part > requests:
        raise ToolError(f"There is no request {part}. {these}")
    return part or 1


def number_of(text: str) -> float | None:
    """Return the number that a text is, rounded to two digits: "1,234.50 euros" is 1234.5; None if it is none."""
    bare = re.sub(r"\s*(euros?|eur|€|hours?|days?|h)$", "", text.strip()).removeprefix("€").strip()
    bare = re.sub(r"(?<=[0-9]),(?=[0-9]{3}\b)", "", bare)
    return round(float(bare), 2) + 0.0 if len(bare) < 20 and _NUMBER.fullmatch(bare) else None


class PuzzleEnvironment(MCPEnvironment):
    """Base class: the prompt of a task is a question, and the tool ``answer`` ends the episode.

    Subclasses write `judge`, and a ``reset`` that chooses the question and sets ``given`` to None.

    Attributes:
        given: the answer of this episode; None before it.
    """

    def __init__(self) -> None:
        self.given: str | None = None
        self.tool(self.answer, terminal=True)

    def answer(self, text: Annotated[str, Field(description="The answer alone, in the form that is asked for")]) -> str:
        """Give the answer. There is one try."""
        self.given = text
        return "The answer was taken."

    @abstractmethod
    def judge(self, text: str) -> float | Reward:
        """Return the score of an answer, from 0.0 to 1.0."""

    def verify(self, evidence: Evidence) -> float | Reward:
        """Return the score of the answer that was given, or 0.0 without one."""
        return 0.0 if self.given is None else self.judge(self.given)
