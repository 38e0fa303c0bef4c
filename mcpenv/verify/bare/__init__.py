"""What runs in a bare interpreter, without mcpenv or anything else that is installed: the process sandbox's inside."""
