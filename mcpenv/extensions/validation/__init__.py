"""`mcpenv validate`: judge an environment as a whole."""
