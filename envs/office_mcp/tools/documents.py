"""The company's documents and its chat."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..company import id_list
from ..desk import Desk
from .arguments import Id, Long, Rows, Short, Words, clean

ChannelName = Annotated[str, Field(description="list_channels has all", examples=["general"])]


class DocumentTools:
    """Tools of documents."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.search_documents,
            self.read_document,
            self.create_document,
            self.replace_in_document,
            self.move_document,
            self.share_document,
            self.set_visibility,
        )

    def search_documents(self, words: Words = None, folder: Short | None = None) -> Rows:
        """Find documents by words of title or text. Texts are left out."""
        columns = "id, title, folder, owner, visibility, shared_with"
        return self.desk.find("documents", columns, like=("title body", words), folder=folder)

    def read_document(self, document: Id) -> Row:
        """Read a document. The company's rules are the document "Company policy"."""
        return self.desk.row("documents", document)

    def create_document(self, title: Short, folder: Short, body: Long) -> Row:
        """Write a new document, which everybody may see."""
        return self.desk.insert(
            "documents",
            title=clean(title, "title"),
            folder=clean(folder, "folder"),
            owner=self.desk.user["id"],
            visibility="all",
            shared_with="",
            body=clean(body, "body"),
        )

    def replace_in_document(self, document: Id, old: Long, new: Long) -> Row:
        """Replace a passage that a document has exactly once."""
        body = self.desk.row("documents", document)["body"]
        if (count := body.count(old)) != 1:
            raise ToolError(f"Document {document} has this passage {count} times. Name one that it has once.")
        return self.desk.update("documents", document, body=body.replace(old, new))

    def move_document(self, document: Id, folder: Short) -> Row:
        """Move a document to another folder."""
        return self.desk.update("documents", document, folder=clean(folder, "folder"))

    def share_document(self, document: Id, person: Id) -> Row:
        """Share a document with a colleague, beside those who have it already."""
        found = self.desk.row("documents", document)
        self.desk.row("people", person)
        shared = [int(each) for each in found["shared_with"].split(",") if each]
        return self.desk.update("documents", document, shared_with=id_list([*shared, person]))

    def set_visibility(self, document: Id, visibility: Literal["all", "managers", "hr", "finance"]) -> Row:
        """Say who may see a document."""
        return self.desk.update("documents", document, visibility=visibility)


class ChatTools:
    """Tools of the chat."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.list_channels,
            self.read_channel,
            self.search_messages,
            self.post_message,
            self.pin_message,
            self.set_channel_topic,
        )

    def list_channels(self) -> Rows:
        """List the channels of the chat."""
        return self.desk.find("channels")

    def read_channel(self, channel: ChannelName) -> Rows:
        """Read the messages of a channel, oldest first."""
        return self.desk.find("messages", channel=self._channel(channel)["id"])

    def search_messages(self, words: Short) -> Rows:
        """Find messages of all channels by words."""
        return self.desk.find("messages", like=("body", words))

    def post_message(self, channel: ChannelName, body: Long) -> Row:
        """Write a message to a channel."""
        return self.desk.insert(
            "messages",
            channel=self._channel(channel)["id"],
            author=self.desk.user["id"],
            body=clean(body, "body"),
            at=self.desk.today,
            pinned=0,
        )

    def pin_message(self, message: Id, pinned: bool = True) -> Row:
        """Pin a message to the top of its channel, or unpin it."""
        return self.desk.update("messages", message, pinned=int(pinned))

    def set_channel_topic(self, channel: ChannelName, topic: Short) -> Row:
        """Change the topic of a channel."""
        return self.desk.update("channels", self._channel(channel)["id"], topic=clean(topic, "topic"))

    def _channel(self, name: str) -> Row:
        found = self.desk.find("channels", name=name.strip().lstrip("#"))
        if not found:
            known = ", ".join(each["name"] for each in self.list_channels())
            raise ToolError(f"There is no channel {name[:40]!r}. There are: {known}.")
        return found[0]
