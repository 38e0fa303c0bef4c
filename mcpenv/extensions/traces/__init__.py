"""The export of traces to a collector."""
