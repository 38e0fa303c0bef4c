"""A FastMCP server that an author handed in: its tools, settings and threads."""
