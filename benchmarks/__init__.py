"""Benchmarks: what mcpenv costs, measured side by side in one run. ``python -m benchmarks``."""
