"""Metrics: counted in plain attributes, and written as Prometheus' text at the scrape."""
