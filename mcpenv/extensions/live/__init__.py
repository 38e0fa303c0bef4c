"""Watch sessions as they run: the list of sessions, and the steps of each, for the console and ``mcpenv sessions``."""
