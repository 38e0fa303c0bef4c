"""The commands that show what an environment or a server offers: ``mcpenv inspect`` and ``mcpenv tasks``."""
