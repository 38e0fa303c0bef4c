"""Protocols of other trainers and frameworks, beside mcpenv's own."""
