"""Its server."""
