"""Programs that run in the interpreters of servers, which have no mcpenv. They use the standard library only."""
