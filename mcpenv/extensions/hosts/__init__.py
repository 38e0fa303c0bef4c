"""The command ``mcpenv connect``: configure MCP hosts."""
