"""Host check, control token and agent authentication."""
