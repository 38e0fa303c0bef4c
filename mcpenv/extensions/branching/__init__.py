"""Branches: episodes that continue a recorded one after a step."""
