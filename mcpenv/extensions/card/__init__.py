"""`mcpenv card`: one page about an environment, in figures that were measured."""
