"""Environments that come from elsewhere."""
