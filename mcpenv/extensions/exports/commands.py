"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

EXPORT = Command(
    help="Write chats, Parquet, ATIF, or a page to share.",
    run="mcpenv.extensions.exports.command:export_episodes",
    order=4,
)
