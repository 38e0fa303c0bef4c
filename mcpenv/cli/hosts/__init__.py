"""MCP hosts (Claude Desktop, Claude Code, ...) and their configuration files."""
