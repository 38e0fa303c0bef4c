"""Recorded episodes: list, show, check, index and rescore them."""
