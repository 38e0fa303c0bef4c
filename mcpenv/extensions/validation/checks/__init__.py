"""Checks of the folder of an environment, before others install it."""
