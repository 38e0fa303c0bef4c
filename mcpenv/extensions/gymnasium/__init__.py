"""Gymnasium's environments as tools."""
