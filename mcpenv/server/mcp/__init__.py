"""The agent plane: ``/mcp``, its connections and its event streams."""
