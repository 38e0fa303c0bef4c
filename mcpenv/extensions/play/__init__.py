"""The command ``mcpenv play``: an episode by hand."""
