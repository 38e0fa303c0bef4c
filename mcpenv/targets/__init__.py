"""Targets: what a command is given to serve, evaluate or validate, and its settings."""
