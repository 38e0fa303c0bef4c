"""The people of the company, and its customers: accounts and their contacts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Id, Rows, Short, Words, clean

Tier = Literal["standard", "gold", "platinum"]


class CustomerTools:
    """Tools of people, accounts and contacts."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.search_people,
            self.get_person,
            self.search_accounts,
            self.get_account,
            self.set_account_owner,
            self.set_account_tier,
            self.set_account_status,
            self.search_contacts,
            self.get_contact,
            self.create_contact,
            self.update_contact,
            self.set_contact_status,
        )

    def search_people(
        self,
        words: Words = None,
        department: Annotated[str | None, Field(description="Only of this department")] = None,
        manager: Annotated[int | None, Field(description="Only those whom this person manages")] = None,
    ) -> Rows:
        """Find colleagues by words of their name, title or address. Names may occur twice: look at the department."""
        return self.desk.find(
            "people",
            "id, name, email, title, department, manager",
            like=("name title email", words),
            department=department,
            manager=manager,
        )

    def get_person(self, person: Id) -> Row:
        """Show a colleague: role, manager, city, hours from UTC, phone, days of leave left."""
        return self.desk.row("people", person)

    def search_accounts(
        self,
        words: Words = None,
        tier: Tier | None = None,
        owner: Annotated[int | None, Field(description="Only those that this colleague owns")] = None,
    ) -> Rows:
        """Find customers' accounts by words of their name or city."""
        return self.desk.find("accounts", like=("name city", words), tier=tier, owner=owner)

    def get_account(self, account: Id) -> Row:
        """Show an account; the owner is a colleague's id."""
        return self.desk.row("accounts", account)

    def set_account_owner(self, account: Id, owner: Id) -> Row:
        """Give an account to a colleague."""
        self.desk.row("people", owner)
        return self.desk.update("accounts", account, owner=owner)

    def set_account_tier(self, account: Id, tier: Tier) -> Row:
        """Change the tier of an account."""
        return self.desk.update("accounts", account, tier=tier)

    def set_account_status(self, account: Id, status: Literal["active", "on hold", "closed"]) -> Row:
        """Change the status of an account."""
        return self.desk.update("accounts", account, status=status)

    def search_contacts(self, words: Words = None, account: Id | None = None) -> Rows:
        """Find customers' people by words of their name or address, or by account."""
        return self.desk.find("contacts", like=("name email", words), account=account)

    def get_contact(self, contact: Id) -> Row:
        """Show a contact."""
        return self.desk.row("contacts", contact)

    def create_contact(self, account: Id, name: Short, title: Short, email: Short, phone: Short) -> Row:
        """Add a contact to an account."""
        self.desk.row("accounts", account)
        if self.desk.find("contacts", account=account, email=email.strip().lower()):
            raise ToolError(f"Account {account} has a contact with this address. Use update_contact.")
        return self.desk.insert(
            "contacts",
            name=clean(name, "name"),
            account=account,
            title=clean(title, "title"),
            email=clean(email, "address").lower(),
            phone=clean(phone, "phone number"),
            status="active",
        )

    def update_contact(self, contact: Id, field: Literal["name", "title", "email", "phone"], value: Short) -> Row:
        """Change one field of a contact."""
        return self.desk.update("contacts", contact, **{field: clean(value, field)})

    def set_contact_status(self, contact: Id, status: Literal["active", "left"]) -> Row:
        """Say whether a contact still works for the customer."""
        return self.desk.update("contacts", contact, status=status)
