"""Targets: the environment or server that a command serves, evaluates or validates, and its settings."""
