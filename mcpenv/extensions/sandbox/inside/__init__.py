"""Run code in a bare interpreter, without mcpenv or installed packages: the child of the process sandbox."""
