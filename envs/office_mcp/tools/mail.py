"""The mailbox of the user."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Id, Long, Rows, Short, clean

Folder = Literal["inbox", "archive", "sent", "trash"]
HEAD = "id, sender, recipient, subject, sent_at, folder, label"


class MailTools:
    """Tools of the mailbox. Those that write return the row that they wrote."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_mails,
            self.search_mails,
            self.read_mail,
            self.send_mail,
            self.reply_mail,
            self.forward_mail,
            self.move_mail,
            self.label_mail,
        )

    def list_mails(
        self,
        folder: Folder = "inbox",
        sender: Annotated[str | None, Field(description="Only from this address")] = None,
        label: Annotated[str | None, Field(description="Only with this label")] = None,
    ) -> Rows:
        """List mails of a folder without their texts, at most 50."""
        return self.desk.find("mails", HEAD, folder=folder, sender=sender, label=label)

    def search_mails(self, words: Short) -> Rows:
        """Find mails of all folders whose sender, subject or text has all these words. Texts are left out."""
        return self.desk.find("mails", HEAD, like=("sender subject body", words))

    def read_mail(self, mail: Id) -> Row:
        """Read a mail with its text."""
        return self.desk.row("mails", mail)

    def send_mail(self, to: Annotated[str, Field(examples=["ann@example.com"])], subject: Short, body: Long) -> Row:
        """Send a new mail to one address. To answer a mail, use reply_mail."""
        return self._send(to, subject, body, None)

    def reply_mail(self, mail: Id, body: Long) -> Row:
        """Answer a mail: to its sender, with its subject after "Re: "."""
        found = self.desk.row("mails", mail)
        return self._send(found["sender"], f"Re: {found['subject']}", body, mail)

    def forward_mail(
        self,
        mail: Id,
        to: Annotated[str, Field(examples=["ann@example.com"])],
        note: Annotated[str, Field(max_length=4000, description="A text above the mail")] = "",
    ) -> Row:
        """Send a mail on to another address, with its text and the subject after "Fwd: "."""
        found = self.desk.row("mails", mail)
        return self._send(to, f"Fwd: {found['subject']}", f"{note.strip()}\n{found['body']}", mail)

    def move_mail(self, mail: Id, folder: Literal["inbox", "archive", "trash"]) -> Row:
        """Move a mail to another folder."""
        return self.desk.update("mails", mail, folder=folder)

    def label_mail(self, mail: Id, label: Annotated[str, Field(max_length=40, description="Empty for none")]) -> Row:
        """Give a mail a label instead of the one it has."""
        return self.desk.update("mails", mail, label=label.strip())

    def _send(self, to: str, subject: str, body: str, reply_to: int | None) -> Row:
        to = to.strip().lower()
        if to.count("@") != 1 or not all(to.split("@")) or " " in to:
            raise ToolError(f"{to[:80]!r} is no address. search_people and search_contacts say addresses.")
        return self.desk.insert(
            "mails",
            sender=self.desk.user["email"],
            recipient=to,
            subject=clean(subject, "subject"),
            body=clean(body, "body"),
            sent_at=self.desk.today,
            folder="sent",
            label="",
            reply_to=reply_to,
        )
