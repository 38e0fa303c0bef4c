"""An office: one company with all its tools."""
