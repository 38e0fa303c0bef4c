"""The command ``mcpenv sessions``: the sessions of a running server."""
