"""Serve one MCP client over stdin and stdout."""
