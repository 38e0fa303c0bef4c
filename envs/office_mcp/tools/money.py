"""The leave and the expenses of people. The tools do not know the company's policy: the agent has to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Day, Id, Rows, Short, clean, day_of

Decision = Literal["approved", "rejected"]
MOST_DAYS = 366


class LeaveTools:
    """Tools of leave."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (self.list_leave, self.get_leave, self.request_leave, self.decide_leave, self.cancel_leave)

    def list_leave(
        self,
        person: Id | None = None,
        status: Literal["requested", "approved", "rejected", "cancelled"] | None = None,
        day: Annotated[str | None, Field(description="Only leave that has this day")] = None,
    ) -> Rows:
        """List leave by person, status and day."""
        found = self.desk.find("leaves", person=person, status=status)
        return [each for each in found if day is None or each["first_day"] <= day <= each["last_day"]]

    def get_leave(self, leave: Id) -> Row:
        """Show a leave."""
        return self.desk.row("leaves", leave)

    def request_leave(
        self, person: Id, kind: Literal["vacation", "parental", "training"], first_day: Day, last_day: Day
    ) -> Row:
        """Request leave for a colleague. All days count, from the first to the last."""
        self.desk.row("people", person)
        days = (day_of(last_day) - day_of(first_day)).days + 1
        if not 1 <= days <= MOST_DAYS:
            raise ToolError(f"From {first_day} to {last_day} are {days} days. Write the earlier day first.")
        return self.desk.insert(
            "leaves",
            person=person,
            kind=kind,
            first_day=first_day,
            last_day=last_day,
            days=days,
            status="requested",
        )

    def decide_leave(self, leave: Id, decision: Decision) -> Row:
        """Approve or reject leave that is requested."""
        found = self.desk.row("leaves", leave)
        if found["status"] != "requested":
            raise ToolError(f"Leave {leave} is {found['status']} already. Only requested leave is decided.")
        return self.desk.update("leaves", leave, status=decision)

    def cancel_leave(self, leave: Id) -> Row:
        """Cancel leave."""
        return self.desk.update("leaves", leave, status="cancelled")


class ExpenseTools:
    """Tools of expenses."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_expenses,
            self.get_expense,
            self.file_expense,
            self.decide_expense,
            self.set_expense_category,
        )

    def list_expenses(
        self,
        person: Id | None = None,
        status: Literal["filed", "approved", "rejected", "paid"] | None = None,
        category: Literal["hotel", "meal", "travel", "software", "office"] | None = None,
    ) -> Rows:
        """List expenses by person, status and category. Amounts are in euros; receipt is 1 if there is one."""
        return self.desk.find("expenses", person=person, status=status, category=category)

    def get_expense(self, expense: Id) -> Row:
        """Show an expense."""
        return self.desk.row("expenses", expense)

    def file_expense(
        self,
        person: Id,
        category: Literal["hotel", "meal", "travel", "software", "office"],
        amount: Annotated[float, Field(gt=0, le=100_000, description="Euros")],
        spent_on: Day,
        description: Short,
        receipt: bool,
    ) -> Row:
        """File an expense of a colleague, to be decided later."""
        self.desk.row("people", person)
        return self.desk.insert(
            "expenses",
            person=person,
            category=category,
            amount=round(amount, 2),
            spent_on=day_of(spent_on).isoformat(),
            description=clean(description, "description"),
            receipt=int(receipt),
            status="filed",
        )

    def decide_expense(self, expense: Id, decision: Decision) -> Row:
        """Approve or reject an expense that is filed."""
        found = self.desk.row("expenses", expense)
        if found["status"] != "filed":
            raise ToolError(f"Expense {expense} is {found['status']} already. Only filed expenses are decided.")
        return self.desk.update("expenses", expense, status=decision)

    def set_expense_category(
        self, expense: Id, category: Literal["hotel", "meal", "travel", "software", "office"]
    ) -> Row:
        """Correct the category of an expense."""
        return self.desk.update("expenses", expense, category=category)
